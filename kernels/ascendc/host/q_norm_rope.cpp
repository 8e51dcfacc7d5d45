// SPDX-License-Identifier: Apache-2.0
// q_norm_rope on vector cores: tiles of up to 16 heads of a token.
#include "../q_norm_rope_tiling.h"
#include "rope_common.h"

#define DECLARE(suffix)                                                                                      \
  DSV4_ASCEND_DECLARE(dsv4_q_norm_rope_##suffix, GM_ADDR, GM_ADDR, GM_ADDR, GM_ADDR, QNormRopeTiling)
DSV4_ASCEND_STREAMS(DECLARE);

namespace dsv4::ascend {
namespace {

int32_t launch(const QNormRopeParams& p, const Launch& l) {
  const int64_t cores = vector_cores(), least = ceil_div<int64_t>(p.T * p.H, cores);
  QNormRopeTiling v{};
  v.row = rope_rows(p.D, p.R, least < p.H ? least : p.H, p.q.dtype, false, p.eps);
  v.tiles = ceil_div<int64_t>(p.H, v.row.rows);
  v.row.rows = static_cast<int32_t>(ceil_div(p.H, v.tiles));  // tiles of one size
  v.T = p.T, v.max_pos = p.max_pos, v.H = static_cast<int32_t>(p.H), v.zero_padding = p.zero_padding;
  v.q_t = p.q.stride[0], v.q_h = p.q.stride[1], v.out_t = p.out.stride[0], v.out_h = p.out.stride[1];
  v.cos_sin_row = p.cos_sin.stride[0];
  const int64_t units = v.T * v.tiles, blocks = units < cores ? units : cores;
#define LAUNCH(suffix)                                                                                       \
  DSV4_ASCEND_LAUNCH(dsv4_q_norm_rope_##suffix, blocks, l, address(p.q), address(p.cos_sin), address(p.positions),\
                     address(p.out), v)
  return DSV4_ASCEND_STREAM_LAUNCH(p.q.dtype, LAUNCH);
#undef LAUNCH
}

}  // namespace
DSV4_ASCEND_KERNEL(q_norm_rope, QNormRopeParams, launch)
DSV4_ASCEND_FLOAT16(q_norm_rope)
}  // namespace dsv4::ascend
