// SPDX-License-Identifier: Apache-2.0
// Planted bugs of bulk copies into the blocks of a cluster: two rounds of rows through one place in shared memory, each
// block bringing its share to all, then each adding up what came.
#include "cluster.cuh"
#include "selftest.h"

namespace selftest {
namespace {

constexpr int kThreads = 64, kBlocks = 4, kClusters = 2, kRounds = 2, kRow = 32;  // floats of a block's share
constexpr int kAll = kRow * kBlocks, kShared = kAll * 4 + 16;
enum class Bulk {
  kRight, kNoWait, kEarlyReuse, kTooManyBytes, kTooFewBytes, kOtherParity, kEarlyExit, kNoInitFence, kNoClusterBarrier,
  kNoProxyFence, kMisaligned, kPastTheEnd, kNoSuchBlock, kOverwritten, kNoSecondArrival, kOutOfBounds, kUnwaitedArrival,
  kLateInit, kNotToAll
};

template <Bulk how>
__global__ void sum_of_rows(const float* x, float* y) {
  DYN_SMEM(float, rows);
  uint64_t* landed = reinterpret_cast<uint64_t*>(rows + kAll);
  const unsigned t = threadIdx.x, rank = cluster_rank(), cluster = blockIdx.x / kBlocks;
  if (how == Bulk::kLateInit) cluster_sync();
  if (t == 0) mbarrier_init(landed, 1);
  if (t == 0 && how != Bulk::kNoInitFence) mbarrier_fence();
  if (how != Bulk::kNoClusterBarrier && how != Bulk::kLateInit) cluster_sync();
  else __syncthreads();
  float sum = 0;
#pragma unroll 1
  for (int round = 0; round < kRounds; ++round) {
    const float* from = x + ((cluster * kRounds + static_cast<unsigned>(round)) * kBlocks + rank) * kRow;
    if (t == 0) {
      constexpr unsigned kBytes = kAll * 4, kOff = how == Bulk::kTooManyBytes ? 16 : how == Bulk::kTooFewBytes ? -16 : 0;
      if (how != Bulk::kNoSecondArrival || round == 0) mbarrier_arrive(landed, kBytes + kOff);
      const unsigned to = rank * kRow + (how == Bulk::kMisaligned ? 1 : how == Bulk::kPastTheEnd ? kAll : 0);
      const int64_t off = how == Bulk::kOutOfBounds && blockIdx.x + 1 == gridDim.x && round ? 16 : 0;
      constexpr uint16_t kMask = how == Bulk::kNoSuchBlock ? 0x1f : how == Bulk::kNotToAll ? 0xe : 0xf;
      copy_bulk(rows + to, from + off, kRow * 4, landed, kMask);
    }
    if (how == Bulk::kEarlyExit && rank == 1 && round == 1) break;
    if (how == Bulk::kOverwritten && t == 1 && round == 0) rows[kAll] = 1;
    if (how != Bulk::kNoWait) mbarrier_wait(landed, static_cast<unsigned>(round) ^ (how == Bulk::kOtherParity));
#pragma unroll 1
    for (int i = 0; i < kAll; ++i) sum += rows[i];
    if (round + 1 == kRounds) break;
    if (how != Bulk::kEarlyReuse) cluster_sync();
    else __syncthreads();
    if (t < kRow) rows[rank * kRow + t] = sum;
    if (how != Bulk::kNoProxyFence) proxy_fence();
    if (how != Bulk::kEarlyReuse) cluster_arrive(), cluster_wait();
    else __syncthreads();
  }
  y[blockIdx.x * kThreads + t] = sum;
  if (how == Bulk::kUnwaitedArrival) cluster_arrive();
  else if (how != Bulk::kEarlyExit) cluster_sync();
}

template <Bulk how>
long run(bool bug) {
  const std::vector<float> x = ramp(kClusters * kRounds * kAll);
  std::vector<float> expected(kThreads * kBlocks * kClusters);
  for (size_t i = 0; i < expected.size(); ++i)
    for (int k = 0; k < kRounds * kAll; ++k)
      expected[i] += x[i / (kThreads * kBlocks) * kRounds * kAll + static_cast<size_t>(k)];
  const Device<float> in(x), out(expected.size());
  return verdict(launch_clusters(bug ? &sum_of_rows<how> : &sum_of_rows<Bulk::kRight>, kBlocks, kBlocks * kClusters,
                                 kThreads, kShared, nullptr, in.data, out.data), out, expected);
}
PLANTED(40, bulk_read_without_a_wait) { return run<Bulk::kNoWait>(bug); }
PLANTED(41, bulk_copy_into_what_another_block_reads) { return run<Bulk::kEarlyReuse>(bug); }
PLANTED(42, more_bytes_expected_than_come) { return run<Bulk::kTooManyBytes>(bug); }
PLANTED(43, fewer_bytes_expected_than_come) { return run<Bulk::kTooFewBytes>(bug); }
PLANTED(44, wait_for_the_other_parity) { return run<Bulk::kOtherParity>(bug); }
PLANTED(45, block_returns_before_its_copies_land) { return run<Bulk::kEarlyExit>(bug); }
PLANTED(46, no_fence_after_mbarrier_init) { return run<Bulk::kNoInitFence>(bug); }
PLANTED(47, no_cluster_barrier_after_mbarrier_init) { return run<Bulk::kNoClusterBarrier>(bug); }
PLANTED(48, no_proxy_fence_before_a_copy_overwrites) { return run<Bulk::kNoProxyFence>(bug); }
PLANTED(49, bulk_copy_to_a_misaligned_place) { return run<Bulk::kMisaligned>(bug); }
PLANTED(50, bulk_copy_past_the_end) { return run<Bulk::kPastTheEnd>(bug); }
PLANTED(51, bulk_copy_to_no_such_block) { return run<Bulk::kNoSuchBlock>(bug); }
PLANTED(52, mbarrier_overwritten) { return run<Bulk::kOverwritten>(bug); }
PLANTED(53, no_arrival_in_the_second_phase) { return run<Bulk::kNoSecondArrival>(bug); }
PLANTED(54, bulk_copy_reads_out_of_bounds) { return run<Bulk::kOutOfBounds>(bug); }
PLANTED(55, returns_without_waiting_for_the_cluster) { return run<Bulk::kUnwaitedArrival>(bug); }
PLANTED(56, mbarrier_initialised_after_the_cluster_barrier) { return run<Bulk::kLateInit>(bug); }
PLANTED(58, bulk_copy_to_too_few_blocks) { return run<Bulk::kNotToAll>(bug); }

}  // namespace
}  // namespace selftest
