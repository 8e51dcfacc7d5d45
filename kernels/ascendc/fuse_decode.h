// SPDX-License-Identifier: Apache-2.0
// Weights of other types as what the cube multiplies: X, bf16, half or float. int8 stays unscaled (|q| <= 128
// is exact in bf16 and half; the channel's scale is applied to the sums). e4m3 is put into the bits of a
// half, whose value is then 2^-8 of it, and scaled by its block's power of two; as bf16 that is exact but for
// results below bf16's least normal number.
#pragma once
#include "mhc_vector.h"

namespace dsv4_ascend {

struct e4m3_byte {};  // a stand-in: uint8_t in memory

template <class W>
struct FuseStored {
  using type = W;
};
template <>
struct FuseStored<e4m3_byte> {
  using type = uint8_t;
};

constexpr float kNaNCode = 1.875f;    // the exponent and mantissa of NaN in e4m3, as those of a half
constexpr int32_t kFuseRows = 16;     // rows of weights at a time: within one row of 128 x 128 blocks
constexpr int32_t kFuseCount = 4096;  // values at a time

// n values through a queue of inputs, as floats.
template <class U, class Queue>
__aicore__ inline void widen(Queue& queue, const LocalTensor<float>& to, const GlobalTensor<U>& from, int32_t n) {
  LocalTensor<U> in = queue.template AllocTensor<U>();
  load_row(in, from, n);
  queue.EnQue(in);
  in = queue.template DeQue<U>();
  if constexpr (is_float<U>) Muls(to, in, 1.f, n);
  else to_float(to, in, n);
  ordered();
  queue.FreeTensor(in);
}

__aicore__ inline float float_of_bits(uint32_t bits) {
  union {
    uint32_t u;
    float f;
  } x;
  x.u = bits;
  return x.f;
}
// 2^(byte - 127)
constexpr uint8_t kNaNScale = 255;
__aicore__ inline float e8m0_value(uint32_t byte) { return float_of_bits(byte == 0 ? 0x00400000u : byte << 23); }

struct FuseWork {
  LocalTensor<float> f;      // kFuseCount
  LocalTensor<uint16_t> g, h;
  LocalTensor<uint8_t> mask;
  LocalTensor<half> most;  // [2][128]: of kFuseRows rows each, for half a row
};

__aicore__ inline void floats_of(const FuseWork& w, const LocalTensor<int8_t>& in, int32_t count, int32_t, int32_t,
                                 int32_t) {
  const LocalTensor<half> h = w.h.ReinterpretCast<half>();
  Cast(h, in, RoundMode::CAST_NONE, static_cast<uint32_t>(count));
  ordered();
  Cast(w.f, h, RoundMode::CAST_NONE, static_cast<uint32_t>(count));
  ordered();
}

// Without the block's scale. NaN must not reach the cube (see swa_clean.h): its codes become 0, and w.most gets
// kNaNCode for their rows, of which there are `rows`, `depth` long and `pitch` apart.
__aicore__ inline void floats_of(const FuseWork& w, const LocalTensor<uint8_t>& in, int32_t count, int32_t rows,
                                 int32_t depth, int32_t pitch) {
  const LocalTensor<half> h = w.h.ReinterpretCast<half>();
  const uint32_t n = static_cast<uint32_t>(count);
  Cast(h, in, RoundMode::CAST_NONE, n);
  ordered();
  Cast(w.g.ReinterpretCast<int16_t>(), h, RoundMode::CAST_RINT, n);
  ordered();
  ShiftLeft(w.h, w.g, static_cast<uint16_t>(9), count);
  ordered();
  ShiftRight(w.h, w.h, static_cast<uint16_t>(2), count);  // exponent and mantissa where a half has them
  ShiftRight(w.g, w.g, static_cast<uint16_t>(7), count);
  ordered();
  CompareScalar(w.mask, h, static_cast<half>(kNaNCode), CMPMODE::NE, n);  // 0x7f and 0xff are NaN
  for (int32_t at = 0; at < depth; at += 128)
    WholeReduceMax(w.most[at], h[at], min_of(depth - at, 128), rows, 1, 1, pitch / 16, ReduceOrder::ORDER_ONLY_VALUE);
  ShiftLeft(w.g, w.g, static_cast<uint16_t>(15), count);
  ordered();
  Or(w.h, w.h, w.g, count);
  ordered();
  Cast(w.f, h, RoundMode::CAST_NONE, n);
  ordered();
  Muls(w.f, w.f, 256.f, count);
  ordered();
  Select(w.f, w.mask, w.f, 0.f, SELMODE::VSEL_TENSOR_SCALAR_MODE, n);
  ordered();
}

// Blocks of 128 columns, `rows` rows `pitch` apart, each block by its scale; w.most gets kNaNCode for a scale of NaN.
__aicore__ inline void scale_blocks(const LocalTensor<half>& most, const LocalTensor<float>& f, const GlobalTensor<uint8_t>& scales, int32_t rows,
                                    int32_t pitch) {
  const uint8_t step = static_cast<uint8_t>(pitch / 8);
  for (int32_t column = 0; column < pitch; column += 64) {
    const uint8_t scale = scales.GetValue(static_cast<uint64_t>(column / 128));
    if (scale == kNaNScale && column % 128 == 0) Duplicate(most[column / 128 * 128], static_cast<half>(kNaNCode), kFuseRows);
    Muls(f[column], f[column], scale == kNaNScale ? 0.f : e8m0_value(scale),
         static_cast<uint64_t>(min_of(64, pitch - column)), static_cast<uint8_t>(rows),
         UnaryRepeatParams(1, 1, step, step));
  }
  ordered();
}

template <class X>
__aicore__ inline void take_floats(const LocalTensor<X>& out, const LocalTensor<float>& f, int32_t count) {
  if constexpr (is_float<X>) Muls(out, f, 1.f, count);
  else from_float(out, f, count);
}

}  // namespace dsv4_ascend
