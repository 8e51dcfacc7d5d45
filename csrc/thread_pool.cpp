// SPDX-License-Identifier: Apache-2.0
#include "thread_pool.h"

#include <pthread.h>
#include <sched.h>

#include <algorithm>
#include <atomic>
#include <condition_variable>
#include <cstdlib>
#include <memory>
#include <mutex>
#include <system_error>
#include <thread>
#include <vector>

namespace dsv4 {
namespace {

// Decode calls an op every few microseconds: a worker looks for the next job this many times before it
// sleeps, so that a burst of ops pays no wake-up, and an idle process burns no core.
constexpr int kSpins = 2000;

inline void relax() {
#if defined(__x86_64__)
  __builtin_ia32_pause();
#elif defined(__aarch64__)
  asm volatile("yield");
#endif
}

class Pool {
 public:
  explicit Pool(int threads) {
    workers_.reserve(threads);
    try {
      for (int i = 1; i < threads; ++i) workers_.emplace_back([this] { work(); });
    } catch (const std::system_error&) {  // the system gives no more threads: the pool does with those it has
    }
  }
  ~Pool() {
    {
      std::lock_guard<std::mutex> lock(mutex_);
      stop_.store(true);
    }
    wake_.notify_all();
    for (std::thread& t : workers_) t.join();
  }

  void run(int64_t n, int64_t chunks, void (*fn)(void*, int64_t, int64_t), void* ctx) {
    // Close the previous job to late workers before its description changes, then publish the new one. Only then does
    // the number change: a worker that waits for it would find nothing to take yet, and wait for the job after.
    const uint64_t job = (claim_.load() >> kIndexBits) + 1;
    claim_.store((job - 1) << kIndexBits | kClosed);
    fn_.store(fn), ctx_.store(ctx), n_.store(n), chunks_.store(chunks);
    done_.store(0);
    claim_.store(job << kIndexBits);
    if (sleepers_.load() > 0) {
      std::lock_guard<std::mutex> lock(mutex_);
      wake_.notify_all();
    }
    drain();
    // Only chunks that somebody took are waited for: a worker that the system has not scheduled costs nothing.
    while (done_.load() < chunks) relax();
  }

 private:
  // claim_ = job number << kIndexBits | next chunk. Taking a chunk is a compare-and-swap on both, so a worker that
  // read an old description can never take a chunk of a newer job.
  static constexpr int kIndexBits = 32;
  static constexpr uint64_t kClosed = (1ull << kIndexBits) - 1;

  void drain() {
    for (;;) {
      uint64_t claim = claim_.load();
      const auto fn = fn_.load();
      void* ctx = ctx_.load();
      const int64_t n = n_.load(), chunks = chunks_.load();
      const int64_t index = static_cast<int64_t>(claim & kClosed);
      if (index >= chunks) return;
      if (!claim_.compare_exchange_strong(claim, claim + 1)) continue;
      fn(ctx, index * n / chunks, (index + 1) * n / chunks);
      done_.fetch_add(1);
    }
  }
  void work() {
    uint64_t seen = 0;
    for (;;) {
      auto job = [this] { return claim_.load() >> kIndexBits; };
      for (int i = 0; i < kSpins && job() == seen && !stop_.load(); ++i) relax();
      if (job() == seen && !stop_.load()) {
        std::unique_lock<std::mutex> lock(mutex_);
        sleepers_.fetch_add(1);
        wake_.wait(lock, [&] { return job() != seen || stop_.load(); });
        sleepers_.fetch_sub(1);
      }
      if (stop_.load()) return;
      seen = job();
      drain();
    }
  }

  std::vector<std::thread> workers_;
  std::mutex mutex_;
  std::condition_variable wake_;
  std::atomic<int> sleepers_{0};
  std::atomic<bool> stop_{false};
  std::atomic<uint64_t> claim_{kClosed};
  std::atomic<int64_t> done_{0}, n_{0}, chunks_{0};
  std::atomic<void (*)(void*, int64_t, int64_t)> fn_{nullptr};
  std::atomic<void*> ctx_{nullptr};
};

int usable_cores() {
  cpu_set_t set;
  if (sched_getaffinity(0, sizeof set, &set) == 0) return std::max(1, CPU_COUNT(&set));
  return std::max(1u, std::thread::hardware_concurrency());
}

constexpr int kMaxThreads = 1024;

// Threads that DSV4SPEC_NUM_THREADS asks for: 0 if it is unset or empty, -1 if it is no number that can be had.
int wanted_threads() {
  const char* text = std::getenv("DSV4SPEC_NUM_THREADS");
  if (!text || !*text) return 0;
  int n = 0;
  for (; *text; ++text) {
    if (*text < '0' || *text > '9') return -1;
    n = std::min(10 * n + (*text - '0'), kMaxThreads + 1);
  }
  return n >= 1 && n <= kMaxThreads ? n : -1;
}

int default_threads() {
  const int n = wanted_threads();
  return n > 0 ? n : usable_cores();  // a refused number keeps the CPU backend from loading (refused_threads)
}

std::mutex g_mutex;  // owner of the pool for the length of a job
std::atomic<int32_t> g_threads{0};
Pool* g_pool = nullptr;
thread_local bool t_inside = false;

// A child process has none of the workers: it starts over with a pool of its own (the old one is leaked, its
// threads do not exist here).
void after_fork_in_child() {
  g_pool = nullptr;
  t_inside = false;
  new (&g_mutex) std::mutex;
}

}  // namespace

std::string refused_threads() {
  if (wanted_threads() >= 0) return "";
  return "DSV4SPEC_NUM_THREADS: expected 1 to " + std::to_string(kMaxThreads) + ", got " +
         std::getenv("DSV4SPEC_NUM_THREADS");
}

int32_t num_threads() {
  int32_t n = g_threads.load();
  if (n == 0) {
    n = default_threads();
    g_threads.store(n);
  }
  return n;
}

void set_num_threads(int32_t n) {
  std::lock_guard<std::mutex> lock(g_mutex);
  g_threads.store(n);
  delete g_pool;
  g_pool = nullptr;
}

void parallel_for(int64_t n, int64_t grain, void (*fn)(void*, int64_t, int64_t), void* ctx) {
  if (n <= 0) return;
  const int threads = num_threads();
#ifdef __SANITIZE_THREAD__
  grain = 1;  // scripts/tsan.sh: small tests share their work too
#else
  grain = std::max<int64_t>(grain, 1);
#endif
  if (threads == 1 || n < 2 * grain || t_inside || !g_mutex.try_lock()) {
    fn(ctx, 0, n);
    return;
  }
  std::lock_guard<std::mutex> lock(g_mutex, std::adopt_lock);
  if (!g_pool) {
    static const int hooked = pthread_atfork(nullptr, nullptr, after_fork_in_child);
    (void)hooked;
    g_pool = new Pool(threads);
  }
  t_inside = true;
  // A few chunks a thread even out unequal rows; as many for every thread, so that equal rows end together.
  const int64_t chunks = std::min<int64_t>(n / grain, 4 * threads);
  g_pool->run(n, chunks > threads ? chunks - chunks % threads : chunks, fn, ctx);
  t_inside = false;
}

}  // namespace dsv4
