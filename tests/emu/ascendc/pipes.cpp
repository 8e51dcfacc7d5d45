// SPDX-License-Identifier: Apache-2.0
// Pipes of a core: what they know, what they have still to run, and the flags between them.
#include "random.h"

#include "core.h"

namespace ascend_emu {

const char* const kPipeNames[] = {"S", "V", "M", "MTE1", "MTE2", "MTE3", "FIX"};
Core* core = nullptr;
Launched launched;

std::mt19937& random_numbers() {
  static std::mt19937 r;
  return r;
}

namespace {

// A wait in a pipe's queue.
struct Wait {
  Core* owner;
  Flag* flag;
  Pipe from;
  uint32_t count;
};
bool wait_ready(const void* p) {
  const Wait& w = *static_cast<const Wait*>(p);
  return w.flag->executed >= w.count;
}
bool wait_demand(const void* p) {
  const Wait& w = *static_cast<const Wait*>(p);
  return w.owner->step(w.from);
}
struct Set {
  Flag* flag;
};

Flag& flag_at(const char* api, Pipe from, Pipe to, int id) {
  if (id < 0 || id >= kEvents) violate(10, api, "event id: expected 0 to %d, got %d", kEvents - 1, id);
  return core->flags[from][to][id];
}

}  // namespace

void join(Clock& into, const Clock& from) {
  for (int p = 0; p < 8; ++p) into.own[p] = into.own[p] > from.own[p] ? into.own[p] : from.own[p];
  if (from.remote < 0 || from.remote == into.remote) return;
  if (into.remote < 0) {
    into.remote = from.remote;
    return;
  }
  std::vector<uint32_t> both = launched.remotes[static_cast<size_t>(into.remote)];
  const std::vector<uint32_t>& other = launched.remotes[static_cast<size_t>(from.remote)];
  if (both.size() < other.size()) both.resize(other.size());
  for (size_t i = 0; i < other.size(); ++i) both[i] = both[i] > other[i] ? both[i] : other[i];
  into.remote = static_cast<int32_t>(launched.remotes.size());
  launched.remotes.push_back(std::move(both));
}

// What the scalar unit has waited for is complete when it issues; its own accesses are not: those need a flag.
static void learn_from_scalar(PipeState& pipe, const PipeState& scalar) {
  const uint32_t kept = pipe.know.own[kS];
  join(pipe.know, scalar.know);
  pipe.know.own[kS] = kept;
}

void Core::begin_op(Pipe pipe, const char* name, const void* pc) {
  if (launched.type == KernelType::None)
    violate(13, name, "expected KERNEL_TASK_TYPE_DEFAULT at the start of the kernel");
  PipeState& p = pipes[pipe];
  if (pipe != kS) learn_from_scalar(p, pipes[kS]);
  ++p.seq;
  if (pipe == kS) p.know.own[kS] = p.seq;
  p.log.push_back({name, pc});
  ++counters.instructions[pipe];
  op_pipe = pipe, op_name = name, op_pc = pc;
  hazard_reported = nan_reported = false;
}

void Core::enqueue(Pipe pipe, const Item& item) {
  pipes[pipe].queue.push_back(item);
  if (config.order == kShuffled) shuffle();
}

bool Core::step(Pipe pipe) {
  PipeState& p = pipes[pipe];
  if (p.head == p.queue.size()) return false;
  const Item item = p.queue[p.head];  // a copy: running others may grow the queue
  while (item.ready && !item.ready(item.payload))
    if (!item.demand(item.payload)) return false;
  ++p.head;
  if (item.run) {
    running = item.op;
    item.run(item.payload);
    running.name = nullptr;
  }
  if (p.head == p.queue.size()) p.queue.clear(), p.head = 0;
  return true;
}

void Core::drain(Pipe pipe) {
  while (pipes[pipe].head < pipes[pipe].queue.size())
    if (!step(pipe)) violate(10, "end", "pipe %s waits for a flag that nothing sets", kPipeNames[pipe]);
}

void Core::drain_all() {
  for (int p = kPipes - 1; p > 0; --p) drain(static_cast<Pipe>(p));  // consumers first: they demand what they need
}

void Core::shuffle() {
  auto& r = random_numbers();
  for (uint32_t tries = r() % 4; tries > 0; --tries) {
    const Pipe pipe = static_cast<Pipe>(1 + r() % (kPipes - 1));
    for (uint32_t n = r() % 6; n > 0; --n) {
      PipeState& p = pipes[pipe];
      if (p.head == p.queue.size()) break;
      const Item& item = p.queue[p.head];
      if (item.ready && !item.ready(item.payload)) break;  // never forced from here
      if (!step(pipe)) break;
    }
  }
}

void set_flag_as(Pipe from, Pipe to, int id, bool of_queue, const void* pc) {
  Flag& flag = flag_at("SetFlag", from, to, id);
  if (flag.pending)
    violate(10, "SetFlag", "event %s_%s %d is already set (%s%s); a second SetFlag before the WaitFlag is undefined",
            kPipeNames[from], kPipeNames[to], id, flag.of_queue ? "by a queue, " : "", source_of(flag.pc).c_str());
  PipeState& p = core->pipes[from];
  if (from != kS) learn_from_scalar(p, core->pipes[kS]);
  flag.pending = true;
  flag.of_queue = of_queue;
  flag.pc = pc;
  flag.at = p.know;
  flag.at.own[from] = p.seq;  // a flag goes up when all before it is complete
  ++flag.issued;
  if (from == kS || config.order == kEager) {
    ++flag.executed;
    return;
  }
  Item item;
  item.op = {"SetFlag", pc};
  item.ready = nullptr, item.demand = nullptr;
  item.run = [](const void* payload) { ++static_cast<const Set*>(payload)->flag->executed; };
  const Set set{&flag};
  __builtin_memcpy(item.payload, &set, sizeof set);
  core->enqueue(from, item);
}

void wait_flag_as(Pipe from, Pipe to, int id) {
  Flag& flag = flag_at("WaitFlag", from, to, id);
  if (!flag.pending)
    violate(10, "WaitFlag", "event %s_%s %d is not set: the core would hang", kPipeNames[from], kPipeNames[to], id);
  flag.pending = false;
  join(core->pipes[to].know, flag.at);
  if (config.order == kEager) return;
  if (to == kS) {
    ++core->counters.stalls;
    while (flag.executed < flag.issued)
      if (!core->step(from))
        violate(10, "WaitFlag", "event %s_%s %d never comes", kPipeNames[from], kPipeNames[to], id);
    return;
  }
  Item item;
  item.op = {"WaitFlag", nullptr};
  item.run = nullptr, item.ready = &wait_ready, item.demand = &wait_demand;
  const Wait wait{core, &flag, from, flag.issued};
  __builtin_memcpy(item.payload, &wait, sizeof wait);
  core->enqueue(to, item);
}

void set_flag(Pipe from, Pipe to, int id) { set_flag_as(from, to, id, false, __builtin_return_address(0)); }

void wait_flag(Pipe from, Pipe to, int id) {
  if (id >= 0 && id < kEvents && core->flags[from][to][id].pending && core->flags[from][to][id].of_queue)
    violate(10, "WaitFlag", "event %s_%s %d belongs to a queue: take ids from FetchEventID or AllocEventID",
            kPipeNames[from], kPipeNames[to], id);
  wait_flag_as(from, to, id);
}

void barrier(Pipe pipe) {
  ++core->counters.barriers;
  if (pipe == kAllPipes) return wait_for_all_pipes();
  PipeState& p = core->pipes[pipe];
  p.know.own[pipe] = p.seq;
}

void wait_for_all_pipes() {
  Clock all;
  for (int p = 0; p < kPipes; ++p) {
    join(all, core->pipes[p].know);
    all.own[p] = core->pipes[p].seq;
  }
  for (PipeState& p : core->pipes) p.know = all;
  core->drain_all();
}

int fetch_event(Pipe from, Pipe to) {
  for (int id = 0; id < kEvents; ++id) {
    const Flag& flag = core->flags[from][to][id];
    if (!flag.reserved && !flag.pending) return id;
  }
  violate(10, "FetchEventID", "all %d ids of %s_%s are in use", kEvents, kPipeNames[from], kPipeNames[to]);
}
int alloc_event(Pipe from, Pipe to) {
  const int id = fetch_event(from, to);
  core->flags[from][to][id].reserved = true;
  return id;
}
void release_event(Pipe from, Pipe to, int id) {
  Flag& flag = flag_at("ReleaseEventID", from, to, id);
  if (!flag.reserved)
    violate(10, "ReleaseEventID", "id %d of %s_%s is not allocated", id, kPipeNames[from], kPipeNames[to]);
  flag.reserved = false;
}

}  // namespace ascend_emu
