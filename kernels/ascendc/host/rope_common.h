// SPDX-License-Identifier: Apache-2.0
// What the launchers of q_norm_rope and swa_store_kv share: rows of a tile by what local memory holds.
#pragma once
#include "../launch.h"
#include "../rope_tiling.h"

namespace dsv4::ascend {

constexpr int64_t kRopeMaxRows = 16;
constexpr int64_t kRopeUnified = 184 * 1024;

// Bytes of the buffers of RopeRows and of its kernel's queues.
inline int64_t rope_bytes(int64_t D, int64_t R, int64_t rows, int64_t element, bool angle_rows) {
  const int64_t turned = D < 64 || D - (D - R) / 8 * 8 > 64 ? D - (D - R) / 8 * 8 : 64,
                angles = angle_rows ? rows : 1;
  return rows * 64 * 4 + 1024 + round_up<int64_t>(rows, 8) * 36 + rows * turned * 8 + angles * turned * 8 +
         angles * 2 * turned * 4 + 16 * round_up<int64_t>(turned, 64) + (element == 4 ? 0 : rows * D * 4) +
         D * 8 + 4 * rows * D * element + 2 * angles * round_up<int64_t>(R, 8) * 4;
}
// `least`: the rows that leave no core without work.
inline RopeRowsTiling rope_rows(int64_t D, int64_t R, int64_t least, Dtype dtype, bool angle_rows,
                                double eps) {
  const int64_t element = dtype == kF32 ? 4 : 2;
  int64_t rows = least < 1 || D < 64 ? 1 : least < kRopeMaxRows ? least : kRopeMaxRows;
  while (rows > 1 && rope_bytes(D, R, rows, element, angle_rows) > kRopeUnified) --rows;
  return {static_cast<int32_t>(D), static_cast<int32_t>(R), static_cast<int32_t>(rows),
          static_cast<float>(eps), 1.f / static_cast<float>(D)};
}

}  // namespace dsv4::ascend
