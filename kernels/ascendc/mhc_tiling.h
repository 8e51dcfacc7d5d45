// SPDX-License-Identifier: Apache-2.0
// Tilings of mhc_pre, mhc_post_pre and mhc_head: plain structs that the host fills and the kernels take by
// value. Strides are in elements of their tensor.
#pragma once
#include <cstdint>

constexpr int32_t kMhcLanes = 64;   // floats of a vector iteration
constexpr int32_t kMhcSlice = 128;  // channels whose products are summed first: all streams, in one order
constexpr int32_t kMhcGroup = 8;    // tokens whose partial sums lie side by side, a 32-byte block a column

// Launch 1, the partial sums: an item is `wide` slices of a group. Work is split over items, slice-major.
struct MhcProjectTiling {
  int64_t items;
  int64_t residual_t, residual_i, fn_c;
  int64_t y_t, post_t, comb_t, comb_i, out_t, out_i;  // of mhc_post_pre
  int32_t tokens, hc, d, columns, slices, groups;
  int32_t wide, each;  // slices of an item; tokens at a time
};

// Launch 2: the first `mix_blocks` cores compute post and comb, the others y.
struct MhcFinishTiling {
  int64_t residual_t, residual_i, y_t, post_t, comb_t, comb_i;
  int32_t tokens, hc, d, columns, slices, groups;
  int32_t mix_blocks, iters;
  int32_t width;  // channels at a time, a multiple of 64
  int32_t y_buffers;
  int32_t norm;                                    // 0 none, 1 float, 2 bfloat16
  int32_t norm_kept;                               // 1: the whole norm weight stays in the buffer
  float rms_eps, hc_eps, mean_row, mean_channels;  // 1 / (hc * d) and 1 / d
};
constexpr int32_t kMhcJoinSmall = 11776;  // bytes of MhcJoin's small things

// One launch for few tokens: slices are split over cores, which meet. Offsets in floats of the workspace.
constexpr int32_t kMhcOnceTokens = 64;
struct MhcOnceTiling {
  MhcProjectTiling project;
  MhcFinishTiling finish;
  // Behind the partial sums: [group][stream][8 tokens], [slice][group][8 tokens], [group][8 tokens].
  int64_t weights, squares, totals;
  int32_t summed;            // 1: one core sums the squares of a group
  int32_t kept, pool;        // bytes of local memory: rows that stay, and what the steps use one after another
};
