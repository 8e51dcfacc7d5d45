// SPDX-License-Identifier: Apache-2.0
// Planted bugs in what memory is touched: out of bounds, misaligned, never written, still on its way.
#include "selftest.h"

namespace selftest {
namespace {

constexpr int kThreads = 128;

template <bool kBug>
__global__ void scale_rows(const float* x, float* y, int n) {
  const int i = static_cast<int>(blockIdx.x * kThreads + threadIdx.x);
  if (kBug || i < n) y[i] = 2 * x[i];
}
PLANTED(3, no_bounds_check) {
  constexpr int kCount = 192;  // a block and a half
  const std::vector<float> x = ramp(kCount);
  std::vector<float> expected = x;
  for (float& v : expected) v *= 2;
  const Device<float> in(x), out(kCount);
  return verdict(
      launch(bug ? &scale_rows<true> : &scale_rows<false>, 2, kThreads, 0, nullptr, in.data, out.data, kCount), out,
      expected);
}

__global__ void vector_load(const uint16_t* x, float* y) {
  const uint4 v = *reinterpret_cast<const uint4*>(x + 8 * threadIdx.x);
  y[threadIdx.x] = static_cast<float>((v.x & 0xffff) + (v.w >> 16));
}
PLANTED(4, misaligned_vector_load) {
  std::vector<uint16_t> x(8 * 32 + 8);
  for (size_t i = 0; i < x.size(); ++i) x[i] = static_cast<uint16_t>(i);
  const int first = bug ? 1 : 0;
  std::vector<float> expected(32);
  for (int t = 0; t < 32; ++t) expected[t] = static_cast<float>(2 * (8 * t + first) + 7);
  const Device<uint16_t> in(x);
  const Device<float> out(32);
  return verdict(launch(&vector_load, 1, 32, 0, nullptr, static_cast<const uint16_t*>(in.data) + first, out.data),
                 out, expected);
}

template <bool kBug>
__global__ void read_what_was_written(const float* x, float* y, int n) {
  __shared__ float s[kThreads];
  if (!kBug) s[threadIdx.x] = 0;
  __syncthreads();
  if (static_cast<int>(threadIdx.x) < n) s[threadIdx.x] = x[threadIdx.x];
  __syncthreads();
  y[threadIdx.x] = s[kThreads - 1 - threadIdx.x];
}
PLANTED(5, shared_never_written) {
  const std::vector<float> x = ramp(100);
  std::vector<float> expected(kThreads);
  for (int t = 0; t < kThreads; ++t) expected[t] = kThreads - 1 - t < 100 ? x[kThreads - 1 - t] : 0.f;
  const Device<float> in(x), out(kThreads);
  return verdict(launch(bug ? &read_what_was_written<true> : &read_what_was_written<false>, 1, kThreads, 0, nullptr,
                        in.data, out.data, 100),
                 out, expected);
}

// Two stages of 16 bytes a thread, double-buffered.
template <bool kBug>
__global__ void staged_copy(const float* x, float* y, int stages) {
  DYN_SMEM(float, buffer);
  const int t = static_cast<int>(threadIdx.x);
  const auto fetch = [&](int stage) {
    if (stage < stages) cp_async16(buffer + (stage % 2 * 32 + t) * 4, x + (stage * 32 + t) * 4);
    cp_async_commit();
  };
  fetch(0);
  for (int stage = 0; stage < stages; ++stage) {
    fetch(stage + 1);
    cp_async_wait<kBug ? 2 : 1>();
    __syncthreads();
    for (int i = 0; i < 4; ++i) y[(stage * 32 + t) * 4 + i] = buffer[(stage % 2 * 32 + (t ^ 1)) * 4 + i];
    __syncthreads();
  }
}
PLANTED(6, wait_too_weak) {
  constexpr int kStages = 4;
  const std::vector<float> x = ramp(kStages * 128);
  std::vector<float> expected(x.size());
  for (size_t i = 0; i < x.size(); ++i) expected[i] = x[i ^ 4];
  const Device<float> in(x), out(x.size());
  return verdict(
      launch(bug ? &staged_copy<true> : &staged_copy<false>, 1, 32, 1024, nullptr, in.data, out.data, kStages), out,
      expected);
}

template <bool kBug>
__global__ void count_blocks(float* total) {
  if (threadIdx.x) return;
  if (kBug) *total += 1;
  else atomicAdd(total, 1.f);
}
PLANTED(10, add_of_many_blocks) {
  const Device<float> total(std::vector<float>{0});
  return verdict(launch(bug ? &count_blocks<true> : &count_blocks<false>, 16, 32, 0, nullptr, total.data), total,
                 {16});
}

__global__ void fill_shared(float* y, int n, int writes) {
  DYN_SMEM(float, s);
  for (int i = static_cast<int>(threadIdx.x); i < writes; i += kThreads) s[i] = static_cast<float>(i);
  __syncthreads();
  for (int i = static_cast<int>(threadIdx.x); i < n; i += kThreads) y[i] = s[i];
}
long run_fill(int n, int writes, bool ask) {
  std::vector<float> expected(n);
  for (int i = 0; i < n; ++i) expected[i] = static_cast<float>(i);
  const Device<float> out(n);
  const size_t bytes = static_cast<size_t>(n) * sizeof(float);
  // Not dsv4::cuda::launch, which asks for large shared memory by itself.
  const void* kernel = reinterpret_cast<const void*>(&fill_shared);
  cudaError_t e = cudaFuncSetAttribute(kernel, cudaFuncAttributeMaxDynamicSharedMemorySize,
                                       ask ? static_cast<int>(bytes) : 49152);
  if (e == cudaSuccess) e = cuda_emu::launch(&fill_shared, 1, kThreads, bytes, nullptr, out.data, n, writes);
  return verdict(e, out, expected);
}
PLANTED(14, large_shared_without_asking) { return run_fill(25856, 25856, !bug); }  // 101 KB
PLANTED(15, past_dynamic_shared) { return run_fill(1000, bug ? 1001 : 1000, true); }  // within the 128-byte slack
PLANTED(17, far_past_dynamic_shared) { return run_fill(1024, bug ? 1025 : 1024, true); }

template <bool kBug>
__global__ void static_array(const float* x, float* y, int last) {
  __shared__ float s[64];
  const int t = static_cast<int>(threadIdx.x);
  if (t < 64) s[t] = x[t];
  if (t == last) s[kBug ? last + 1 : last] = 5;
  __syncthreads();
  if (t < 64) y[t] = s[t];
}
PLANTED(16, past_static_shared) {  // changes whatever stands behind the array: for a flavour that stops it
  const std::vector<float> x = ramp(64);
  std::vector<float> expected = x;
  expected[63] = 5;
  const Device<float> in(x), out(64);
  return verdict(
      launch(bug ? &static_array<true> : &static_array<false>, 1, kThreads, 0, nullptr, in.data, out.data, 63), out,
      expected);
}

__global__ void store_pairs(bf16* y) {
  *reinterpret_cast<bf16x2*>(y + 2 * threadIdx.x) = __floats2bfloat162_rn(static_cast<float>(threadIdx.x), 1.f);
}
PLANTED(20, misaligned_pair_store) {
  const int first = bug ? 1 : 0;
  const Device<bf16> memory(66);
  const cudaError_t e = launch(&store_pairs, 1, 32, 0, nullptr, memory.data + first);
  if (e != cudaSuccess) return -1;
  const std::vector<bf16> values = memory.read();
  long wrong = 0;
  for (int t = 0; t < 32; ++t)
    wrong += !(__bfloat162float(values[first + 2 * t]) == t && __bfloat162float(values[first + 2 * t + 1]) == 1);
  return wrong;
}

}  // namespace
}  // namespace selftest
