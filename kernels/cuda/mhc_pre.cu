// SPDX-License-Identifier: Apache-2.0
// mhc_pre: y, post and comb of a sub-layer from the residual streams. Contract: include/dsv4spec/mhc.h.
//
// bf16, hc 4 and d up to 8192 on sm_90 and newer: one launch of clusters of up to 16 blocks (mhc_cluster.cuh), for any
// number of tokens. Every row is read once; the sums of its slices and the weights of y go through the shared memory
// of the cluster. Else two launches (mhc_project.cuh, mhc_finish.cuh), no ticket and no memset: sums need every slice
// of a row before a stream is weighted, and the second launch reads the row again, from the L2 up to some thousand
// tokens.
//
// Flash in bf16 (hc 4, d 4096, 24 columns): fn 1.57 MB once, then a token reads 32.8 KB and writes 8.3 KB; 0.85 Mflop
// a token, its products three times on tensor cores (2.6 Mflop). Floor at 4.8 TB/s: 0.34 us for 1 token, 0.87 us for
// 64, 35 us for 4096. A block's 98 KB of fn stay in its shared memory (147 KB, in three parts), so each cluster
// reads fn once: up to 16 tokens one cluster, then up to eight that share the tokens (12.6 MB, all but the first
// time from the L2). One cluster is 16 multiprocessors, whose 98 KB take 0.9 us at 64 bytes a cycle each and 2 us at an
// even share of the L2; a split over all of them needs a second launch, or a memset and a ticket, and reads rows again.
// The model of docs/benchmarks.md says 4.2 us for 1 token and 5.0 for 16, against 4.7 and 5.3 for two launches on 112
// blocks (CUDA_EMU_CAPABILITY=80), which move 1.42 times the bytes for 16; Pro: 5.7 and 7.0, against 5.2 and 6.2.
//
// Pro (d 7168): fn 2.75 MB, then a token reads 57.3 KB and writes 14.4 KB; floor 0.59 us for 1 token, 1.5 us for 64, 62
// us for 4096. 14 of a cluster's 16 blocks hold 192 KB of fn each, uncut (mhc_wide.cuh). They arrive in 1.8 to 3.5 us, and
// are cut and multiplied as they do, in 1,900 instructions of a warp for 16 tokens, 2 us: a tile on each of eight
// clusters, 128 tokens, is bound by that and the cluster's barriers. So are more tokens: some 4 us (estimated) for every
// 128, whose rows are 9.2 MB, 1.9 us of memory. Two launches move 16.4 MB for them, 3.4 us, and wait twice. To read fn
// again for each tile, from the L2, would be 2.75 MB where the second reading of its rows is 0.9 MB.
#include "mhc_launch.cuh"

namespace dsv4::cuda {
namespace {

uint64_t workspace_size(const MhcPreParams& p) {
  return mhc::workspace_bytes(p, static_cast<int>((2 + p.hc) * p.hc));
}

int32_t launch_op(const MhcPreParams& p, const Launch& l) {
  const size_t size = mhc::stream_size(p.residual);
  const mhc::Rows rows = mhc::rows_of(p, p.residual, size);
  mhc::Finish ends = mhc::finish_of(p, p.residual, p.y, size);
  mhc::set_coefficients(ends, p.post, p.comb, p.sinkhorn_iters);
  const bool half = p.residual.dtype == kBF16;
  return status_of(l, p.hc == 4   ? mhc::run<4, 24, false>(rows, ends, p.T, half, l)
                      : p.hc == 2 ? mhc::run<2, 8, false>(rows, ends, p.T, half, l)
                                  : mhc::run<1, 3, false>(rows, ends, p.T, half, l));
}

}  // namespace
DSV4_CUDA_KERNEL_WITH_WORKSPACE(mhc_pre, MhcPreParams, launch_op, workspace_size)
}  // namespace dsv4::cuda
