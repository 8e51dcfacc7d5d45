// SPDX-License-Identifier: Apache-2.0
// verify_metadata: positions and destinations of the C4 and C128 entries that a verify window emits.
// 20 bytes read and 16 written an entry, at most T/4 + B and T/128 + B of them, plus 16 bytes a request: a launch's
// latency is the floor. (ceil(B/8), 2 ratios) blocks of 8 warps, a warp a request. Contract: include/dsv4spec/verify.h.
#include "verify_rows.cuh"

namespace dsv4::cuda {
namespace {

__global__ void __launch_bounds__(kPackThreads)
    metadata_kernel(Window window, Pool c4, Pool c128, int32_t* start_pos, int32_t* seqused) {
  if (blockIdx.y) return pack_entries(window, c128);
  const int64_t b = static_cast<int64_t>(blockIdx.x) * kPackWarps + threadIdx.x;
  if (threadIdx.x < kPackWarps && b < window.B) {
    const int64_t s = window.live(b);
    start_pos[b] = s > 0 ? static_cast<int32_t>(s) : 0;
    seqused[b] = s > 0 ? static_cast<int32_t>(window.n) : 0;
  }
  pack_entries(window, c4);
}

Pool pool_of(int64_t ratio, int64_t page, const TensorView& table, const TensorView& value, const TensorView& loc) {
  return {Divisor(ratio), Divisor(page > 0 ? page : 1), page > 0, value.at<int64_t>(), loc.at<int64_t>(),
          loc.shape[0], ints_of(table), table.shape[1]};
}

int32_t launch_op(const VerifyMetadataParams& p, const Launch& l) {
  const Window window{p.positions.at<int64_t>(), ints_of(p.live_seq_lens), p.B, p.n};
  const Pool c4 = pool_of(4, p.c4_page, p.c4_table, p.c4_positions, p.c4_loc);
  const Pool c128 = pool_of(128, p.c128_page, p.c128_table, p.c128_positions, p.c128_loc);
  return status_of(l, launch(metadata_kernel, dim3(pack_blocks(p.B), 2), kPackThreads, 0, stream_of(l), window, c4, c128,
                             p.start_pos.at<int32_t>(), p.seqused.at<int32_t>()));
}

}  // namespace
DSV4_CUDA_KERNEL(verify_metadata, VerifyMetadataParams, launch_op)
}  // namespace dsv4::cuda
