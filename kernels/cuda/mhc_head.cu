// SPDX-License-Identifier: Apache-2.0
// mhc_head: y from the residual streams after the last layer. Contract: include/dsv4spec/mhc.h.
#include "mhc_launch.cuh"

namespace dsv4::cuda {
namespace {

uint64_t workspace_size(const MhcHeadParams& p) { return mhc::workspace_bytes(p, static_cast<int>(p.hc)); }

int32_t launch_op(const MhcHeadParams& p, const Launch& l) {
  const size_t size = mhc::stream_size(p.residual);
  const mhc::Rows rows = mhc::rows_of(p, p.residual, size);
  const mhc::Finish ends = mhc::finish_of(p, p.residual, p.y, size);
  const bool half = p.residual.dtype == kBF16;
  return status_of(l, p.hc == 4   ? mhc::run<4, 4, false>(rows, ends, p.T, half, l)
                      : p.hc == 2 ? mhc::run<2, 2, false>(rows, ends, p.T, half, l)
                                  : mhc::run<1, 1, false>(rows, ends, p.T, half, l));
}

}  // namespace
DSV4_CUDA_KERNEL_WITH_WORKSPACE(mhc_head, MhcHeadParams, launch_op, workspace_size)
}  // namespace dsv4::cuda
