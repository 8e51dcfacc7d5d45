// SPDX-License-Identifier: Apache-2.0
// verify_positions_padding: packs the group starts of the entries that a verify window emits.
// 8 bytes read and 8 written an entry, at most T/r + B of them, plus the B lengths: a launch's latency is the floor.
// ceil(B/8) blocks of 8 warps, a warp a request. Contract: include/dsv4spec/verify.h.
#include "verify_rows.cuh"

namespace dsv4::cuda {
namespace {

__global__ void __launch_bounds__(kPackThreads) pack_kernel(Window window, Pool pool) { pack_entries(window, pool); }

int32_t launch_op(const VerifyPositionsPaddingParams& p, const Launch& l) {
  const Window window{p.positions.at<int64_t>(), ints_of(p.live_seq_lens), p.B, p.n};
  const Pool pool{Divisor(p.ratio > 0 ? p.ratio : 1), Divisor(1), p.ratio > 1, p.out.at<int64_t>(), nullptr,
                  p.out.shape[0], {}, 0};
  return status_of(l, launch(pack_kernel, pack_blocks(p.B), kPackThreads, 0, stream_of(l), window, pool));
}

}  // namespace
DSV4_CUDA_KERNEL(verify_positions_padding, VerifyPositionsPaddingParams, launch_op)
}  // namespace dsv4::cuda
