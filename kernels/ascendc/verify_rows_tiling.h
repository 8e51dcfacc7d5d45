// SPDX-License-Identifier: Apache-2.0
#pragma once
#include "ints_tiling.h"

struct WindowTiling {
  int64_t B, n;
  IntRows live;
};

// The entries of one ratio.
struct PoolTiling {
  LineSplit entries;
  Division ratio, page;
  int32_t emits;   // 0: no such pool
  int32_t vector;  // 1: the vector unit can count
  IntRows table;
  int64_t width;
};

struct VerifyPositionsPaddingTiling {
  WindowTiling window;
  PoolTiling pool;
};

struct VerifyMetadataTiling {
  WindowTiling window;
  PoolTiling c4, c128;
  LineSplit requests;  // of start_pos and seqused
};
