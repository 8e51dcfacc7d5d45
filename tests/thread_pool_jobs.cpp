// SPDX-License-Identifier: Apache-2.0
// Jobs one after another, each of two pieces that wait for each other: a job ends only if two threads take part in it.
// Prints how many of them did.
#include <atomic>
#include <chrono>
#include <cstdio>
#include <thread>

#include "thread_pool.h"

int main() {
  constexpr int kJobs = 2000;
  dsv4::set_num_threads(2);
  int shared = 0;
  for (int job = 0; job < kJobs; ++job) {
    std::atomic<int> here{0};
    dsv4::parallel_for(2, 1, [](void* ctx, int64_t, int64_t) {
      auto& count = *static_cast<std::atomic<int>*>(ctx);
      ++count;
      const auto late = std::chrono::steady_clock::now() + std::chrono::seconds(10);
      while (count < 2 && std::chrono::steady_clock::now() < late) std::this_thread::yield();
      if (count < 2) count = -1;  // the other piece comes later, and alone
    }, &here);
    if (here != 2) break;
    ++shared;
  }
  std::printf("%d of %d\n", shared, kJobs);
}
