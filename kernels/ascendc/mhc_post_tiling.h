// SPDX-License-Identifier: Apache-2.0
#pragma once
#include <cstdint>

struct MhcPostTiling {
  int64_t y_t, residual_t, residual_i, post_t, comb_t, comb_j, out_t, out_i;  // strides in elements
  int64_t T, tiles;                                                           // tiles of a row
  int32_t hc, d, tile;  // tile: channels, a multiple of 64
};
