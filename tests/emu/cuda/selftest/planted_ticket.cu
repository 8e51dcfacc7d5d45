// SPDX-License-Identifier: Apache-2.0
// Planted bugs in what orders blocks: the last block to take a ticket reads what the others have left.
#include "selftest.h"

namespace selftest {
namespace {

constexpr int kThreads = 64, kBlocks = 12;

enum class Ticket { kRight, kNoFence, kPlainStore, kFenceTooEarly, kNoFenceAfter };

// As is_last_block of kernel.cuh, which stands for kRight.
template <Ticket how>
__device__ bool takes_last(unsigned* ticket, unsigned blocks, int* flag) {
  if (how == Ticket::kRight) return is_last_block(ticket, blocks, flag);
  __syncthreads();
  if (threadIdx.x == 0) {
    if (how == Ticket::kPlainStore || how == Ticket::kNoFenceAfter) __threadfence();
    unsigned before;
    if (how == Ticket::kPlainStore) before = *ticket, *ticket = before + 1;
    else before = atomicAdd(ticket, 1u);
    if (how == Ticket::kPlainStore || how == Ticket::kFenceTooEarly) __threadfence();
    *flag = before == blocks - 1;
  }
  __syncthreads();
  return *flag != 0;
}

template <Ticket how>
__global__ void sum_in_last_block(const float* x, float* parts, unsigned* ticket, float* total) {
  __shared__ int flag;
  const unsigned b = blockIdx.x, t = threadIdx.x;
  if (how == Ticket::kFenceTooEarly && t == 0) __threadfence();
  parts[b * kThreads + t] = x[b * kThreads + t];
  if (!takes_last<how>(ticket, gridDim.x, &flag)) return;
  float sum = 0;
  for (unsigned i = 0; i < gridDim.x; ++i) sum += parts[i * kThreads + t];
  total[t] = sum;
  if (t == 0) *ticket = 0;  // for the next launch
}

template <Ticket how>
long run(bool bug) {
  const std::vector<float> x = ramp(kThreads * kBlocks);
  std::vector<float> expected(kThreads);
  for (int t = 0; t < kThreads; ++t)
    for (int b = 0; b < kBlocks; ++b) expected[t] += x[b * kThreads + t];
  const Device<float> in(x), parts(x.size()), out(kThreads);
  const Device<unsigned> ticket(std::vector<unsigned>{0});
  return verdict(launch(bug ? &sum_in_last_block<how> : &sum_in_last_block<Ticket::kRight>, kBlocks, kThreads, 0,
                        nullptr, in.data, parts.data, ticket.data, out.data), out, expected);
}
PLANTED(21, ticket_without_fence) { return run<Ticket::kNoFence>(bug); }
PLANTED(22, ticket_by_plain_store) { return run<Ticket::kPlainStore>(bug); }
PLANTED(23, fence_before_the_stores) { return run<Ticket::kFenceTooEarly>(bug); }
PLANTED(24, no_fence_after_the_ticket) { return run<Ticket::kNoFenceAfter>(bug); }

// Threads of one block pass values through global memory.
template <bool kBug>
__global__ void rotate_in_place(float* x, float* y) {
  const unsigned t = threadIdx.x;
  x[t] = x[t] + 1;
  if (!kBug) __syncthreads();
  y[t] = x[(t + 1) % kThreads];
}
PLANTED(25, no_barrier_between_global_accesses) {
  const std::vector<float> x = ramp(kThreads);
  std::vector<float> expected(kThreads);
  for (int t = 0; t < kThreads; ++t) expected[t] = x[(t + 1) % kThreads] + 1;
  const Device<float> memory(x), out(kThreads);
  return verdict(launch(bug ? &rotate_in_place<true> : &rotate_in_place<false>, 1, kThreads, 0, nullptr,
                        memory.data, out.data), out, expected);
}

}  // namespace
}  // namespace selftest
