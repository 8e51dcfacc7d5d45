// SPDX-License-Identifier: Apache-2.0
// Tiling of swa_paged_attention: a plain struct that the host fills and the kernels take by value. Strides are in
// elements.
#pragma once
#include <cstdint>

constexpr int32_t kSwaMaxNodes = 64;  // of a tree: a row of its mask is one word

struct SwaTiling {
  int64_t q_t, q_h, kv_page, kv_slot, out_t, out_h, mask_b, mask_j, angle_row, table_b;
  int64_t T, B, P, page, maxp, window, max_pos;
  int32_t H, D, R, n;                          // R = 0: no rotation; n = 0: no tree
  int32_t pairs;                               // (row, head) pairs that local memory has room for
  int32_t tile_rows, tile_heads, head_tiles;   // query rows and heads of a unit of work; units that share a row
  int32_t kv_buffers;
  float scale;
  int32_t zero_padding, has_sink, wide_table, wide_starts, wide_lens;  // wide: int64
};

// Bytes of the softmax's buffer: nine rows of a float a pair, two tables of blocks, two of bits, and a tile.
inline constexpr int32_t swa_softmax_bytes(int32_t pairs, int32_t groups, int32_t lanes) {
  const int32_t row = (pairs + 63) / 64 * 64, bits = (pairs * groups * (lanes / 32) + 63) / 64 * 64;
  return 4 * (9 * row + 2 * 8 * pairs + 2 * bits + pairs * groups * lanes);
}
