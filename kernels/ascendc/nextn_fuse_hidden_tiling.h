// SPDX-License-Identifier: Apache-2.0
#pragma once
#include <cstdint>

// Scratch, from its first byte on: x [e_rows + h_rows, pitch], the normed rows; at flags_at a block of eight
// floats for each, NaN where its results are; at ring_at, for every group of cores two tiles [tile, 512 bytes]
// of decoded weights; at channels_at, for every group and two units [256] floats, NaN where a channel's weights
// hold one; at sums_at, for every group [chunk * (1 + hc), tile] floats.
struct NextnFuseHiddenTiling {
  int64_t embeds_t, hidden_t, out_t, out_i;      // strides in elements
  int64_t weight_n[2], scale_n[2];               // of e_proj and h_proj
  int64_t flags_at, ring_at, channels_at, sums_at;  // bytes
  int32_t T, hc, d, pitch, e_rows, h_rows;       // rows of x: the embeddings', then the streams'
  int32_t chunk, chunks, tile, tiles;            // tokens and output channels of a unit of work; multiples of 16
  int32_t norm_f32[2];
  float eps, mean;
};
