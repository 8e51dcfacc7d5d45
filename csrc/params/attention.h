// SPDX-License-Identifier: Apache-2.0
#pragma once
#include "../tensor_view.h"

namespace dsv4 {

struct QNormRopeParams {
  TensorView q, cos_sin, positions, out;
  int64_t T, H, D, R, max_pos;
  double eps;
  bool zero_padding;
};

struct SwaStoreKvParams {
  TensorView kv, kv_norm_weight, cos_sin, positions, slots, kv_pages;
  int64_t T, D, R, max_pos, P, page;
  double eps;
};

struct SwaPagedAttentionParams {
  TensorView q, kv_pages, block_table, query_start_loc, seq_lens, sink, tree_mask, cos_sin, out;
  int64_t T, H, D, R, max_pos, B, P, page, maxp, n;  // n: nodes of tree_mask, 0 without one
  int64_t window;
  float scale;
  bool zero_padding;
};

}  // namespace dsv4
