// SPDX-License-Identifier: Apache-2.0
// The first launch of nextn_fuse_hidden: the normed rows of the embeddings and of the streams into scratch, as
// X, what the cube multiplies; every vector core some rows. T: rows as they come. Rows longer than a piece are
// read twice. NaN must not reach the cube (see swa_clean.h): a piece that holds one becomes zeros, and the
// row's flag, a block of floats that the second launch adds to its results, NaN instead of 0.
//
// Unified buffer, KB of 183: rows in 32, out 32, floats 16, norm weights 16, products 16, flags and sums 2.
#pragma once
#include "fuse_decode.h"
#include "fuse_units.h"

namespace dsv4_ascend {

template <class T, class X>
class FuseNorms {
 public:
  __aicore__ inline FuseNorms(GM_ADDR embeds, GM_ADDR hidden, GM_ADDR enorm, GM_ADDR hnorm, GM_ADDR workspace,
                              const NextnFuseHiddenTiling& tiling)
      : v(tiling),
        norm_{enorm, hnorm},
        rows_{global<T>(embeds), global<T>(hidden)},
        x_(global<X>(workspace)),
        flags_(global<float>(workspace + tiling.flags_at)) {
    pipe.InitBuffer(in_, 2, kFuseCount * sizeof(float));
    pipe.InitBuffer(made_, 2, kFuseCount * sizeof(float));
    pipe.InitBuffer(flag_queue_, 2, kBlock);
    pipe.InitBuffer(f_, kFuseCount * sizeof(float));
    pipe.InitBuffer(w_, kFuseCount * sizeof(float));
    pipe.InitBuffer(spare_, kFuseCount * sizeof(float));
    pipe.InitBuffer(few_, 1024);
    f = f_.template Get<float>(), w = w_.template Get<float>();
    spare = spare_.template Get<float>(), few = few_.template Get<float>();
  }

  __aicore__ inline void run() {
    Duplicate(few, 1.f, 64);
    ordered();
    const Share mine = share_of(v.e_rows + v.h_rows, GetBlockNum(), GetBlockIdx());
    for (int64_t r = mine.first; r < mine.first + mine.count; ++r) {
      const int32_t side = r < v.e_rows ? 0 : 1, row = static_cast<int32_t>(side ? r - v.e_rows : r);
      bool bad = false;
      if (row >= (side ? v.T * v.hc : v.T)) zero_row(r);
      else if (side) bad = norm_row(side, rows_[1][row / v.hc * v.hidden_t + static_cast<int64_t>(row % v.hc) * v.d], r);
      else bad = norm_row(side, rows_[0][row * v.embeds_t], r);
      put_flag(r, bad);
    }
  }

 private:
  __aicore__ inline int32_t piece_of(int32_t at) const { return min_of(kFuseCount, v.d - at); }

  __aicore__ inline void zero_row(int64_t r) {  // the second row of a product of one
    for (int32_t at = 0; at < v.d; at += kFuseCount) {
      LocalTensor<X> zeros = made_.template AllocTensor<X>();
      clear(zeros);
      put(r, at, zeros);
    }
  }
  __aicore__ inline void clear(const LocalTensor<X>& made) {
    Duplicate(made.template ReinterpretCast<float>(), 0.f, kFuseCount * static_cast<int32_t>(sizeof(X)) / 4);
  }
  __aicore__ inline void put(int64_t r, int32_t at, LocalTensor<X> made) {
    made_.EnQue(made);
    made = made_.template DeQue<X>();
    store_row(x_[r * v.pitch + at], made, piece_of(at));
    made_.FreeTensor(made);
  }
  __aicore__ inline void put_flag(int64_t r, bool bad) {
    LocalTensor<float> flag = flag_queue_.template AllocTensor<float>();
    Duplicate(flag, bad ? float_of_bits(kNaN) : 0.f, kBlock / 4);
    flag_queue_.EnQue(flag);
    flag = flag_queue_.template DeQue<float>();
    DataCopy(flags_[r * (kBlock / 4)], flag, static_cast<uint32_t>(kBlock / 4));
    flag_queue_.FreeTensor(flag);
  }

  // A float that the vector unit has made.
  __aicore__ inline float read(const LocalTensor<float>& x) {
    SetFlag<HardEvent::V_S>(EVENT_ID0);
    WaitFlag<HardEvent::V_S>(EVENT_ID0);
    const float value = x.GetValue(0);
    SetFlag<HardEvent::S_V>(EVENT_ID0);
    WaitFlag<HardEvent::S_V>(EVENT_ID0);
    return value;
  }

  // Whether n floats hold NaN: without their signs and halved, NaN is above what infinity becomes, 1.5, and such
  // numbers are no NaN.
  __aicore__ inline bool holds_nan(const LocalTensor<float>& x, int32_t n) {
    const LocalTensor<uint32_t> bits = spare.template ReinterpretCast<uint32_t>();
    ShiftLeft(bits, x.template ReinterpretCast<uint32_t>(), 1u, n);
    ordered();
    ShiftRight(bits, bits, 2u, n);
    ordered();
    const LocalTensor<float> most = few[192];
    const int32_t whole = n / kRowLanes, left = n % kRowLanes;
    if (whole) WholeReduceMax(most, spare, kRowLanes, whole, 1, 1, 8, ReduceOrder::ORDER_ONLY_VALUE);
    ordered();
    if (left) WholeReduceMax(most[whole], spare[whole * kRowLanes], left, 1, 1, 1, 8, ReduceOrder::ORDER_ONLY_VALUE);
    ordered();
    WholeReduceMax(few[128], most, whole + (left != 0), 1, 1, 1, 8, ReduceOrder::ORDER_ONLY_VALUE);
    ordered();
    return read(few[128]) > 1.5f;
  }

  // Says whether NaN came of it.
  __aicore__ inline bool norm_row(int32_t side, const GlobalTensor<T>& row, int64_t r) {
    const LocalTensor<float> sum = few[64], part = few[128];
    for (int32_t at = 0; at < v.d; at += kFuseCount) {
      const int32_t n = piece_of(at);
      widen(in_, f, row[at], n);
      Mul(spare, f, f, n);
      ordered();
      ReduceSum(part, spare, spare, n);
      ordered();
      if (at) Add(sum, sum, part, 1);
      else Muls(sum, part, 1.f, 1);
      ordered();
    }
    inverse_rms(sum, few, v.mean, v.eps, 1);
    const float q = read(sum);
    const bool whole = v.d <= kFuseCount;
    bool any = false;
    for (int32_t at = 0; at < v.d; at += kFuseCount) {
      const int32_t n = piece_of(at);
      if (!whole) widen(in_, f, row[at], n);
      if (!whole || kept_ != side) {
        if (v.norm_f32[side]) widen(in_, w, global<float>(norm_[side])[at], n);
        else widen(in_, w, global<bfloat16_t>(norm_[side])[at], n);
        kept_ = side;
      }
      Muls(f, f, q, n);
      ordered();
      Mul(f, f, w, n);
      ordered();
      const bool bad = holds_nan(f, n);
      any = any || bad;
      LocalTensor<X> made = made_.template AllocTensor<X>();
      if (bad) {
        clear(made);
      } else if constexpr (is_float<X> && !is_float<T>) {  // rounded to the rows' type before the products
        const LocalTensor<T> rounded = spare.template ReinterpretCast<T>();
        from_float(rounded, f, n);
        ordered();
        to_float(made, rounded, n);
      } else {
        take_floats(made, f, n);
      }
      ordered();
      put(r, at, made);
    }
    return any;
  }

  static constexpr uint32_t kNaN = 0x7fc00000u;

  const NextnFuseHiddenTiling v;
  GM_ADDR norm_[2];
  GlobalTensor<T> rows_[2];
  GlobalTensor<X> x_;
  GlobalTensor<float> flags_;
  TPipe pipe;
  TQue<TPosition::VECIN, 2> in_;
  TQue<TPosition::VECOUT, 2> made_, flag_queue_;
  TBuf<TPosition::VECCALC> f_, w_, spare_, few_;
  LocalTensor<float> f, w, spare, few;
  int32_t kept_ = -1;  // whose norm weights stand in w
};

}  // namespace dsv4_ascend
