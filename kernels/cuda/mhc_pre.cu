// SPDX-License-Identifier: Apache-2.0
// mhc_pre: y, post and comb of a sub-layer from the residual streams. Contract: include/dsv4spec/mhc.h.
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
