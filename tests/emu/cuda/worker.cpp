// SPDX-License-Identifier: Apache-2.0
#include "worker.h"

#include <link.h>
#include <sys/mman.h>

#include <algorithm>
#include <cstring>
#include <map>
#include <new>
#include <utility>

#include "../common/fault.h"
#include "../common/sanitizer_fiber.h"

namespace cuda_emu {

__thread Local local;
std::atomic<bool> failed{false};
Observer* observer = nullptr;

namespace {

constexpr size_t kSharedRoom = round_up(kMaxShared, kPage) + kPage;
constexpr size_t kSharedAlign = 128;  // of the start of dynamic shared memory, and the size of the canary before it

void* map_memory(size_t bytes, int protection) {
  void* p = mmap(nullptr, bytes, protection, MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE, -1, 0);
  if (p == MAP_FAILED) throw std::bad_alloc();
  return p;
}

// Finds this OS thread's thread-local block of the module that holds `local`: the kernels' static shared memory.
int find_statics(dl_phdr_info* info, size_t, void*) {
  char* data = static_cast<char*>(info->dlpi_tls_data);
  if (!data) return 0;
  for (int i = 0; i < info->dlpi_phnum; ++i) {
    const size_t bytes = info->dlpi_phdr[i].p_memsz;
    const size_t offset = reinterpret_cast<char*>(&local) - data;
    if (info->dlpi_phdr[i].p_type != PT_TLS || offset >= bytes) continue;
    local.statics = data;
    local.statics_size = bytes;
    return 1;
  }
  return 0;
}

}  // namespace

// ---------------------------------------------------------------------------------------------- ready threads
void ReadyThreads::reset(Order order, std::mt19937* random) {
  order_ = order;
  random_ = random;
  head_ = tail_ = warps_ = first_lane_ = 0;
  if (order != kWarpPriority) return;
  std::memset(lanes_, 0, sizeof lanes_);
  for (uint32_t i = 0; i < kMaxWarps; ++i) place_[i] = warp_at_[i] = static_cast<uint8_t>(i);
  new_priorities();
}

void ReadyThreads::new_priorities() {
  if (order_ != kWarpPriority) return;
  std::shuffle(warp_at_, warp_at_ + kMaxWarps, *random_);
  warps_ = 0;
  for (uint32_t place = 0; place < kMaxWarps; ++place) {
    place_[warp_at_[place]] = static_cast<uint8_t>(place);
    if (lanes_[warp_at_[place]]) warps_ |= 1u << place;
  }
  first_lane_ = (*random_)() & 31;
}

void ReadyThreads::push(uint32_t thread) {
  if (order_ == kWarpPriority) {
    lanes_[thread / 32] |= 1u << thread % 32;
    warps_ |= 1u << place_[thread / 32];
  } else {
    threads_[tail_++ % kMaxThreads] = static_cast<uint16_t>(thread);
  }
}

int ReadyThreads::pop() {
  if (order_ == kWarpPriority) {
    if (!warps_) return -1;
    const uint32_t warp = warp_at_[__builtin_ctz(warps_)];
    const uint32_t later = lanes_[warp] >> first_lane_ << first_lane_;
    const uint32_t lane = __builtin_ctz(later ? later : lanes_[warp]);
    lanes_[warp] &= ~(1u << lane);
    if (!lanes_[warp]) warps_ &= warps_ - 1;
    return static_cast<int>(warp * 32 + lane);
  }
  if (head_ == tail_) return -1;
  if (order_ == kFifo) return threads_[head_++ % kMaxThreads];
  if (order_ == kRandom) std::swap(threads_[(*random_)() % tail_], threads_[tail_ - 1]);
  return threads_[--tail_];
}

// --------------------------------------------------------------------------------------------------- a launch
Worker::Worker() : threads(kMaxThreads), copies(kMaxThreads) {
  char* map = static_cast<char*>(map_memory(kSharedRoom + 2 * kPage, PROT_NONE));
  shared_map = map + kPage;
  if (mprotect(shared_map, kSharedRoom, PROT_READ | PROT_WRITE)) throw std::bad_alloc();
  fault_stack = static_cast<char*>(map_memory(emu::kFaultStackBytes, PROT_READ | PROT_WRITE));
  signal_stack = static_cast<char*>(map_memory(emu::kFaultStackBytes, PROT_READ | PROT_WRITE));
  for (uint32_t i = 0; i < kMaxThreads; ++i) {
    threads[i].linear = i;
    threads[i].lane = i % 32;
    threads[i].warp = i / 32;
    threads[i].copies = &copies[i];
  }
}

bool Worker::in_dynamic_guard(const void* address) const {
  const char* p = static_cast<const char*>(address);
  return p >= shared_map - kPage && p < shared_map + kSharedRoom + kPage;
}

void Worker::begin(const LaunchInfo& l, uint32_t seed) {
  launch = &l;
  random.seed(seed);
  local.worker = this;
  local.block = &block;
  if (!local.statics) dl_iterate_phdr(&find_statics, nullptr);
  block.kernel = l.kernel;
  block.dim = l.block;
  block.grid = l.grid;
  block.threads = l.block.x * l.block.y * l.block.z;
  block.cluster_rank = 0;
  block.cluster_size = 1;
  block.dynamic_size = l.shared_bytes;
  block.dynamic = shared_map + kSharedRoom - round_up(l.shared_bytes, kSharedAlign);
  block.statics = local.statics;
  block.statics_size = local.statics_size;
  block.events = {};
  uint32_t i = 0;
  for (uint32_t z = 0; z < l.block.z; ++z)
    for (uint32_t y = 0; y < l.block.y; ++y)
      for (uint32_t x = 0; x < l.block.x; ++x) threads[i++].index = {x, y, z};
}

// Shared memory as NaN bytes, the canaries around its dynamic part included.
void Worker::prepare_shared() {
  std::memset(block.dynamic - kSharedAlign, 0xff, kSharedAlign);
  std::memset(block.dynamic + block.dynamic_size, 0xff,
              round_up(block.dynamic_size, kSharedAlign) - block.dynamic_size);
  if (!config.poison) return;
  std::memset(block.dynamic, 0xff, block.dynamic_size);
  char* hole = reinterpret_cast<char*>(&local);
  std::memset(local.statics, 0xff, static_cast<size_t>(hole - local.statics));
  char* rest = hole + sizeof(Local);
  std::memset(rest, 0xff, static_cast<size_t>(local.statics + local.statics_size - rest));
}

void Worker::check_canaries() {
  const auto changed = [&](const char* from, const char* to) {
    for (const char* p = from; p < to; ++p)
      if (*p != '\xff') return p;
    return static_cast<const char*>(nullptr);
  };
  const char* end = block.dynamic + round_up(block.dynamic_size, kSharedAlign);
  const char* hit = changed(block.dynamic - kSharedAlign, block.dynamic);
  if (!hit) hit = changed(block.dynamic + block.dynamic_size, end);
  if (!hit) return;
  add_report("write outside dynamic shared memory: offset " + std::to_string(hit - block.dynamic) + " of " +
             std::to_string(block.dynamic_size) + " bytes, found after block " + std::to_string(block.linear) +
             " of " + kernel_name(block.kernel));
  failed = true;
}

void Worker::start_block(uint64_t linear) {
  block.linear = linear;
  block.index = {static_cast<unsigned>(linear % block.grid.x),
                 static_cast<unsigned>(linear / block.grid.x % block.grid.y),
                 static_cast<unsigned>(linear / block.grid.x / block.grid.y)};
  block.alive = block.threads;
  block.epoch = 1;
  prepare_shared();
  for (uint32_t w = 0; w * 32 < block.threads; ++w) {
    const uint32_t count = block.threads - w * 32;
    warps[w].lanes = count >= 32 ? 0xffffffffu : (1u << count) - 1;
    warps[w].exited = warps[w].pending = 0;
  }
  for (Barrier& b : barriers) b.arrived = 0;
  mbarriers.clear();
  ready_threads.reset(static_cast<Order>(config.order), &random);
  for (uint32_t i = 0; i < block.threads; ++i) {
    Thread& t = threads[i];
    t.stack = nullptr;
    t.warp_epoch = t.cluster_arrivals = t.cluster_waits = 0;
    t.proxy_fence = {};
    t.waits_for = nullptr;
    if (!t.copies->empty()) t.copies->clear();
    ready_threads.push(i);
  }
  if (observer) observer->block_begins(block);
}

// A thread that waits or ends hands over to the next one itself; control comes back when none is ready.
void Worker::advance() {
  const int first = ready_threads.pop();
  if (first < 0) return;
  resume(nullptr, &threads[static_cast<uint32_t>(first)]);
  local.thread = nullptr;
}

void Worker::end_block() {
  if (!failed && block.alive) report_deadlock();
  if (failed) stacks.give_all();
  check_canaries();
  if (observer) observer->block_ends(block);
}

void Worker::run_block(uint64_t linear) {
  start_block(linear);
  advance();
  end_block();
}

void fiber_main() {
  Worker& worker = *local.worker;
  emu::arrive_on_stack(nullptr, worker.scheduler_stack_ ? nullptr : &worker.scheduler_stack_,
                  worker.scheduler_stack_ ? nullptr : &worker.scheduler_stack_bytes_);
  worker.next_thread_forever();
}

// Runs threads on this stack as long as the next one is fresh; a kernel without barriers needs one stack.
void Worker::next_thread_forever() {
  for (;;) {
    Thread* thread = local.thread;
    launch->entry(launch->args);
    thread_ends();
    char* stack = thread->stack;
    thread->stack = nullptr;
    const int next = ready_threads.pop();
    Thread* other = next >= 0 ? &threads[static_cast<uint32_t>(next)] : nullptr;
    if (other && !other->stack) {
      other->stack = stack;
      local.thread = other;
      continue;
    }
    stacks.give(stack);  // free for the next that starts; by then this one is left
    thread->sanitizer_stack = nullptr;
    local.thread = other;
    emu::leave_stack(nullptr, other ? other->stack : scheduler_stack_, other ? kStackBytes : scheduler_stack_bytes_);
    void* forgotten;
    emu_switch_stack(&forgotten, other ? other->stack_pointer : scheduler_pointer_);
  }
}

void Worker::resume(Thread* from, Thread* to) {
  if (to && !to->stack) {
    to->stack = stacks.take();
    emu::unpoison(to->stack, kStackBytes);
    to->stack_pointer = emu::fresh_frame(to->stack, kStackBytes, &fiber_main);
  }
  local.thread = to;
  emu::leave_stack(from ? &from->sanitizer_stack : &scheduler_sanitizer_, to ? to->stack : scheduler_stack_,
              to ? kStackBytes : scheduler_stack_bytes_);
  emu_switch_stack(from ? &from->stack_pointer : &scheduler_pointer_, to ? to->stack_pointer : scheduler_pointer_);
  emu::arrive_on_stack(from ? from->sanitizer_stack : scheduler_sanitizer_);
}

void Worker::suspend() {
  Thread* me = local.thread;
  const int next = ready_threads.pop();
  if (next < 0) return resume(me, nullptr);
  Thread* other = &threads[static_cast<uint32_t>(next)];
  if (other != me) resume(me, other);
}

void Worker::abandon_block() {
  failed = true;
  local.thread = nullptr;
  emu::leave_stack(nullptr, scheduler_stack_, scheduler_stack_bytes_);
  void* forgotten;
  emu_switch_stack(&forgotten, scheduler_pointer_);
  __builtin_unreachable();
}

void Worker::report_deadlock() {
  std::map<std::string, std::pair<uint32_t, uint32_t>> groups;  // where they wait -> how many, the first
  for (uint32_t i = 0; i < block.threads; ++i) {
    const Thread& t = threads[i];
    if (!t.stack || !t.waits_for) continue;
    const std::string site = std::string(t.waits_for) + " (" + t.waits_at.name() + ":" +
                             std::to_string(t.waits_at.line) + ")";
    const std::string where = with_source(site, source_of(static_cast<const char*>(t.waits_pc) - 1));
    ++groups.emplace(where, std::make_pair(0u, i)).first->second.first;
  }
  std::string text = "deadlock in block " + std::to_string(block.linear) + " of " + kernel_name(block.kernel) + ": " +
                     std::to_string(block.threads - block.alive) + " threads have returned";
  for (const auto& [where, threads_there] : groups)
    text += "; " + std::to_string(threads_there.first) + " (the first: thread " +
            std::to_string(threads_there.second) + ") wait for " + where;
  add_report(text + missing_at_mbarriers());
  failed = true;
}

}  // namespace cuda_emu
