// SPDX-License-Identifier: Apache-2.0
// Planted bugs of blocks that read each other's shared memory, and what clusters promise.
#include "cluster.cuh"
#include "selftest.h"

#define SELFTEST_API extern "C" __attribute__((visibility("default")))

namespace selftest {
namespace {

constexpr int kThreads = 64, kBlocks = 4, kClusters = 3, kCount = kThreads * kBlocks * kClusters;
enum class Cluster { kRight, kNoBarrierBefore, kNoBarrierBehind, kEarlyReuse, kNotWritten, kPastTheEnd, kNoSuchBlock };

// Twice: y = the sum of what all blocks of the cluster bring at this place.
template <Cluster how>
__global__ void sum_of_cluster(const float* x, float* y) {
  DYN_SMEM(float, mine);
  __shared__ float kept[kThreads];  // a block's own, whoever runs in between
  const unsigned t = threadIdx.x, at = blockIdx.x * kThreads + t;
  kept[t] = x[at];
  if (how == Cluster::kNoBarrierBehind) cluster_sync();
#pragma unroll 1
  for (int round = 0; round < 2; ++round) {
    if (how != Cluster::kNotWritten || t != 5 || cluster_rank() != 1) mine[t] = kept[t] + static_cast<float>(round);
    if (how != Cluster::kNoBarrierBefore || round) cluster_sync();
    float sum = 0;
#pragma unroll 1
    for (unsigned b = 0; b < cluster_size(); ++b) {
      const unsigned other = how == Cluster::kNoSuchBlock ? b + 1 : b;
      sum += cluster_load(mine + t + (how == Cluster::kPastTheEnd ? 1 : 0), other);
    }
    y[round * kCount + at] = sum;
    if (how == Cluster::kNoBarrierBehind ? round == 0 : how != Cluster::kEarlyReuse || round) cluster_sync();
  }
}

template <Cluster how>
long run(bool bug) {
  const std::vector<float> x = ramp(kCount);
  std::vector<float> expected(2 * kCount);
  for (int i = 0; i < 2 * kCount; ++i)
    for (int b = 0; b < kBlocks; ++b)
      expected[i] += x[i % kCount / (kThreads * kBlocks) * kThreads * kBlocks + b * kThreads + i % kThreads] +
                     static_cast<float>(i / kCount);
  const Device<float> in(x), out(2 * kCount);
  return verdict(launch_clusters(bug ? &sum_of_cluster<how> : &sum_of_cluster<Cluster::kRight>, kBlocks,
                                 kBlocks * kClusters, kThreads, kThreads * sizeof(float), nullptr, in.data, out.data),
                 out, expected);
}
PLANTED(26, read_before_the_cluster_barrier) { return run<Cluster::kNoBarrierBefore>(bug); }
PLANTED(27, no_cluster_barrier_before_the_end) { return run<Cluster::kNoBarrierBehind>(bug); }
PLANTED(28, no_cluster_barrier_before_reuse) { return run<Cluster::kEarlyReuse>(bug); }
PLANTED(29, never_written_in_another_block) { return run<Cluster::kNotWritten>(bug); }
PLANTED(30, past_the_end_of_another_block) { return run<Cluster::kPastTheEnd>(bug); }
PLANTED(31, no_such_block_in_the_cluster) { return run<Cluster::kNoSuchBlock>(bug); }

// Blocks of a cluster write one global value.
template <bool kBug>
__global__ void first_of_cluster(float* y) {
  if (threadIdx.x == 0 && cluster_rank() == 0) y[0] = 1;
  if (!kBug) cluster_sync();
  if (threadIdx.x == 0 && cluster_rank() == 1) y[0] = y[0] + 1;
}
PLANTED(32, no_cluster_barrier_between_global_accesses) {
  const Device<float> out(1);
  const auto kernel = bug ? &first_of_cluster<true> : &first_of_cluster<false>;
  return verdict(launch_clusters(kernel, 2, 2, 32, 0, nullptr, out.data), out, std::vector<float>{2});
}

__global__ void uneven(float* y) {  // threads that have returned are not waited for
  if (threadIdx.x >= 8 * (1 + cluster_rank())) return;
  cluster_sync();
  y[blockIdx.x * blockDim.x + threadIdx.x] = 1;
}
__global__ void barrier_alone() { cluster_sync(); }

}  // namespace
}  // namespace selftest

using namespace selftest;

SELFTEST_API int selftest_cluster_launch(int cluster, int grid, int large) {
  const auto kernel = reinterpret_cast<const void*>(&barrier_alone);
  cudaFuncSetAttribute(kernel, cudaFuncAttributeNonPortableClusterSizeAllowed, large);
  const unsigned blocks = static_cast<unsigned>(cluster);
  return cuda_emu::launch_in_clusters(&barrier_alone, blocks, static_cast<unsigned>(grid), 32, 0, nullptr);
}
SELFTEST_API int selftest_uneven_cluster(float* y) { return launch_clusters(&uneven, 2, 2, 32, 0, nullptr, y); }
SELFTEST_API int selftest_active_clusters(int cluster, int threads, size_t smem) {
  return active_clusters(reinterpret_cast<const void*>(&barrier_alone), static_cast<unsigned>(cluster),
                         static_cast<unsigned>(threads), smem);
}
