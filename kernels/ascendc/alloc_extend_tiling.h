// SPDX-License-Identifier: Apache-2.0
#pragma once
#include "ints_tiling.h"

struct AllocExtendTiling {
  LineSplit tokens;
  int64_t B, free_count;
  int32_t prefix_wide, seq_wide, pages_wide;
  int32_t with_status;
  int32_t vector;  // 1: the vector unit can add up
  Division page;
};
