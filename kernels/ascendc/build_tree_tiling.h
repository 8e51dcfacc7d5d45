// SPDX-License-Identifier: Apache-2.0
#pragma once
#include "ints_tiling.h"

enum BuildTreeMask : int32_t { kTreeFull, kTreeRows, kTreeBits };  // DSV4_TREE_MASK_*

struct BuildTreeTiling {
  LineSplit requests;
  LineSplit mask;  // bytes of the flat mask; only in mode full
  int64_t B, n, width;
  Division topk;
  IntRows live;
  int64_t parent_stride, selected_stride, draft_stride;  // bytes
  int64_t tokens_stride, retrieve_stride, next_stride, sibling_stride;
  int32_t mask_mode, item, with_status;  // item: bytes of a row of bits
  int32_t whole_list;                    // 1: parent lists fit local memory
  int64_t rows;                          // requests at a time
};

constexpr int64_t kTreeBytes = 140 * 1024;  // local memory for them
constexpr int64_t kTreeRequests = 64;
constexpr int64_t kTreeList = 16 * 1024;  // bytes of the longest list that is loaded whole
constexpr int64_t kTreeLengths = 1024;    // lengths that mode full sums up at a time
constexpr int64_t kTreeOnes = 16 * 1024;  // bytes of a transfer of ones

inline constexpr int64_t tree_pad(int64_t bytes) { return (bytes + 31) / 32 * 32; }
inline constexpr int64_t tree_list_bytes(int64_t n, int64_t width, bool whole) {
  return whole ? tree_pad(width * 8) : n * 32;
}
// Mask rows are node after node, those of all requests side by side: rows of one request are then a vector
// repeat apart, as operands of one instruction have to be.
inline constexpr int64_t tree_node_pitch(int64_t n, int64_t rows) {
  return rows * tree_pad(n) > 256 ? rows * tree_pad(n) : 256;
}
// Local bytes of `rows` requests: selected, drafts, positions, rows, two links; parents, depths; bonus,
// length; the list; a byte a node in the mask, or 32 bits a row and once more in the width that goes out.
inline constexpr int64_t tree_bytes(int64_t n, int64_t width, bool whole, bool bits, int64_t rows) {
  return rows * (6 * tree_pad(n * 8) + 2 * tree_pad(n * 4) + 2 * 32 + tree_list_bytes(n, width, whole)) +
         (bits ? rows * 2 * tree_pad(n * 4) : n * tree_node_pitch(n, rows));
}
