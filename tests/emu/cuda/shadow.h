// SPDX-License-Identifier: Apache-2.0
// The shadow flavour: kernels are compiled with -fsanitize=thread and linked to the hooks of shadow_hooks.cpp
// instead of ThreadSanitizer's run time, which knows nothing of blocks and warps. For each four bytes that a
// launch touches a cell says who wrote and who read them last; two accesses with nothing between them that
// orders them are a race.
#pragma once
#include <cstdint>
#include <unordered_map>
#include <utility>
#include <vector>

#include "config.h"
#include "core.h"

namespace cuda_emu::shadow {

// One access. Epochs count barrier intervals over all blocks of all launches, in the order in which blocks
// run: an epoch names its launch and its block, and whatever is older than the launch needs no clearing.
struct Stamp {
  uint32_t epoch = 0;
  uint32_t who = 0;   // thread: 10 bits, its fences so far: 6 (no more are told apart), its warp epoch: 16
  uint32_t pc = 0;    // offset in the module

  uint32_t thread() const { return who & 1023; }
  uint32_t warp() const { return thread() / 32; }
  uint32_t fences() const { return who >> 10 & 63; }
  uint32_t warp_epoch() const { return who >> 16; }
};

// Of four bytes, or of one of them. Two readers of the running block are kept, of different warps if there
// were any, and the last of an earlier block: what a later write can conflict with, but for readers in
// several earlier blocks of which a ticket orders only the last.
struct alignas(64) Cell {
  Stamp write, reader, other_reader, earlier_reader;
  Access write_kind = Access::kWrite;
  bool split = false;       // the bytes have cells of their own
  uint16_t barrier = 0;     // kLanded: that mbarrier of the block,
  uint32_t phase = 0;       // in that phase
  Cell* bytes = nullptr;    // four of them; kept for the next split
};

// What orders blocks: a fence, then an atomic (release); an atomic on the same address that comes later, then
// a fence (acquire). Atomics of one address are one chain. An order that goes through a third block over
// another address is not followed: it would be reported.
class Order {
 public:
  void launch_begins();
  void block_begins(uint32_t base, uint32_t threads);
  uint32_t fences(uint32_t thread) const { return threads_[thread].fences; }
  void fence(const Stamp& now);
  void atomic(uintptr_t address, const Stamp& now);
  // Is what an earlier block did known to `now`? An atomic may be the release itself.
  bool acquired(const Stamp& access, bool is_atomic, const Stamp& now) const;

 private:
  struct Release {
    uint32_t base;      // of the block
    Stamp fence;        // what lies before it is released
  };
  struct Acquire {
    const std::vector<Release>* chain;
    size_t length;      // the chain's when the atomic was done
    Stamp fence;
  };
  struct PerThread {
    uint32_t fences;
    Stamp last_fence;   // epoch 0: none in this block
    std::vector<std::pair<const std::vector<Release>*, size_t>> atomics;  // since the last fence
  };
  std::unordered_map<uintptr_t, std::vector<Release>> chains_;
  std::vector<Acquire> acquires_;  // of the running block
  std::vector<PerThread> threads_ = std::vector<PerThread>(1024);
  uint32_t base_ = 0;
};

// Do barriers, __syncwarp or one thread's own program order put `before` ahead of `now`, both of the running
// block?
inline bool ordered_in_block(const Stamp& before, const Stamp& now) {
  if (before.epoch != now.epoch || before.thread() == now.thread()) return true;
  return before.warp() == now.warp() && before.warp_epoch() < now.warp_epoch();
}

// What is known of 4096 bytes of global memory, in a launch.
struct Page {
  Cell* cells = nullptr;         // 1024; nullptr while races are not looked for
  uint64_t read[64], written[64];  // a bit a byte
  uint64_t block_read[2], block_written[2];  // a bit a sector, of the block after `block_base`
  uint32_t block_base;
  uintptr_t number = 0;
  bool ignored = false;          // stacks, the module's own data
};
class Pages {
 public:
  void launch_begins(const LaunchInfo& launch);
  Page& at(uintptr_t number);    // of the address / 4096
  const std::vector<Page*>& all() const { return used_; }

 private:
  void grow();
  bool belongs_to_host(uintptr_t address) const;
  std::vector<Page*> table_, used_, free_;
  Page* recent_[64] = {};
  uintptr_t host_stack_ = 0, host_stack_end_ = 0;
  void* host_thread_ = nullptr;
  std::vector<std::pair<uintptr_t, uintptr_t>> module_;
};

// What is known of the running launch and block.
// Each block of a cluster has the epochs of a span of its own, as they take turns: more barriers are refused.
constexpr uint32_t kClusterSpan = 4096, kLargestCluster = 16;

struct State {
  void* os_thread = nullptr;     // that runs kernels now; accesses of others are none of ours
  const Local* local = nullptr;
  Block* block = nullptr;
  uintptr_t dynamic = 0, dynamic_size = 0, statics = 0, statics_size = 0;
  uintptr_t module = 0;          // where it is loaded
  uint32_t launch_base = 0, block_base = 0;  // epochs up to here: earlier launches, earlier blocks
  uint32_t cluster_base = 0;     // earlier clusters; block_base but in a cluster
  uint32_t span = 0;             // epochs of the running block; 0: no end
  uint32_t rank = 0;             // of the block whose shared memory is looked at
  bool races = false, count = false, reported = false;
};
extern State state;
extern Pages pages;
extern Order order;

// Of the block that runs now?
inline bool of_running_block(uint32_t epoch) {
  return epoch > state.block_base && (!state.span || epoch - state.block_base <= state.span);
}

enum class Space : uint8_t { kDynamic, kStatic, kGlobal };

// ---- clusters and bulk copies (shadow_cluster.cpp) ----
// Does a barrier of the cluster lie between an access of its running blocks and the running thread?
bool ordered_in_cluster(const Stamp& before);
// Has the thread that made it fenced it off from later bulk copies?
bool proxy_fenced(const Stamp& before);
// Who has learned of an mbarrier's phases, in each block of the cluster.
class Phases {
 public:
  void block_begins(uint32_t rank);
  void seen(uint32_t rank, uint32_t barrier, uint32_t phases, const Stamp& now);
  // Does the running thread know that `phase` of this mbarrier of block state.rank is complete?
  bool known(uint32_t barrier, uint32_t phase, const Stamp& now) const;

 private:
  struct Seen {
    std::vector<Stamp> first;          // who saw that many phases and one more
    std::vector<uint32_t> by_thread;
  };
  std::vector<Seen> seen_[16];         // by block, mbarrier
};
extern Phases phases;

void access(uintptr_t address, size_t bytes, Access kind, const void* pc, const Thread& thread);

// ---- reports (shadow_report.cpp) ----
void begin_race_reports();
void add_block(uint32_t base, uint64_t linear);  // that stamps after `base` belong to it
void report_race(Space space, uintptr_t address, Access kind, const Stamp& now, const Stamp& before,
                 Access before_kind);
void report_unwritten(Space space, uintptr_t address, const Stamp& now);
void report_in_flight(Space space, uintptr_t address, Access kind, const Stamp& now, const Stamp& copy, Access copy_kind);
void report_landed(Space space, uintptr_t address, Access kind, const Stamp& now, const Stamp& copy);
void report_no_proxy_fence(Space space, uintptr_t address, const Stamp& now, const Stamp& before);

// ---- counters (shadow_tally.cpp) ----
void tally(Space space, uintptr_t address, size_t bytes, Access kind, uint32_t pc, const Thread& thread);
void tally_bulk(uintptr_t address, size_t bytes);
void tally_page(Page& page, uintptr_t address, size_t bytes, Access kind);  // within the page
void tally_block_ends();  // or pauses
void tally_launch_ends(const void* kernel);
const char* tally_json(const void* kernel);
void clear_tally();

}  // namespace cuda_emu::shadow
