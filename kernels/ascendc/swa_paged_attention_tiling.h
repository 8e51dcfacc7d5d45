// SPDX-License-Identifier: Apache-2.0
// Tiling of swa_paged_attention: a plain struct that the host fills and the kernels take by value. Strides
// are in elements.
#pragma once
#include <cstdint>

constexpr int32_t kSwaMaxNodes = 64;  // of a tree: a row of its mask is one word

struct SwaTiling {
  int64_t q_t, q_h, kv_page, kv_slot, out_t, out_h, mask_b, mask_j, angle_row, table_b;
  int64_t T, B, P, page, maxp, window, max_pos;
  int32_t H, D, R, n;  // R = 0: no rotation; n = 0: no tree
  int32_t pairs;       // (row, head) pairs that local memory has room for
  int32_t tile_rows, tile_heads,
      head_tiles;           // query rows and heads of a unit of work; units that share a row
  int32_t part_rows, part_heads;  // with the cube: rows and heads of a tile, of which a unit has several
  int32_t kv_buffers;       // of keys, or places in L1 that hold keys
  int32_t grain;            // logical positions at which tiles of keys begin: its multiples
  int32_t kv_rows, online;  // keys of a place in L1; whether a row's keys may take several parts
  int32_t turned;           // the trailing columns that the vector cores write, the others come from the cube
  float scale;
  int32_t zero_padding, has_sink, wide_table, wide_starts, wide_lens;  // wide: int64
};

// Bytes of the softmax's buffer: six rows of a float a pair, two tables of blocks, two of bits, and a tile.
inline constexpr int32_t swa_softmax_bytes(int32_t pairs, int32_t groups, int32_t lanes) {
  const int32_t row = (pairs + 63) / 64 * 64, bits = (pairs * groups * (lanes / 32) + 63) / 64 * 64;
  return 4 * (6 * row + 2 * 8 * pairs + 2 * bits + pairs * groups * lanes);
}

// Scratch of a cube core and its two vector cores, in bytes. Everything is there twice, for two tasks (or
// sets of keys) that follow each other: scores and weights in two 16-bit halves of 256 keys a pair, the sums
// of `columns` dims, queries and keys without NaN and infinity, and which keys those replaced.
struct SwaScratch {
  int64_t weights, sums, queries, keys, words, bytes;  // where each begins; scores begin at 0
};
inline constexpr SwaScratch swa_scratch(int64_t pairs, int64_t D, int64_t columns, int64_t kv_rows) {
  const int64_t weights = 2 * pairs * 256 * 4, sums = weights + 2 * 2 * pairs * 256 * 2;
  const int64_t queries = sums + 2 * pairs * columns * 4, keys = queries + 2 * pairs * D * 2;
  const int64_t words = (keys + 2 * kv_rows * D * 2 + 511) / 512 * 512;
  return {weights, sums, queries, keys, words, words + 512};
}
