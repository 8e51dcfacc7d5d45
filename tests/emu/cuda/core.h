// SPDX-License-Identifier: Apache-2.0
// What kernels and the run time of the emulator share: the thread that runs now, the meeting points of threads, and
// the hooks through which a checking flavour watches memory. Kernels reach all of it through the names of CUDA.
#pragma once
#include <cuda_runtime_api.h>
#include <vector_types.h>

#include <cstddef>
#include <cstdint>

#ifndef CUDA_EMU
#define CUDA_EMU 1
#endif

namespace cuda_emu {

// A place in a kernel's source. As a default argument it is the caller's line.
struct Site {
  const char* file;
  int line;
  static constexpr Site here(const char* file = __builtin_FILE(), int line = __builtin_LINE()) {
    return {file, line};
  }
  const char* name() const {  // of the file, without its folders
    const char* slash = __builtin_strrchr(file, '/');
    return slash ? slash + 1 : file;
  }
  bool operator==(const Site& o) const { return line == o.line && file == o.file; }
};

struct Copies;  // asynchronous copies of one thread that are under way
struct Worker;  // the OS thread's scheduler

// One CUDA thread: a fiber. It never changes its OS thread, so `thread_local` memory is one block's memory.
struct Thread {
  void* stack_pointer;   // where it stopped; meaningless while it runs
  char* stack;           // low end; nullptr before its first step and after its last
  uint3 index;           // threadIdx
  uint32_t linear;       // index in the block, x fastest
  uint32_t lane, warp;
  uint32_t warp_epoch;   // __syncwarps passed; with the block's epoch it orders this thread's accesses
  struct Mark {          // what this thread did up to here: earlier epochs, and in this one up to that warp epoch
    uint32_t epoch, warp_epoch;
  };
  uint32_t cluster_arrivals, cluster_waits;  // at the cluster's barrier
  Mark arrivals[4];      // arrival n, counted from 1, at n % 4
  Mark proxy_fence;      // the last one
  int32_t barrier_value;
  const char* waits_for; // nullptr while it runs
  Site waits_at;
  void* waits_pc;        // return address of that wait
  Copies* copies;
  void* sanitizer_stack;
};

// What blocks did besides their accesses: instructions of whole warps, barriers that a block has passed.
struct Events {
  uint64_t collectives, mma, ldmatrix;  // collectives: shuffles, votes, reductions, and the other two
  uint64_t barriers, cluster_barriers;
};

// The block that runs now on this OS thread.
struct Block {
  uint3 index;           // blockIdx
  dim3 dim, grid;
  uint64_t linear;       // index in the grid, x fastest
  uint32_t cluster_rank, cluster_size;  // 0 of 1 without clusters
  uint32_t threads, alive;
  uint32_t epoch;        // barriers passed; starts at 1
  const void* kernel;
  char* dynamic;         // dynamic shared memory
  size_t dynamic_size;
  char* statics;         // the module's static shared memory (all kernels'), less `hole`
  size_t statics_size;
  Events events;         // of all blocks of the launch that ran in its place
};

// The only thread-local variable besides the kernels' static shared memory; poisoning leaves it out.
struct Local {
  Thread* thread;        // nullptr outside kernels
  Block* block;
  Worker* worker;
  char* statics;         // this OS thread's thread-local block of the module
  size_t statics_size;
  cudaError_t last_error;
};
extern __thread Local local;

inline Thread& current() { return *local.thread; }
inline Block& current_block() { return *local.block; }

// ---- meeting points ----
// All lanes of `mask` must come to the same one; the last runs `combine` over the slots that the lanes brought.
using Combine = void (*)(void* const* slots, uint32_t mask);
enum class Meet {
  kSameSite,   // a collective: every lane must come from the same line
  kAnySite,    // __syncwarp: orders memory, and any of its lines will do
};
void rendezvous(const char* what, uint32_t mask, void* slot, Combine combine, Site site, Meet meet = Meet::kSameSite);

enum class Vote { kNone, kCount, kAnd, kOr };
// Barrier `id` over `count` threads; count 0: all threads of the block (then every thread must come from one line).
int barrier(int id, int count, Vote vote, bool predicate, Site site);

// ---- clusters: blocks that see each other's dynamic shared memory ----
// The barrier of all threads of all blocks of the cluster that have not returned. Each arrives, then waits.
void cluster_arrive(const char* what, Site site);
void cluster_wait(const char* what, Site site);
// Reads what block `rank` of the cluster has where `shared` points to in this one's dynamic shared memory.
void cluster_read(void* to, const void* shared, size_t bytes, uint32_t rank, Site site);

// ---- asynchronous copies: issued now, done at the wait that covers them ----
void copy_async(void* shared, const void* global, int bytes, int source_bytes, Site site);
void copy_commit();
void copy_wait(int groups_in_flight);

// ---- bulk copies: done at any time, and told to mbarriers, eight bytes of dynamic shared memory ----
void mbarrier_init(const void* barrier, uint32_t count, Site site = Site::here());
void mbarrier_fence();   // what this thread has initialised is ready for other blocks, and for copies
void mbarrier_arrive(const void* barrier, uint32_t bytes, Site site = Site::here());  // `bytes` more are to come
void mbarrier_wait(const void* barrier, uint32_t parity, Site site = Site::here());   // for the phase of that parity
void proxy_fence();      // what this thread wrote is ordered ahead of later bulk copies
// To the same place in each block of `mask`, and to its mbarrier there.
void copy_bulk(void* shared, const void* global, uint32_t bytes, const void* barrier, uint32_t mask,
               Site site = Site::here());

// ---- failures: file a report, end the launch with cudaErrorLaunchFailure ----
[[noreturn]] void fail(const char* format, ...) __attribute__((format(printf, 1, 2)));

// ---- hooks of the checking flavours ----
enum class Access : uint8_t {
  kRead,
  kWrite,
  kAtomic,
  kInFlight,  // an asynchronous copy will write here
  kArrived,   // it has
  kBulkRead,  // a bulk copy's source
  kBulk,      // a bulk copy will write here
  kLanded,    // it has
};
constexpr bool is_read(Access kind) { return kind == Access::kRead || kind == Access::kBulkRead; }
struct LaunchInfo;
struct Observer {
  virtual ~Observer() = default;
  virtual void launch_begins(const LaunchInfo&) {}
  virtual void launch_ends() {}
  virtual void block_begins(Block&) {}
  virtual void block_ends(Block&) {}
  virtual void block_pauses(Block&) {}  // another block of its cluster runs until block_resumes
  virtual void block_resumes(Block&) {}
  virtual void cluster_begins(uint32_t /*blocks*/) {}
  virtual void cluster_ends() {}
  // In a kernel only. `pc` is a return address in the kernel's code.
  virtual void access(const void* address, size_t bytes, Access kind, const void* pc) = 0;
  virtual void fence() {}                             // __threadfence and wider
  // Bytes of a bulk copy are in `block`'s shared memory, in the phase `phase` of its mbarrier.
  virtual void landed(const Block& /*block*/, const void*, size_t, uint32_t /*mbarrier*/, uint32_t /*phase*/) {}
  virtual void phases_seen(uint32_t /*mbarrier*/, uint32_t /*phases*/) {}  // by this thread: so many are complete
  virtual const char* counters(const void*) { return ""; }  // more of a kernel's counters: ",\"name\":value..."
  virtual void clear_counters() {}
};
extern Observer* observer;  // nullptr in the functional flavour

// For accesses that the compiler's instrumentation does not see: those of wrapped instructions.
inline void note_access(const void* address, size_t bytes, Access kind, const void* pc) {
  if (observer && local.thread) observer->access(address, bytes, kind, pc);
}
inline void note_fence() {
  if (observer && local.thread) observer->fence();
}

// ---- launching ----
struct LaunchInfo {
  const void* kernel;
  dim3 grid, block;
  size_t shared_bytes;
  cudaStream_t stream;
  const void* args;
  void (*entry)(const void* args);          // one thread's run
  void* (*clone)(const void* args);         // for a stream that is being captured
  void (*destroy)(void* args);
  unsigned cluster = 0;                     // blocks of one, along x; 0: not launched in clusters
};
cudaError_t submit(const LaunchInfo& launch);

// Text of all reports since the last clear; "" if none.
const char* report();

}  // namespace cuda_emu
