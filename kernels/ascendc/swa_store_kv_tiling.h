// SPDX-License-Identifier: Apache-2.0
#pragma once
#include "rope_tiling.h"

struct SwaStoreKvTiling {
  RopeRowsTiling row;
  int64_t T, max_pos, slots, page;
  int64_t kv_t, cos_sin_row, pages_p, pages_row;
  int32_t weight;  // 1 float, 2 bfloat16
};
