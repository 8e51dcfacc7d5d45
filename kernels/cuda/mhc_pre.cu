// SPDX-License-Identifier: Apache-2.0
// mhc_pre: y, post and comb of a sub-layer from the residual streams. Contract: include/dsv4spec/mhc.h.
//
// Two launches (mhc_project.cuh, mhc_finish.cuh), no ticket and no memset: sums need every slice of a row
// before a stream is weighted, and the second launch spreads that over all tokens, which the last block of a
// split could not.
//
// Flash in bf16 (hc 4, d 4096, 24 columns): fn 1.57 MB once, then a token reads 32.8 KB and writes 8.3 KB;
// 0.85 Mflop a token, its products three times on tensor cores (2.6 Mflop). Floor at 4.8 TB/s: 0.34 us for 1
// token, 0.87 us for 64, 35 us for 4096.
//
// The row is read again for y, from the L2 up to some thousand tokens. A block that kept whole rows in shared
// memory would hold six, and read all of fn (from the L2) for every six tokens: 1 GB for 4096, against 0.13
// GB for the second reading. That reading is what separates a long batch from the floor (4096 tokens: up to
// 63 us of traffic). Slices of one row in a cluster of blocks that exchange their sums would avoid it, on
// sm_90 and newer alone.
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
