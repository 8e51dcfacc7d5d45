// SPDX-License-Identifier: Apache-2.0
// Tilings of q_norm_rope and swa_store_kv: plain structs that the host fills and the kernels take by value.
// Strides are in elements.
#pragma once
#include <cstdint>

struct RopeRowsTiling {
  int32_t D, R, rows;  // rows: of a tile
  float eps, mean;     // 1 / D
};
