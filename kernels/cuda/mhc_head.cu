// SPDX-License-Identifier: Apache-2.0
// mhc_head: y from the residual streams after the last layer. Contract: include/dsv4spec/mhc.h.
//
// The launches of mhc_pre.cu, with hc columns and no coefficients to write. Flash in bf16: fn 0.26 MB once, then a
// token reads 32.8 KB and writes 8.2 KB; 0.2 Mflop (three times its product on tensor cores). Floor at 4.8 TB/s: 0.07
// us for 1 token, 0.60 us for 64, 35 us for 4096 (63 us where two launches read twice).
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
