// SPDX-License-Identifier: Apache-2.0
// Copies into L1 and the L0 buffers. Pages of the documentation, under "matrix computation (ISASI)":
//   DataCopy (GM to L1, ND2NZ), LoadData_2D, LoadDataWithTranspose, constraints of the inputs of matrix computation.
#include "cube.h"

#include <cstring>

#include "core.h"
#include "cube_shadow.h"

namespace ascend_emu {
namespace {

struct NzCopy {
  char* dst;
  const char* src;
  NzShape s;
  uint32_t element;
};

void run_nz(const void* payload) {
  const NzCopy& c = *static_cast<const NzCopy*>(payload);
  const uint32_t c0 = kBlockBytes / c.element;
  for (uint32_t i = 0; i < c.s.matrices; ++i)
    for (uint32_t column = 0; column < c.s.columns; column += c0) {
      const uint32_t here = c.s.columns - column < c0 ? c.s.columns - column : c0;
      for (uint32_t row = 0; row < c.s.rows; ++row) {
        char* to = c.dst + uint64_t{i} * c.s.dst_matrix * c.element +
                   (uint64_t{column} / c0 * c.s.dst_column + uint64_t{row} * c.s.dst_row) * kBlockBytes;
        const char* from = c.src + (uint64_t{i} * c.s.src_matrix + uint64_t{row} * c.s.src_row + column) * c.element;
        std::memcpy(to, from, here * c.element);
        std::memset(to + here * c.element, 0, (c0 - here) * c.element);  // the page: filled up with zeros
      }
    }
}

struct FractalCopy {
  char* dst;
  const char* src;
  FractalShape s;
  uint32_t element;
  bool transpose;
};

void run_fractals(const void* payload) {
  const FractalCopy& c = *static_cast<const FractalCopy*>(payload);
  for (uint32_t i = 0; i < c.s.repeat; ++i) {
    const char* from = c.src + (uint64_t{c.s.start} + uint64_t{i} * c.s.src_stride) * kFractalBytes;
    char* to = c.dst + uint64_t{i} * (c.s.dst_gap + 1) * kFractalBytes;
    if (!c.transpose) {
      std::memcpy(to, from, kFractalBytes);
      continue;
    }
    for (uint32_t row = 0; row < 16; ++row)
      for (uint32_t column = 0; column < 16; ++column)
        std::memcpy(to + (row * 16 + column) * 2, from + (column * 16 + row) * 2, 2);
  }
}

// Where element (row, column) of a square lies among its fractals in L1, and that of the transposed one in
// L0. 8 bit: two fractals one above the other. 16 bit: one. 32 bit: two side by side.
uint32_t place_in_square(uint32_t element, uint32_t row, uint32_t column, uint32_t fractal_step) {
  const uint32_t c0 = kBlockBytes / element;
  const uint32_t fractal = element == 4 ? column / c0 : row / 16;
  return fractal * fractal_step + ((row % 16) * c0 + column % c0) * element;
}

void run_squares(const void* payload) {
  const FractalCopy& c = *static_cast<const FractalCopy*>(payload);
  const uint32_t side = square_side(c.element), square = side * side * c.element;
  for (uint32_t i = 0; i < c.s.repeat; ++i) {
    const char* from = c.src + (uint64_t{c.s.start} + uint64_t{i} * c.s.src_stride) * square;
    char* to = c.dst + uint64_t{i} * (c.s.dst_gap + 1) * kFractalBytes;
    for (uint32_t row = 0; row < side; ++row)
      for (uint32_t column = 0; column < side; ++column)
        std::memcpy(to + place_in_square(c.element, row, column, (c.s.dst_fractal_gap + 1) * kFractalBytes),
                    from + place_in_square(c.element, column, row, kFractalBytes), c.element);
  }
}

void need_l1_to_l0(const char* api, const Slice& dst, const Slice& src) {
  need_cube(api);
  if (src.space != kL1) violate(17, api, "src: expected L1 (A1, B1), got %s", kSpaceNames[src.space]);
  if (dst.space != kL0A && dst.space != kL0B)
    violate(17, api, "dst: expected L0A (A2) or L0B (B2), got %s", kSpaceNames[dst.space]);
  check_aligned(api, "dst", dst, 512);
  check_aligned(api, "src", src, kBlockBytes);
}

// Squares of `square` bytes from L1 become fractals `step` bytes apart in L0, each with `fractals` parts.
void touch_load(const char* api, const Slice& dst, const Slice& src, const FractalShape& s, uint32_t square,
                uint32_t fractals) {
  check_inside(api, "src", src, uint64_t{s.start} * square, uint64_t{s.repeat - 1} * s.src_stride * square + square);
  const uint64_t fractal_step = uint64_t{s.dst_fractal_gap + 1} * kFractalBytes;
  check_inside(api, "dst", dst, 0,
               (uint64_t{s.repeat - 1} * (s.dst_gap + 1) + 1) * kFractalBytes + (fractals - 1) * fractal_step);
  for (uint32_t i = 0; i < s.repeat; ++i) {
    const uint32_t from = src.address + (s.start + i * s.src_stride) * square;
    const uint32_t to = dst.address + i * (s.dst_gap + 1) * kFractalBytes;
    core->touch(kL1, from, square, false, false);
    for (uint32_t f = 0; f < fractals; ++f)
      core->touch(dst.space, to + static_cast<uint32_t>(f * fractal_step), kFractalBytes, true);
  }
}

}  // namespace

void need_cube(const char* api) {
  if (core->vector) violate(13, api, "cube cores only; this is a vector core");
}

void check_address_mode(const char* api, uint32_t mode) {
  if (mode) violate(17, api, "addrMode: expected 0, got %u", mode);
}

void copy_nd_to_nz(const Slice& dst, const void* src, const NzShape& s, uint32_t element) {
  static const char api[] = "DataCopy(Nd2Nz)";
  need_cube(api);
  if (dst.space != kL1) violate(17, api, "dst: expected L1 (A1, B1), got %s", kSpaceNames[dst.space]);
  core->begin_op(kMTE2, api, __builtin_return_address(0));
  const auto range = [](const char* what, uint32_t value, uint32_t least, uint32_t most) {
    if (value < least || value > most) violate(17, api, "%s: expected %u to %u, got %u", what, least, most, value);
  };
  range("ndNum", s.matrices, 0, 4095);
  range("nValue", s.rows, 0, 16384);
  if (!s.matrices || !s.rows || !s.columns) return;
  range("srcDValue", s.src_row, 1, 65535);
  range("dstNzC0Stride", s.dst_column, 1, 16384);
  range("dstNzNStride", s.dst_row, 1, 16384);
  range("dstNzMatrixStride", s.dst_matrix, 0, 16384);
  if (s.columns > s.src_row && s.rows > 1)
    violate(17, api, "dValue: expected at most srcDValue %u, got %u", s.src_row, s.columns);
  if (s.matrices > 1 && s.dst_matrix * element % kBlockBytes)
    violate(1, api, "dstNzMatrixStride: expected a multiple of 32 bytes, got %u elements of %u", s.dst_matrix, element);
  check_aligned(api, "dst", dst, kBlockBytes);
  const uint32_t c0 = kBlockBytes / element, blocks = (s.columns + c0 - 1) / c0;
  check_inside(api, "dst", dst, 0,
               uint64_t{s.matrices - 1} * s.dst_matrix * element +
                   (uint64_t{blocks - 1} * s.dst_column + uint64_t{s.rows - 1} * s.dst_row + 1) * kBlockBytes);
  if (reinterpret_cast<uintptr_t>(src) % element)
    violate(1, api, "global memory: expected an address aligned to %u bytes, got %p", element, src);
  for (uint32_t i = 0; i < s.matrices; ++i) {
    const char* matrix = static_cast<const char*>(src) + uint64_t{i} * s.src_matrix * element;
    if (s.src_row == s.columns)
      core->touch_global(matrix, uint64_t{s.rows} * s.columns * element, false);
    else
      for (uint32_t row = 0; row < s.rows; ++row)
        core->touch_global(matrix + uint64_t{row} * s.src_row * element, uint64_t{s.columns} * element, false);
    for (uint32_t block = 0; block < blocks; ++block) {
      const uint32_t at = dst.address + i * s.dst_matrix * element + block * s.dst_column * kBlockBytes;
      if (s.dst_row == 1)
        core->touch(kL1, at, s.rows * kBlockBytes, true);
      else
        for (uint32_t row = 0; row < s.rows; ++row)
          core->touch(kL1, at + row * s.dst_row * kBlockBytes, kBlockBytes, true);
    }
  }
  core->count(kMTE2, src, uint64_t{s.matrices} * s.rows * s.columns * element);
  core->submit(&run_nz, NzCopy{local(dst), static_cast<const char*>(src), s, element});
}

void load_fractals(const Slice& dst, const Slice& src, const FractalShape& s, uint32_t element, bool transpose) {
  static const char api[] = "LoadData";
  need_l1_to_l0(api, dst, src);
  core->begin_op(kMTE1, api, __builtin_return_address(0));
  if (transpose && element != 2) violate(17, api, "ifTranspose: expected elements of 2 bytes, got %u", element);
  if (!s.repeat) return;
  touch_load(api, dst, src, s, kFractalBytes, 1);
  const FractalCopy copy{local(dst), local(src), s, element, transpose};
  move_written(dst.space, dst.address, src.address, s, element, transpose);
  core->counters.bytes[kMTE1] += uint64_t{s.repeat} * kFractalBytes;
  core->submit(&run_fractals, copy);
}

void load_squares(const Slice& dst, const Slice& src, const FractalShape& s, uint32_t element) {
  static const char api[] = "LoadDataWithTranspose";
  need_l1_to_l0(api, dst, src);
  core->begin_op(kMTE1, api, __builtin_return_address(0));
  if (!s.repeat) return;
  const uint32_t side = square_side(element), square = side * side * element;
  FractalShape shape = s;
  if (element == 2) shape.dst_fractal_gap = 0;  // the page: without effect
  touch_load(api, dst, src, shape, square, square / kFractalBytes);
  move_written(dst.space, dst.address, src.address, shape, element);
  core->counters.bytes[kMTE1] += uint64_t{s.repeat} * square;
  core->submit(&run_squares, FractalCopy{local(dst), local(src), shape, element, true});
}

// Which bytes of L0 come from bytes that something had written: padding rows of L1 stay "never written".
// The copies run on the shadow's bits themselves, spread out to a byte each.
namespace {
void spread(Space space, uint32_t address, uint32_t bytes, char* to) {
  for (uint32_t at = address; at < address + bytes; ++at)
    *to++ = static_cast<char>(core->shadow[space][at / kBlockBytes].written >> at % kBlockBytes & 1);
}
void move_bits(Space space, uint32_t dst, uint32_t src, const FractalShape& s, uint32_t element, bool squares,
               bool transpose) {
  if (!config.check) return;
  const uint32_t side = square_side(element), unit = squares ? side * side * element : kFractalBytes;
  const uint32_t fractals = unit / kFractalBytes, fractal_step = (s.dst_fractal_gap + 1) * kFractalBytes;
  for (uint32_t i = 0; i < s.repeat; ++i) {
    const uint32_t from = src + (s.start + i * s.src_stride) * unit, to = dst + i * (s.dst_gap + 1) * kFractalBytes;
    bool all = true;
    for (uint32_t b = 0; b < unit / kBlockBytes; ++b) all &= core->shadow[kL1][from / kBlockBytes + b].written == ~0u;
    if (all) continue;  // touch has set them
    char in[1024], out[1024];
    spread(kL1, from, unit, in);
    FractalShape one{0, 1, 0, 0, 0};
    const FractalCopy copy{out, in, one, element, transpose};
    squares ? run_squares(&copy) : run_fractals(&copy);
    for (uint32_t f = 0; f < fractals; ++f)
      for (uint32_t b = 0; b < kFractalBytes / kBlockBytes; ++b) {
        uint32_t bits = 0;
        for (uint32_t byte = 0; byte < kBlockBytes; ++byte)
          bits |= static_cast<uint32_t>(out[f * kFractalBytes + b * kBlockBytes + byte] & 1) << byte;
        core->shadow[space][(to + f * fractal_step) / kBlockBytes + b].written = bits;
      }
  }
}
}  // namespace
void move_written(Space space, uint32_t dst, uint32_t src, const FractalShape& s, uint32_t element, bool transpose) {
  move_bits(space, dst, src, s, element, false, transpose);
}
void move_written(Space space, uint32_t dst, uint32_t src, const FractalShape& s, uint32_t element) {
  move_bits(space, dst, src, s, element, true, true);
}

}  // namespace ascend_emu
