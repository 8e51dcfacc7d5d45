// SPDX-License-Identifier: Apache-2.0
// Flags between cores. Each core has a counter a flag id; the counter of the receivers goes up when all senders of
// the group have set the flag once more. A wait holds back the core's later instructions.
#include <algorithm>
#include <deque>
#include <map>

#include "cores.h"

namespace ascend_emu {
namespace {

constexpr uint32_t kFirstOfSyncAll = 11, kLastOfSyncAll = 14;  // ids that its hard form uses itself
constexpr uint32_t kIds = 16, kMostPending = 15, kSyncAllId = 16, kSoftId = 17;

struct Sent {             // one SetFlag of one core
  uint32_t core;
  Pipe pipe;
  uint32_t mark;          // Core::marks_issued of that pipe
  std::vector<uint32_t> known;
};
struct Arrival {          // one step of a receiver's counter
  int mode;
  std::vector<Sent> from;
};
struct Group {            // senders -> receivers of one id
  std::vector<uint32_t> senders, receivers;
  std::map<uint32_t, std::deque<Sent>> sent;
};
using Key = std::tuple<int, int64_t, bool, uint32_t>;  // mode, group, from vector cores, id

std::map<Key, Group> g_groups;
std::map<std::pair<uint32_t, uint32_t>, std::deque<Arrival>> g_arrived;  // (core, id)
std::map<const void*, uint32_t> g_soft;                                  // soft barriers passed a workspace
bool g_hard = false;                                                     // SyncAll's hard form was called
uint32_t g_reserved = 0;                                                 // a flag of SyncAll's ids that was used

bool mixed() { return launched.type == KernelType::MixAic11 || launched.type == KernelType::MixAic12; }
int64_t group_of(const Core& c) { return c.vector ? c.block / sub_block_count() : c.block; }

std::vector<uint32_t> cores_where(bool vector, int64_t group) {  // group -1: all
  std::vector<uint32_t> found;
  for (const Core* c : launched.cores)
    if (c->vector == vector && (group < 0 || group_of(*c) == group)) found.push_back(c->index);
  return found;
}

// All that this core knows when everything before this point of `pipe` is complete, for others to learn.
std::vector<uint32_t> knowledge(const Core& c, Pipe pipe) {
  const Clock& at = c.pipes[pipe].know;
  std::vector<uint32_t> all(launched.cores.size() * 8);
  if (at.remote >= 0) {
    const auto& remote = launched.remotes[static_cast<size_t>(at.remote)];
    std::copy(remote.begin(), remote.end(), all.begin());
  }
  for (uint32_t p = 0; p < kPipes; ++p) all[c.index * 8 + p] = std::max(all[c.index * 8 + p], at.own[p]);
  all[c.index * 8 + pipe] = std::max(all[c.index * 8 + pipe], c.pipes[pipe].seq);
  return all;
}

void learn(const std::vector<uint32_t>& known) {
  Clock news;
  news.remote = static_cast<int32_t>(launched.remotes.size());
  for (uint32_t p = 0; p < kPipes; ++p) news.own[p] = known[core->index * 8 + p];
  launched.remotes.push_back(known);
  join(core->pipes[kS].know, news);
}

struct Mark {
  uint32_t* done;
};

void send(Group& group, int mode, uint32_t id, Pipe pipe) {
  Core& me = *core;
  const uint32_t mark = ++me.marks_issued[pipe];
  if (config.order == kEager) {
    me.marks_done[pipe] = mark;
  } else {
    Item item;
    item.op = {"CrossCoreSetFlag", nullptr};
    item.ready = nullptr, item.demand = nullptr;
    item.run = [](const void* payload) { ++*static_cast<const Mark*>(payload)->done; };
    const Mark m{&me.marks_done[pipe]};
    __builtin_memcpy(item.payload, &m, sizeof m);
    me.enqueue(pipe, item);
  }
  group.sent[me.index].push_back({me.index, pipe, mark, knowledge(me, pipe)});
  for (const uint32_t s : group.senders)
    if (group.sent[s].empty()) return;
  Arrival arrival{mode, {}};
  for (const uint32_t s : group.senders) {
    arrival.from.push_back(std::move(group.sent[s].front()));
    group.sent[s].pop_front();
  }
  for (const uint32_t r : group.receivers) {
    auto& queue = g_arrived[{r, id}];
    queue.push_back(arrival);
    if (queue.size() > kMostPending)
      violate(12, "CrossCoreSetFlag", "flag %u of %s core %lld counts more than %u", id,
              launched.cores[r]->vector ? "vector" : "cube", static_cast<long long>(launched.cores[r]->block),
              kMostPending);
  }
}

void receive(const char* what, uint32_t id) {
  const std::pair<uint32_t, uint32_t> key{core->index, id};
  const auto arrived = [](const void* p) {
    return !g_arrived[*static_cast<const std::pair<uint32_t, uint32_t>*>(p)].empty();
  };
  wait_until(arrived, &key, what);
  const Arrival arrival = std::move(g_arrived[key].front());
  g_arrived[key].pop_front();
  for (const Sent& sent : arrival.from) {
    learn(sent.known);
    Core& other = *launched.cores[sent.core];
    while (other.marks_done[sent.pipe] < sent.mark)
      if (!other.step(sent.pipe)) violate(12, what, "the flag never comes");
  }
}

const char* name_of(uint32_t id) {
  static char text[kIds][32];
  std::snprintf(text[id], sizeof text[id], "cross-core flag %u", id);
  return text[id];
}

void everybody(const std::vector<uint32_t>& cores, uint32_t id, const char* what) {
  wait_for_all_pipes();
  Group& group = g_groups[Key{9, 0, true, id}];
  if (group.senders.empty()) group.senders = group.receivers = cores;
  // The barrier leaves nothing behind in the pipes: the scalar unit knows all of it.
  Core& me = *core;
  std::vector<uint32_t> known = knowledge(me, kS);
  group.sent[me.index].push_back({me.index, kS, 0, std::move(known)});
  bool all = true;
  for (const uint32_t s : group.senders) all = all && !group.sent[s].empty();
  if (all) {
    Arrival arrival{9, {}};
    for (const uint32_t s : group.senders) {
      arrival.from.push_back(std::move(group.sent[s].front()));
      group.sent[s].pop_front();
    }
    for (const uint32_t r : group.receivers) g_arrived[{r, id}].push_back(arrival);
  }
  receive(what, id);
}

}  // namespace

void forget_cross_core() {
  g_groups.clear();
  g_arrived.clear();
  g_soft.clear();
  g_hard = false, g_reserved = 0;
}

static void check_reserved(const char* api, uint32_t id) {
  if (id >= kFirstOfSyncAll && id <= kLastOfSyncAll) g_reserved = id;
  if (g_hard && g_reserved)
    violate(12, api, "flag %u is one of the ids 11 to 14 that SyncAll, which this kernel also calls, uses itself",
            g_reserved);
}

// Flags of one id from this core that nobody has waited for yet: the hardware keeps no order between flags that a core
// sets, so another one may be taken for the first if it stands for another pipe or is of another mode.
static void check_unordered(int mode, Pipe pipe, uint32_t id) {
  const auto check = [&](int other_mode, const Sent& sent) {
    if (sent.core != core->index) return;
    if (other_mode != mode)
      violate(12, "CrossCoreSetFlag", "flag %u of mode %d is still on its way; mode %d may use the id after its waits",
              id, other_mode, mode);
    if (sent.pipe != pipe)
      violate(12, "CrossCoreSetFlag", "flag %u of pipe %s is still on its way, and flags keep no order: pipe %s needs "
              "another id", id, kPipeNames[sent.pipe], kPipeNames[pipe]);
  };
  for (const auto& [key, group] : g_groups) {
    if (std::get<3>(key) != id) continue;
    const auto mine = group.sent.find(core->index);
    if (mine == group.sent.end()) continue;
    for (const Sent& sent : mine->second) check(std::get<0>(key), sent);
  }
  for (const auto& [key, arrivals] : g_arrived)  // of the flags that come back to this core, its own wait is enough
    if (key.second == id && (key.first == core->index || (!arrivals.empty() && arrivals.front().mode == 2)))
      for (const Arrival& arrival : arrivals)
        for (const Sent& sent : arrival.from) check(arrival.mode, sent);
}

// All cores must be running at once where they wait for each other.
static void check_resident(const char* api) {
  const int cores = mixed() || !core->vector ? cube_cores() : vector_cores();
  if (static_cast<int64_t>(launched.blocks) > cores)
    violate(12, api, "%u blocks wait for each other on a device of %d cores: it hangs", launched.blocks, cores);
}

void check_cross_core_ended() {
  const auto complain = [](uint32_t core_index, uint32_t id, const char* what) {
    if (id >= kIds) return;
    const Core& c = *launched.cores[core_index];
    add_report("rule 12 (" + std::string(rule_name(12)) + "): end: flag " + std::to_string(id) + " of " +
               (c.vector ? "vector" : "cube") + " core " + std::to_string(c.block) + " " + what + " [" + launched.kernel +
               "]");
  };
  for (const auto& [key, arrivals] : g_arrived)
    if (!arrivals.empty()) complain(key.first, key.second, "was set and never waited for");
  for (const auto& [key, group] : g_groups)
    for (const auto& [sender, sent] : group.sent)
      if (!sent.empty()) complain(sender, std::get<3>(key), "was set by this core, but not by all of its group");
}

void cross_set(int mode, Pipe pipe, uint32_t id) {
  if (launched.type == KernelType::AivOnly || launched.type == KernelType::AicOnly)
    violate(12, "CrossCoreSetFlag", "kernels of type AIV_ONLY or AIC_ONLY have no cross-core flags");
  if (mode && !mixed())
    violate(12, "CrossCoreSetFlag", "mode %d: expected a kernel of type MIX_AIC_1_1 or MIX_AIC_1_2", mode);
  if (mode == 1 && !core->vector) violate(12, "CrossCoreSetFlag", "mode 1 is for vector cores");
  if (id >= kIds) violate(12, "CrossCoreSetFlag", "flagId: expected 0 to 15, got %u", id);
  if (pipe != kV && pipe != kM && (core->vector ? pipe == kMTE1 || pipe == kFix : false))
    violate(12, "CrossCoreSetFlag", "a vector core has no pipe %s", kPipeNames[pipe]);
  if (mode == 0) check_resident("CrossCoreSetFlag");
  check_reserved("CrossCoreSetFlag", id);
  check_unordered(mode, pipe, id);
  // As an instruction of its pipe: it knows what the scalar unit knows.
  core->begin_op(pipe, "CrossCoreSetFlag", __builtin_return_address(0));
  const int64_t group_index = mode == 0 ? -1 : group_of(*core);
  Group& group = g_groups[Key{mode, group_index, core->vector, id}];
  if (group.senders.empty()) {
    group.senders = cores_where(core->vector, group_index);
    group.receivers = mode == 2 ? cores_where(!core->vector, group_index) : group.senders;
  }
  send(group, mode, id, pipe);
}

void cross_wait(uint32_t id) {
  if (launched.type == KernelType::AivOnly || launched.type == KernelType::AicOnly)
    violate(12, "CrossCoreWaitFlag", "kernels of type AIV_ONLY or AIC_ONLY have no cross-core flags");
  if (id >= kIds) violate(12, "CrossCoreWaitFlag", "flagId: expected 0 to 15, got %u", id);
  check_reserved("CrossCoreWaitFlag", id);
  receive(name_of(id), id);
}

void sync_all(bool vector_only) {
  if (launched.type == KernelType::AivOnly || launched.type == KernelType::AicOnly)
    violate(12, "SyncAll", "the hard form needs a kernel of type MIX_AIV_1_0 (or a mixed one), not AIV_ONLY");
  if (!vector_only && !mixed())
    violate(12, "SyncAll", "isAIVOnly false in a kernel without both kinds of cores: it hangs");
  if (vector_only && mixed()) violate(12, "SyncAll", "isAIVOnly true in a mixed kernel leaves its cube cores out");
  check_resident("SyncAll");
  g_hard = true;
  check_reserved("SyncAll", 0);
  std::vector<uint32_t> all;
  for (const Core* c : launched.cores) all.push_back(c->index);
  everybody(all, kSyncAllId, "SyncAll");
}

void sync_soft(int32_t* gm, const Slice& ub, int32_t used) {
  if (!core->vector || mixed()) violate(12, "SyncAll", "the soft form is for vector kernels");
  check_resident("SyncAll");
  const int64_t cores = static_cast<int64_t>(launched.cores.size()), n = used ? used : cores;
  if (n < 1 || n > cores)
    violate(12, "SyncAll", "usedCores: expected 1 to %lld, got %d", static_cast<long long>(cores), used);
  check_inside("SyncAll", "ubWorkspace", ub, 0, static_cast<uint64_t>(cores) * 32);
  check_aligned("SyncAll", "ubWorkspace", ub, kBlockBytes);
  if (core->block >= n)
    violate(12, "SyncAll", "core %lld is not one of the %lld that synchronise", static_cast<long long>(core->block),
            static_cast<long long>(n));
  core->begin_op(kS, "SyncAll", __builtin_return_address(0));
  const std::string outside = describe_outside(gm, static_cast<uint64_t>(cores) * 32);
  if (!outside.empty()) violate(19, "SyncAll", "gmWorkspace: %s", outside.c_str());
  if (!g_soft[gm]++)
    for (int64_t i = 0; i < cores * 8; ++i)
      if (gm[i])
        violate(12, "SyncAll", "gmWorkspace: expected zeros, got %d at element %lld", gm[i],
                static_cast<long long>(i));
  core->touch(ub.space, ub.address, static_cast<uint32_t>(cores) * 32, true);
  std::vector<uint32_t> all;
  for (int64_t i = 0; i < n; ++i) all.push_back(static_cast<uint32_t>(i));
  everybody(all, kSoftId, "SyncAll");
}

}  // namespace ascend_emu
