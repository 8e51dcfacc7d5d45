// SPDX-License-Identifier: Apache-2.0
// mhc_post on vector cores: tiles of rows, so many that every core gets one where the rows are few.
#include "../launch.h"
#include "../mhc_post_tiling.h"

#define DECLARE(suffix)                                                                                      \
  DSV4_ASCEND_DECLARE(dsv4_mhc_post_##suffix, GM_ADDR, GM_ADDR, GM_ADDR, GM_ADDR, GM_ADDR, MhcPostTiling)
DSV4_ASCEND_STREAMS(DECLARE);

namespace dsv4::ascend {
namespace {

constexpr int64_t kMaxTile = 2048;  // channels; the unified buffer's table is in mhc_post.cpp
constexpr int64_t kMinTile = 256;   // bursts of 512 bytes

int32_t launch(const MhcPostParams& p, const Launch& l) {
  if (p.T == 0 || p.d == 0) return DSV4_OK;
  const int64_t cores = vector_cores();
  const int64_t wanted = ceil_div(p.d, ceil_div<int64_t>(cores, p.T));  // every core at work
  int64_t tile = round_up<int64_t>(wanted > kMinTile ? wanted : kMinTile, 64);
  tile = tile < kMaxTile ? tile : kMaxTile;
  tile = round_up<int64_t>(ceil_div(p.d, ceil_div(p.d, tile)), 64);  // tiles of a row are of one size
  const MhcPostTiling tiling{p.y.stride[0],
                             p.residual.stride[0],
                             p.residual.stride[1],
                             p.post.stride[0],
                             p.comb.stride[0],
                             p.comb.stride[1],
                             p.out.stride[0],
                             p.out.stride[1],
                             p.T,
                             ceil_div(p.d, tile),
                             static_cast<int32_t>(p.hc),
                             static_cast<int32_t>(p.d),
                             static_cast<int32_t>(tile)};
  const int64_t units = p.T * tiling.tiles, blocks = units < cores ? units : cores;
#define LAUNCH(suffix)                                                                                       \
  DSV4_ASCEND_LAUNCH(dsv4_mhc_post_##suffix, blocks, l, address(p.y), address(p.residual), address(p.post),           \
                     address(p.comb), address(p.out), tiling)
  return DSV4_ASCEND_STREAM_LAUNCH(p.residual.dtype, LAUNCH);
#undef LAUNCH
}

}  // namespace
DSV4_ASCEND_KERNEL(mhc_post, MhcPostParams, launch)
DSV4_ASCEND_FLOAT16(mhc_post)
}  // namespace dsv4::ascend
