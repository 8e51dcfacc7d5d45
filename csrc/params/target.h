// SPDX-License-Identifier: Apache-2.0
#pragma once
#include "../tensor_view.h"

namespace dsv4 {

struct CompressKvParams {
  TensorView kv, gate, ape, norm_weight, cos_sin, state, rows, query_start_loc, seq_lens, positions, locs, pages;
  int64_t T, B, M, D, R, ratio, coff, ring;
  double eps;
};

struct LightningIndexParams {
  TensorView q, weights, index_pages, table, query_start_loc, seq_lens, cos_sin, out;
  int64_t T, B, H, D, R, page, ratio, topk;
};

struct SparsePagedAttentionParams {
  TensorView q, kv_pages, block_table, c_pages, c_table, query_start_loc, seq_lens, indices, sink, cos_sin, out;
  int64_t T, B, H, D, R, page, c_page, window, ratio, zero_padding;
  double scale;
};

struct MoeExpertsParams {
  TensorView x, topk_ids, topk_weights, w13, w2, shared_w13, shared_w2, out;
  int64_t T, k, E, d, inter, shared_inter;
  double limit;
};

}  // namespace dsv4
