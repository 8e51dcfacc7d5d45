// SPDX-License-Identifier: Apache-2.0
// Up to 8 rows of a slice that stay in local memory, [token][stream][128], rounded: y in the place of stream 0, the
// sums of its squares, and its norm. MhcJoin's instructions, channel by channel, for the rows of a group at a time.
#pragma once
#include "mhc_tiling.h"
#include "mhc_vector.h"

namespace dsv4_ascend {

template <class T>
class MhcRows {
 public:
  template <class Buffers>
  __aicore__ inline void init(Buffers* pipe, int32_t hc) {
    hc_ = hc;
    pipe->InitBuffer(rows_, kMhcGroup * kMhcSlice * sizeof(float));
    if (!is_float<T>) pipe->InitBuffer(floats_, kMhcGroup * hc * kMhcSlice * sizeof(float));
  }

  // y of n tokens of a slice into the place of stream 0. blocks: [stream][8 tokens].
  __aicore__ inline void weigh(const LocalTensor<T>& kept, const LocalTensor<float>& blocks, int32_t width, int32_t n) {
    LocalTensor<float> x, sum;
    const uint8_t x_row = u8(hc_ * kMhcSlice / 8);
    uint8_t row = 16;
    if constexpr (is_float<T>) {
      x = kept, sum = kept, row = x_row;
    } else {
      x = floats_.Get<float>(), sum = rows_.Get<float>();
      for (int32_t c = 0; c < width; c += kRowLanes)
        Cast(x[c], kept[c], RoundMode::CAST_NONE, lanes_at(width - c), u8(n * hc_), UnaryRepeatParams(1, 1, 16, 8));
      ordered();
    }
    const BinaryRepeatParams strides(1, 1, 0, row, x_row, 1);
    for (int32_t i = 0; i < hc_; ++i) {
      for (int32_t c = 0; c < width; c += kRowLanes) {
        const LocalTensor<float> to = sum[c], from = x[i * kMhcSlice + c], w = blocks[i * kMhcGroup * 8];
        if (i == 0)
          Mul(to, from, w, lanes_at(width - c), u8(n), strides);
        else
          MulAddDst(to, from, w, lanes_at(width - c), u8(n), strides);
      }
      ordered();
    }
    if constexpr (!is_float<T>) y_rounded(kept, sum, width, n);
  }
  // The sums of squares of n rows of a slice. Lanes l and l + 64, then the lanes, as in MhcJoin.
  __aicore__ inline void squares(const LocalTensor<float>& to, const LocalTensor<T>& kept, int32_t width, int32_t n) {
    const LocalTensor<float> q = rows_.Get<float>();
    LocalTensor<float> y = q;
    uint8_t row = 16;
    if constexpr (is_float<T>)
      y = kept, row = u8(hc_ * 16);
    else
      y_floats(q, kept, width, n);
    for (int32_t c = 0; c < width; c += kRowLanes)
      Mul(q[c], y[c], y[c], lanes_at(width - c), u8(n), BinaryRepeatParams(1, 1, 1, 16, row, row));
    ordered();
    if (width > kRowLanes) {
      Add(q, q, q[kRowLanes], lanes_at(width - kRowLanes), u8(n), BinaryRepeatParams(1, 1, 1, 16, 16, 16));
      ordered();
    }
    WholeReduceSum(to, q, min_of(width, kRowLanes), n, 1, 1, 16);
    ordered();
  }
  // blocks: the factors of the tokens
  __aicore__ inline void scale(const LocalTensor<T>& kept, const LocalTensor<float>& blocks,
                               const LocalTensor<float>& weight, int32_t width, int32_t n) {
    LocalTensor<float> y = rows_.Get<float>();
    uint8_t row = 16;
    if constexpr (is_float<T>)
      y = kept, row = u8(hc_ * 16);
    else
      y_floats(y, kept, width, n);
    for (int32_t c = 0; c < width; c += kRowLanes)
      Mul(y[c], y[c], blocks, lanes_at(width - c), u8(n), BinaryRepeatParams(1, 1, 0, row, row, 1));
    ordered();
    for (int32_t c = 0; c < width; c += kRowLanes)
      Mul(y[c], y[c], weight[c], lanes_at(width - c), u8(n), BinaryRepeatParams(1, 1, 1, row, row, 0));
    ordered();
    if constexpr (!is_float<T>) y_rounded(kept, y, width, n);
  }

 private:
  __aicore__ inline static uint8_t u8(int32_t x) { return static_cast<uint8_t>(x); }
  // y among the kept rows to floats and back
  __aicore__ inline void y_floats(const LocalTensor<float>& to, const LocalTensor<T>& kept, int32_t width, int32_t n) {
    for (int32_t c = 0; c < width; c += kRowLanes)
      Cast(to[c], kept[c], RoundMode::CAST_NONE, lanes_at(width - c), u8(n), UnaryRepeatParams(1, 1, 16, u8(hc_ * 8)));
    ordered();
  }
  __aicore__ inline void y_rounded(const LocalTensor<T>& kept, const LocalTensor<float>& from, int32_t width,
                                   int32_t n) {
    for (int32_t c = 0; c < width; c += kRowLanes)
      Cast(kept[c], from[c], RoundMode::CAST_RINT, lanes_at(width - c), u8(n),
           UnaryRepeatParams(1, 1, u8(hc_ * 8), 16));
    ordered();
  }
  __aicore__ inline static uint64_t lanes_at(int32_t left) { return static_cast<uint64_t>(min_of(left, kRowLanes)); }

  int32_t hc_ = 0;
  TBuf<TPosition::VECCALC> rows_, floats_;
};

}  // namespace dsv4_ascend
