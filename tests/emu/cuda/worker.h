// SPDX-License-Identifier: Apache-2.0
// The scheduler of one OS thread: it runs one block after the other, each thread of it as a fiber.
#pragma once
#include <random>
#include <string>
#include <vector>

#include "config.h"
#include "copies.h"
#include "../common/fiber.h"
#include "core.h"
#include "mbarrier.h"

namespace cuda_emu {

constexpr uint32_t kMaxThreads = 1024, kMaxWarps = 32;
constexpr size_t kMaxShared = 227 * 1024;  // of an H100; dynamic, a block
#if defined(__SANITIZE_ADDRESS__)
constexpr size_t kStackBytes = 256 * 1024;
#else
constexpr size_t kStackBytes = 64 * 1024;
#endif

// One meeting of some lanes of a warp that is not complete yet.
struct Meeting {
  uint32_t mask, arrived;  // arrived 0: free
  const char* what;
  Site site;
  void* pc;
  Combine combine;
  void* slots[32];
};

struct Warp {
  uint32_t lanes, exited;  // that exist; that have returned
  uint32_t pending;        // bit i: meetings[i] is in use
  Meeting meetings[4];     // a warp rarely splits into more than two
};

struct Barrier {
  uint32_t arrived, count, trues;
  Vote vote;
  Site site;
  void* pc;
  uint16_t waiting[kMaxThreads];
};

// Threads that could go on, in the order that the configuration asks for.
class ReadyThreads {
 public:
  void reset(Order order, std::mt19937* random);
  void push(uint32_t thread);
  int pop();                 // -1: none
  bool empty() const { return order_ == kWarpPriority ? !warps_ : head_ == tail_; }
  void new_priorities();     // kWarpPriority: at each barrier another warp runs ahead of the others

 private:
  Order order_;
  std::mt19937* random_;
  uint32_t head_, tail_;     // kFifo: a ring; the others: [0, tail_)
  uint16_t threads_[kMaxThreads];
  uint32_t lanes_[kMaxWarps], warps_, first_lane_;
  uint8_t place_[kMaxWarps], warp_at_[kMaxWarps];
};

struct Worker;

// Blocks that are on the device together. Here they take turns, each until all of its threads wait. The static
// shared memory of an OS thread is that of the block whose turn it is.
struct Cluster {
  std::vector<Worker*> blocks;
  uint32_t arrived = 0, alive = 0;  // threads, of all blocks
  uint32_t passed = 0;              // barriers of the cluster
  Site site;                        // of the barrier that threads arrive at
  std::vector<BulkCopy> in_flight;
  void release();                   // threads that wait at the barrier
  void land(size_t copy);
  bool land_one(std::mt19937& random);  // false: no copy is under way
};

struct Worker {
  Worker();
  void begin(const LaunchInfo& launch, uint32_t seed);  // on the OS thread that will run the blocks
  void run_block(uint64_t linear);
  static void run_cluster(Cluster& cluster, uint64_t first);  // blocks first, first + 1, ...
  void suspend();                    // the running thread waits; returns when it is ready again
  [[noreturn]] void abandon_block(); // from a thread, or from the fault handler
  void ready(uint32_t thread) { ready_threads.push(thread); }
  bool on_block_stack(const void* address) const { return stacks.in_guard(address); }
  bool in_dynamic_guard(const void* address) const;

  void settle(Warp& warp, uint32_t warp_index, Meeting& meeting);  // completes it if all have come
  void release(Barrier& barrier);
  void thread_leaves_cluster();
  std::string missing_at_mbarriers() const;

  Block block{};
  std::vector<Thread> threads;
  std::vector<Copies> copies;
  Warp warps[kMaxWarps];
  Barrier barriers[16];
  ReadyThreads ready_threads;
  std::mt19937 random;
  emu::Stacks stacks{kStackBytes};
  const LaunchInfo* launch = nullptr;
  Cluster* cluster = nullptr;        // of the block that runs, if it was launched in one
  std::vector<uint16_t> at_cluster_barrier;
  std::vector<Mbarrier> mbarriers;
  char* shared_map = nullptr;        // guard page, kMaxShared + room for canaries, guard page
  char* fault_stack = nullptr;       // for the report of a fault, whatever state the thread's own stack is in
  char* signal_stack = nullptr;
  void* fault_pc = nullptr;

 private:
  friend void fiber_main();
  void start_block(uint64_t linear);
  void advance();            // until no thread of the block is ready
  void end_block();
  void take_turn(Worker*& before);
  void resume(Thread* from, Thread* to);
  void next_thread_forever();
  void thread_ends();
  void prepare_shared();
  void check_canaries();
  void report_deadlock();

  std::vector<char> statics_;  // while another block of the cluster runs
  void* scheduler_pointer_ = nullptr;
  void* scheduler_sanitizer_ = nullptr;
  const void* scheduler_stack_ = nullptr;
  size_t scheduler_stack_bytes_ = 0;
};

}  // namespace cuda_emu
