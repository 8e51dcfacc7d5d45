// SPDX-License-Identifier: Apache-2.0
// What the files of the cube core share. Internal.
#pragma once
#include "cube.h"

namespace ascend_emu {

constexpr uint32_t kFractalBytes = 512;

// LoadDataWithTranspose works on squares: 32 x 32 bytes, 16 x 16 values of 2 or 4 bytes.
constexpr uint32_t square_side(uint32_t element) { return element == 1 ? 32 : 16; }

void need_cube(const char* api);
void move_written(Space space, uint32_t dst, uint32_t src, const FractalShape& s, uint32_t element, bool transpose);
void move_written(Space space, uint32_t dst, uint32_t src, const FractalShape& s, uint32_t element);

}  // namespace ascend_emu
