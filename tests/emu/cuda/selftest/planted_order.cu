// SPDX-License-Identifier: Apache-2.0
// Planted bugs in the order of threads: barriers that are missing, or that not all threads come to.
#include "selftest.h"

namespace selftest {
namespace {

constexpr int kThreads = 128, kWarps = 4;

std::vector<float> block_totals(const std::vector<float>& x, size_t results) {
  float total = 0;
  for (float v : x) total += v;  // small whole numbers: exact in any order
  return std::vector<float>(results, total);
}

template <bool kBug>
__global__ void sum_of_warps(const float* x, float* y) {
  __shared__ float sums[kWarps];
  const float sum = warp_sum(x[threadIdx.x]);
  if (threadIdx.x % 32 == 0) sums[threadIdx.x / 32] = sum;
  if (!kBug) __syncthreads();
  y[threadIdx.x] = sums[0] + sums[1] + sums[2] + sums[3];
}
PLANTED(1, no_barrier_after_warp_sums) {
  const std::vector<float> x = ramp(kThreads);
  const Device<float> in(x), out(kThreads);
  const cudaError_t e =
      launch(bug ? &sum_of_warps<true> : &sum_of_warps<false>, 1, kThreads, 0, nullptr, in.data, out.data);
  return verdict(e, out, block_totals(x, kThreads));
}

template <bool kBug>
__global__ void barrier_for_some(const float* x, float* y) {
  __shared__ float s[kThreads];
  s[threadIdx.x] = x[threadIdx.x];
  if (!kBug || threadIdx.x < 64) __syncthreads();
  y[threadIdx.x] = s[threadIdx.x];
}
PLANTED(2, barrier_under_a_condition) {
  const std::vector<float> x = ramp(kThreads);
  const Device<float> in(x), out(kThreads);
  return verdict(
      launch(bug ? &barrier_for_some<true> : &barrier_for_some<false>, 1, kThreads, 0, nullptr, in.data, out.data),
      out, x);
}

// Each thread reads its right neighbour's value: in ascending order nothing is overwritten too early.
template <bool kBug>
__global__ void reused_buffer(const float* x, float* y, int rounds) {
  __shared__ float s[kThreads];
  const int t = static_cast<int>(threadIdx.x), right = t + 1 < kThreads ? t + 1 : t;
  float sum = 0;
  for (int i = 0; i < rounds; ++i) {
    s[t] = x[i * kThreads + t];
    __syncthreads();
    sum += s[right];
    if (!kBug) __syncthreads();
  }
  y[t] = sum;
}
PLANTED(7, no_barrier_before_reuse) {
  constexpr int kRounds = 3;
  const std::vector<float> x = ramp(kThreads * kRounds);
  std::vector<float> expected(kThreads);
  for (int t = 0; t < kThreads; ++t)
    for (int i = 0; i < kRounds; ++i) expected[t] += x[i * kThreads + (t + 1 < kThreads ? t + 1 : t)];
  const Device<float> in(x), out(kThreads);
  return verdict(launch(bug ? &reused_buffer<true> : &reused_buffer<false>, 1, kThreads, 0, nullptr, in.data,
                        out.data, kRounds),
                 out, expected);
}

template <bool kBug>
__global__ void split_warp(const float* x, float* y) {
  const int t = static_cast<int>(threadIdx.x);
  float v = x[t];
  if (!kBug) {
    v = __shfl_xor_sync(kAllLanes, v, 1);
  } else if (t % 32 < 16) {
    v = __shfl_xor_sync(kAllLanes, v, 1);
  } else {
    v = __shfl_xor_sync(kAllLanes, v + 0.f, 1);
  }
  y[t] = v;
}
PLANTED(8, shuffle_in_two_branches) {
  const std::vector<float> x = ramp(32);
  std::vector<float> expected(32);
  for (int t = 0; t < 32; ++t) expected[t] = x[t ^ 1];
  const Device<float> in(x), out(32);
  return verdict(launch(bug ? &split_warp<true> : &split_warp<false>, 1, 32, 0, nullptr, in.data, out.data), out,
                 expected);
}

template <bool kBug>
__global__ void one_slot(const float* x, float* y) {
  __shared__ float slot;
  if (kBug ? threadIdx.x % 32 == 0 : threadIdx.x == 0) slot = x[0];  // the same value from every warp
  __syncthreads();
  y[threadIdx.x] = slot;
}
PLANTED(11, warps_write_one_slot) {
  const std::vector<float> x = ramp(kThreads);
  const Device<float> in(x), out(kThreads);
  return verdict(launch(bug ? &one_slot<true> : &one_slot<false>, 1, kThreads, 0, nullptr, in.data, out.data), out,
                 std::vector<float>(kThreads, x[0]));
}

template <bool kBug>
__global__ void reduce_in_warp_0(const float* x, float* y) {
  __shared__ float sums[kWarps];
  const float sum = warp_sum(x[threadIdx.x]);
  if (threadIdx.x % 32 == 0) sums[threadIdx.x / 32] = sum;
  if (!kBug) __syncthreads();
  if (threadIdx.x >= 32) return;
  const float total = warp_sum(threadIdx.x < kWarps ? sums[threadIdx.x] : 0.f);
  if (threadIdx.x == 0) y[0] = total;
}
PLANTED(12, no_barrier_before_last_reduction) {
  const std::vector<float> x = ramp(kThreads);
  const Device<float> in(x), out(1);
  return verdict(
      launch(bug ? &reduce_in_warp_0<true> : &reduce_in_warp_0<false>, 1, kThreads, 0, nullptr, in.data, out.data),
      out, block_totals(x, 1));
}

// A shuffle brings the lanes together, but does not order their memory.
template <bool kBug>
__global__ void exchange_in_warp(const float* x, float* y) {
  __shared__ float s[32];
  const int t = static_cast<int>(threadIdx.x);
  s[t] = x[t];
  if (!kBug) __syncwarp();
  const float one = __shfl_sync(kAllLanes, 1.f, 0);
  y[t] = s[t ^ 1] * one;
}
PLANTED(13, no_syncwarp) {
  const std::vector<float> x = ramp(32);
  std::vector<float> expected(32);
  for (int t = 0; t < 32; ++t) expected[t] = x[t ^ 1];
  const Device<float> in(x), out(32);
  return verdict(
      launch(bug ? &exchange_in_warp<true> : &exchange_in_warp<false>, 1, 32, 0, nullptr, in.data, out.data), out,
      expected);
}

// Each lane writes what it has read to another lane's place, as rows are turned where they lie.
template <bool kBug>
__global__ void turn_in_place(const float* x, float* y) {
  __shared__ float s[32];
  const int t = static_cast<int>(threadIdx.x);
  s[t] = x[t];
  __syncwarp();
  const float mine = s[t];
  if (!kBug) __syncwarp();
  s[t ^ 5] = mine;
  __syncwarp();
  y[t] = s[t];
}
PLANTED(57, no_syncwarp_before_turning) {
  const std::vector<float> x = ramp(32);
  std::vector<float> expected(32);
  for (int t = 0; t < 32; ++t) expected[t] = x[t ^ 5];
  const Device<float> in(x), out(32);
  return verdict(launch(bug ? &turn_in_place<true> : &turn_in_place<false>, 1, 32, 0, nullptr, in.data, out.data), out,
                 expected);
}

template <bool kBug>
__global__ void early_return(const float* x, float* y) {
  __shared__ float s[kThreads];
  if (kBug && threadIdx.x < 32) return;
  s[threadIdx.x] = x[threadIdx.x];
  __syncthreads();
  y[threadIdx.x] = s[threadIdx.x];
}
PLANTED(18, warp_returns_before_barrier) {
  const std::vector<float> x = ramp(kThreads);
  const Device<float> in(x), out(kThreads);
  return verdict(
      launch(bug ? &early_return<true> : &early_return<false>, 1, kThreads, 0, nullptr, in.data, out.data), out, x);
}

}  // namespace
}  // namespace selftest
