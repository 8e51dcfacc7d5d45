// SPDX-License-Identifier: Apache-2.0
#pragma once
#include "rope_tiling.h"

struct QNormRopeTiling {
  RopeRowsTiling row;
  int64_t T, tiles, max_pos;  // tiles of a token's heads
  int64_t q_t, q_h, out_t, out_h, cos_sin_row;
  int32_t H, zero_padding;
};
