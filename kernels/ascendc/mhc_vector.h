// SPDX-License-Identifier: Apache-2.0
// What the mHC and RoPE kernels share: rows of any stride between global and local memory, and products with
// a block of eight equal floats.
#pragma once
#include "kernel.h"

namespace dsv4_ascend {

constexpr int32_t kRowLanes = 64;

// Dependent vector instructions: dav-2201 orders them only here.
__aicore__ inline void ordered() { PipeBarrier<PIPE_V>(); }

__aicore__ inline uint32_t blocks_between(int32_t pitch, int32_t width, uint32_t element) {
  return (static_cast<uint32_t>(pitch) * element - (static_cast<uint32_t>(width) * element + 31) / 32 * 32) /
         32;
}

// `rows` rows of `width` elements, `stride` elements apart in global and `pitch` in local memory (a pitch of
// whole 32-byte blocks). A stride that the instruction cannot express takes an instruction a row.
template <class T>
__aicore__ inline void rows_in(const LocalTensor<T>& dst, const GlobalTensor<T>& src, int32_t rows,
                               int32_t width, int64_t stride, int32_t pitch) {
  DataCopyPadExtParams<T> padding;
  padding.isPad = false;
  const uint32_t bytes = static_cast<uint32_t>(width) * sizeof(T),
                 behind = blocks_between(pitch, width, sizeof(T));
  const int64_t gap = (stride - width) * static_cast<int64_t>(sizeof(T));
  if (rows == 1 || (gap >= 0 && gap <= 0xffffffffLL)) {
    const uint32_t between = rows == 1 ? 0u : static_cast<uint32_t>(gap);
    DataCopyPad(dst, src, DataCopyExtParams(static_cast<uint16_t>(rows), bytes, between, behind, 0), padding);
    return;
  }
  for (int32_t r = 0; r < rows; ++r)
    DataCopyPad(dst[r * pitch], src[r * stride], DataCopyExtParams(1, bytes, 0, 0, 0), padding);
}
template <class T>
__aicore__ inline void rows_out(const GlobalTensor<T>& dst, const LocalTensor<T>& src, int32_t rows,
                                int32_t width, int64_t stride, int32_t pitch) {
  const uint32_t bytes = static_cast<uint32_t>(width) * sizeof(T),
                 behind = blocks_between(pitch, width, sizeof(T));
  const int64_t gap = (stride - width) * static_cast<int64_t>(sizeof(T));
  if (rows == 1 || (gap >= 0 && gap <= 0xffffffffLL)) {
    const uint32_t between = rows == 1 ? 0u : static_cast<uint32_t>(gap);
    DataCopyPad(dst, src, DataCopyExtParams(static_cast<uint16_t>(rows), bytes, behind, between, 0));
    return;
  }
  for (int32_t r = 0; r < rows; ++r)
    DataCopyPad(dst[r * stride], src[r * pitch], DataCopyExtParams(1, bytes, 0, 0, 0));
}

// dst = src * block, or += with ADD, for n floats in a row; `block` holds one value eight times.
template <bool ADD>
__aicore__ inline void by_block(const LocalTensor<float>& dst, const LocalTensor<float>& src,
                                const LocalTensor<float>& block, int32_t n) {
  const BinaryRepeatParams strides(1, 1, 0, 8, 8, 0);
  for (int32_t at = 0; at < n;) {
    const int32_t left = n - at, whole = left / kRowLanes > 255 ? 255 : left / kRowLanes;
    const int32_t mask = whole ? kRowLanes : left;
    const uint8_t repeats = static_cast<uint8_t>(whole ? whole : 1);
    if (ADD)
      MulAddDst(dst[at], src[at], block, static_cast<uint64_t>(mask), repeats, strides);
    else
      Mul(dst[at], src[at], block, static_cast<uint64_t>(mask), repeats, strides);
    at += mask * repeats;
  }
}

// Element e of src becomes the block e of dst, for n elements (rounded up to eight).
__aicore__ inline void spread(const LocalTensor<float>& dst, const LocalTensor<float>& src, int32_t n) {
  Brcb(dst, src, static_cast<uint8_t>((n + 7) / 8), BrcbRepeatParams(1, 8));
}

// x = 1 / (1 + exp(-x)) for n floats; `ones` holds as many as one call divides: 64, repeated.
__aicore__ inline void sigmoid(const LocalTensor<float>& x, const LocalTensor<float>& ones, int32_t lanes,
                               int32_t rows) {
  const UnaryRepeatParams one(1, 1, 8, 8);
  const uint64_t mask = static_cast<uint64_t>(lanes);
  const uint8_t repeats = static_cast<uint8_t>(rows);
  Muls(x, x, -1.f, mask, repeats, one);
  ordered();
  Exp(x, x, mask, repeats, one);
  ordered();
  Adds(x, x, 1.f, mask, repeats, one);
  ordered();
  Div(x, ones, x, mask, repeats, BinaryRepeatParams(1, 1, 1, 8, 0, 8));
  ordered();
}
// n rows of `size` floats, side by side, into the first: row i takes row i + half, of ever fewer rows.
__aicore__ inline void fold_rows(const LocalTensor<float>& rows, int32_t n, int32_t size) {
  while (n > 1) {
    const int32_t half = (n + 1) / 2;
    Add(rows, rows, rows[half * size], (n - half) * size);
    ordered();
    n = half;
  }
}

// x = 1 / sqrt(x * mean + eps), n <= 64 floats
__aicore__ inline void inverse_rms(const LocalTensor<float>& x, const LocalTensor<float>& ones, float mean,
                                   float eps, int32_t n) {
  Muls(x, x, mean, n);
  ordered();
  Adds(x, x, eps, n);
  ordered();
  Sqrt(x, x, n);
  ordered();
  Div(x, ones, x, n);
  ordered();
}

}  // namespace dsv4_ascend
