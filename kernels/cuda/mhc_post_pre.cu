// SPDX-License-Identifier: Apache-2.0
// mhc_post_pre: mhc_post of a sub-layer, then mhc_pre of the next. Contract: include/dsv4spec/mhc.h.
//
// The launches of mhc_pre.cu, instead of those and one more of the single ops: the new residual is formed in the
// registers that hold the operands of its product, rounded as it is written. On clusters (sm_90 and newer, bf16, hc 4,
// d up to 8192) the old residual is read once and the new one written once: y comes from the same registers. In two
// launches, y reads it again, from the L2 for up to some hundred tokens.
//
// Flash in bf16: fn 1.57 MB once, then a token reads 41.0 KB and writes 41.1 KB; 1.0 Mflop (and 2.6 on tensor cores).
// Floor at 4.8 TB/s: 0.34 us for 1 token, 1.4 us for 64, 70 us for 4096 (98 us with the second reading).
#include "mhc_launch.cuh"

namespace dsv4::cuda {
namespace {

uint64_t workspace_size(const MhcPostPreParams& p) {
  return mhc::workspace_bytes(p, static_cast<int>((2 + p.hc) * p.hc));
}

int32_t launch_op(const MhcPostPreParams& p, const Launch& l) {
  const size_t size = mhc::stream_size(p.residual);
  mhc::Rows rows = mhc::rows_of(p, p.residual, size);
  rows.vector = rows.vector && aligned16(p.y, size) && aligned16(p.residual_out, size);
  rows.y = p.y.data, rows.y_t = p.y.stride[0];
  rows.post = p.post.at<float>(), rows.post_t = p.post.stride[0];
  rows.comb = p.comb.at<float>(), rows.comb_t = p.comb.stride[0], rows.comb_j = p.comb.stride[1];
  rows.out = p.residual_out.data, rows.out_t = p.residual_out.stride[0], rows.out_i = p.residual_out.stride[1];
  mhc::Finish ends = mhc::finish_of(p, p.residual_out, p.y_out, size);
  mhc::set_coefficients(ends, p.post_out, p.comb_out, p.sinkhorn_iters);
  const bool half = p.residual.dtype == kBF16;
  return status_of(l, p.hc == 4   ? mhc::run<4, 24, true>(rows, ends, p.T, half, l)
                      : p.hc == 2 ? mhc::run<2, 8, true>(rows, ends, p.T, half, l)
                                  : mhc::run<1, 3, true>(rows, ends, p.T, half, l));
}

}  // namespace
DSV4_CUDA_KERNEL_WITH_WORKSPACE(mhc_post_pre, MhcPostPreParams, launch_op, workspace_size)
}  // namespace dsv4::cuda
