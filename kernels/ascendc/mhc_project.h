// SPDX-License-Identifier: Apache-2.0
// Launch 1 of mhc_pre, mhc_post_pre and mhc_head: partial sums of x*x and of the columns fn . x, fp32.
//
// A slice is 128 channels of all streams. A core holds fn of one or two slices and runs the tokens past them,
// so fn is read about once per launch however many tokens there are. For each token 64 lanes are kept per
// column: lane l adds the products of channels l and l + 64 of stream 0, then of stream 1, ...; the lanes are
// then summed by one reduction and written as [group of 8 tokens][slice][1 + columns][8 tokens]. Nothing here
// depends on the number of tokens or cores, so a row's bits never do. Column c of a token is one iteration of
// a vector instruction that takes x with a repeat stride of 0: 24 columns cost one instruction for 64
// channels.
//
// MIX (mhc_post_pre): x is first made of y and the old residual, rounded to the stream dtype and written.
// KEEP (mhc_once.h): slices are split over the cores, and x stays in local memory.
#pragma once
#include "mhc_coefficients.h"
#include "mhc_tiling.h"

namespace dsv4_ascend {

template <class T, bool MIX, bool KEEP = false>
class MhcProject {
  static constexpr bool kWide = is_float<T>;  // no Cast

 public:
  __aicore__ inline MhcProject(const MhcProjectTiling& tiling) : v_(tiling) {}
  template <class Buffers>
  __aicore__ inline void init(Buffers* pipe, GM_ADDR residual, GM_ADDR fn, GM_ADDR partial) {
    residual_.SetGlobalBuffer(reinterpret_cast<__gm__ T*>(residual));
    fn_gm_.SetGlobalBuffer(reinterpret_cast<__gm__ float*>(fn));
    partial_.SetGlobalBuffer(reinterpret_cast<__gm__ float*>(partial));
    rows_ = 1 + v_.columns, pitch_ = v_.wide * kMhcSlice, lanes_ = rows_ * kMhcLanes;
    const uint32_t row = static_cast<uint32_t>(v_.hc * pitch_);
    pipe->InitBuffer(fn_queue_, 1, v_.columns * row * sizeof(float));
    if (MIX || !KEEP) pipe->InitBuffer(x_queue_, 2, v_.each * row * sizeof(T));
    pipe->InitBuffer(out_queue_, 2, v_.wide * rows_ * kMhcGroup * sizeof(float));
    pipe->InitBuffer(sum_buffer_, v_.wide * v_.each * lanes_ * sizeof(float));
    if (!kWide) pipe->InitBuffer(x_buffer_, v_.each * row * sizeof(float));
  }
  template <class Buffers>
  __aicore__ inline void init_mix(Buffers* pipe, GM_ADDR y, GM_ADDR post, GM_ADDR comb, GM_ADDR out) {
    y_.SetGlobalBuffer(reinterpret_cast<__gm__ T*>(y));
    mixed_.SetGlobalBuffer(reinterpret_cast<__gm__ T*>(out));
    const uint32_t row = static_cast<uint32_t>(v_.hc * pitch_);
    coefficients_.init(pipe, post, comb, v_);
    pipe->InitBuffer(y_queue_, 2, v_.each * pitch_ * sizeof(T));
    if (!KEEP) pipe->InitBuffer(mixed_queue_, 2, v_.each * row * sizeof(T));
    if (!kWide) pipe->InitBuffer(y_buffer_, v_.each * pitch_ * sizeof(float));
  }

  __aicore__ inline void run() {
    const Share mine = share_of(v_.items, GetBlockNum(), GetBlockIdx());
    int64_t held = -1;
    LocalTensor<float> fn;
    for (int64_t item = mine.first; item < mine.first + mine.count; ++item) {
      const int64_t piece = item / v_.groups;
      if (piece != held) {
        if (held >= 0) fn_queue_.FreeTensor(fn);
        channel_ = static_cast<int32_t>(piece) * pitch_;
        width_ = v_.d - channel_ < pitch_ ? v_.d - channel_ : pitch_;
        fn = load_weights();
        held = piece;
      }
      group_of(fn, static_cast<int32_t>(piece), static_cast<int32_t>(item % v_.groups));
    }
    if (held >= 0) fn_queue_.FreeTensor(fn);
  }

  // KEEP: the slices of `mine`, whose rows stay in `kept`: [slice][token][stream][128].
  __aicore__ inline void run(const LocalTensor<T>& kept, const Share& mine) {
    for (int32_t s = 0; s < mine.count; ++s) {
      const int32_t slice = static_cast<int32_t>(mine.first) + s;
      at_slice(kept, slice, s);
      LocalTensor<float> fn = load_weights();
      for (int32_t g = 0; g < v_.groups; ++g) group_of(fn, slice, g);
      fn_queue_.FreeTensor(fn);
    }
  }
  // MIX, KEEP: the rows that run() mixed, to global memory.
  __aicore__ inline void store_mixed(const LocalTensor<T>& kept, const Share& mine) {
    for (int32_t s = 0; s < mine.count; ++s) {
      at_slice(kept, static_cast<int32_t>(mine.first) + s, s);
      streams<true>(mixed_, kept_, 0, v_.tokens, v_.out_t, v_.out_i);
    }
  }

 private:
  __aicore__ inline void at_slice(const LocalTensor<T>& kept, int32_t slice, int32_t s) {
    kept_ = kept[s * v_.tokens * v_.hc * pitch_];
    channel_ = slice * pitch_;
    width_ = min_of(v_.d - channel_, pitch_);
  }

  __aicore__ inline LocalTensor<float> load_weights() {
    LocalTensor<float> fn = fn_queue_.template AllocTensor<float>();
    for (int32_t i = 0; i < v_.hc; ++i)
      rows_in(fn[i * pitch_], fn_gm_[static_cast<int64_t>(i) * v_.d + channel_], v_.columns, width_, v_.fn_c,
              v_.hc * pitch_);
    if (KEEP && !MIX) streams<false>(residual_, kept_, 0, v_.tokens, v_.residual_t, v_.residual_i);
    fn_queue_.EnQue(fn);  // its flag stands behind both loads
    return fn_queue_.template DeQue<float>();
  }

  __aicore__ inline void group_of(const LocalTensor<float>& fn, int32_t piece, int32_t group) {
    const int32_t first = group * kMhcGroup;
    const int32_t tokens = v_.tokens - first < kMhcGroup ? v_.tokens - first : kMhcGroup;
    LocalTensor<float> out = out_queue_.template AllocTensor<float>();
    if (tokens < kMhcGroup) {
      Duplicate(out, 0.f, v_.wide * rows_ * kMhcGroup);
      ordered();
    }
    if (MIX) coefficients_.load(first, tokens);
    for (int32_t t = 0; t < tokens; t += v_.each)
      tokens_of(fn, out, first, t, tokens - t < v_.each ? tokens - t : v_.each);
    out_queue_.EnQue(out);
    out = out_queue_.template DeQue<float>();
    const int32_t slices = (width_ + kMhcSlice - 1) / kMhcSlice;
    const int64_t at =
        (static_cast<int64_t>(group) * v_.slices + static_cast<int64_t>(piece) * v_.wide) * rows_ * kMhcGroup;
    DataCopy(partial_[at], out, static_cast<uint32_t>(slices * rows_ * kMhcGroup));
    out_queue_.FreeTensor(out);
  }

  // n tokens from `first + t` on.
  __aicore__ inline void tokens_of(const LocalTensor<float>& fn, const LocalTensor<float>& out, int32_t first,
                                   int32_t t, int32_t n) {
    LocalTensor<T> kept;
    if (KEEP) kept = kept_[(first + t) * v_.hc * pitch_];
    if constexpr (KEEP && !MIX) {
      products(fn, wide(kept, x_buffer_, n * v_.hc), n);
      sums_of(out, t, n);
      return;
    }
    LocalTensor<T> raw = x_queue_.template AllocTensor<T>();
    streams<false>(residual_, raw, first + t, n, v_.residual_t, v_.residual_i);
    x_queue_.EnQue(raw);
    raw = x_queue_.template DeQue<T>();
    LocalTensor<float> x = wide(raw, x_buffer_, n * v_.hc);
    if constexpr (!MIX) {
      if (!kWide) x_queue_.FreeTensor(raw);
      products(fn, x, n);
      sums_of(out, t, n);
      if (kWide) x_queue_.FreeTensor(raw);
      return;
    }
    LocalTensor<T> mixed = kept;
    if (!KEEP) mixed = mixed_queue_.template AllocTensor<T>();
    mix(mixed, x, first, t, n);
    x_queue_.FreeTensor(raw);
    x = wide(mixed, x_buffer_, n * v_.hc);
    if (!KEEP && !kWide) store(mixed, first + t, n);  // while the products run
    products(fn, x, n);
    sums_of(out, t, n);
    if (!KEEP && kWide) store(mixed, first + t, n);
  }

  // Rows of n tokens between global memory (OUT: to it) and [token][stream][pitch].
  template <bool OUT>
  __aicore__ inline void streams(const GlobalTensor<T>& gm, const LocalTensor<T>& local, int64_t token,
                                 int32_t n, int64_t stride_t, int64_t stride_i) {
    const bool even = stride_t == v_.hc * stride_i || v_.hc == 1;
    const int32_t calls = even ? 1 : n, rows = even ? n * v_.hc : v_.hc;
    const int64_t stride = v_.hc == 1 ? stride_t : stride_i;
    for (int32_t i = 0; i < calls; ++i) {
      const GlobalTensor<T> there = gm[(token + i) * stride_t + channel_];
      const LocalTensor<T> here = local[i * v_.hc * pitch_];
      if (OUT)
        rows_out(there, here, rows, width_, stride, pitch_);
      else
        rows_in(here, there, rows, width_, stride, pitch_);
    }
  }

  // Rows of the pitch as floats; floats stay where they are.
  template <class Buffer>
  __aicore__ inline LocalTensor<float> wide(const LocalTensor<T>& raw, Buffer& buffer, int32_t rows) {
    if constexpr (kWide)
      return raw;
    else {
      LocalTensor<float> x = buffer.template Get<float>();
      ordered();  // what was there has been used
      for (int32_t at = 0; at < width_; at += kMhcLanes)
        Cast(x[at], raw[at], RoundMode::CAST_NONE, static_cast<uint64_t>(lanes_at(at)),
             static_cast<uint8_t>(rows), UnaryRepeatParams(1, 1, pitch_ / 8, pitch_ / 16));
      ordered();
      return x;
    }
  }
  __aicore__ inline int32_t lanes_at(int32_t at) const {
    return width_ - at < kMhcLanes ? width_ - at : kMhcLanes;
  }

  __aicore__ inline void products(const LocalTensor<float>& fn, const LocalTensor<float>& x, int32_t n) {
    LocalTensor<float> sums = sum_buffer_.template Get<float>();
    const uint8_t row = static_cast<uint8_t>(v_.hc * pitch_ / 8), lanes = static_cast<uint8_t>(lanes_ / 8);
    const BinaryRepeatParams columns(1, 1, 1, 8, row, 0), squares(1, 1, 1, lanes, row, row);
    const uint8_t c = static_cast<uint8_t>(v_.columns), tokens = static_cast<uint8_t>(n);
    ordered();
    for (int32_t i = 0; i < v_.hc; ++i) {
      for (int32_t half = 0; half < 2; ++half) {
        for (int32_t s = 0; s < v_.wide; ++s) {
          const int32_t at = s * kMhcSlice + half * kMhcLanes;
          if (at >= width_) continue;
          const uint64_t mask = static_cast<uint64_t>(lanes_at(at));
          const LocalTensor<float> w = fn[i * pitch_ + at], first = x[i * pitch_ + at],
                                   to = sums[s * v_.each * lanes_];
          if (i == 0 && half == 0) {
            Mul(to, first, first, mask, tokens, squares);
            for (int32_t t = 0; t < n; ++t)
              Mul(to[t * lanes_ + kMhcLanes], w, x[(t * v_.hc + i) * pitch_ + at], mask, c, columns);
          } else {
            MulAddDst(to, first, first, mask, tokens, squares);
            for (int32_t t = 0; t < n; ++t)
              MulAddDst(to[t * lanes_ + kMhcLanes], w, x[(t * v_.hc + i) * pitch_ + at], mask, c, columns);
          }
        }
        ordered();
      }
    }
  }
  // The lanes of every column into [column][token] of `out`. Tokens share the blocks of results: one after another.
  __aicore__ inline void sums_of(const LocalTensor<float>& out, int32_t t0, int32_t n) {
    LocalTensor<float> sums = sum_buffer_.template Get<float>();
    for (int32_t t = 0; t < n; ++t) {
      for (int32_t s = 0; s * kMhcSlice < width_; ++s)
        WholeReduceSum(out[s * rows_ * kMhcGroup + t0 + t], sums[(s * v_.each + t) * lanes_],
                       lanes_at(s * kMhcSlice), rows_, kMhcGroup, 1, 8);
      ordered();
    }
  }

  // ---- mhc_post_pre
  // post * y + comb^T x of n tokens, rounded. An instruction makes 64 channels of all streams of a token.
  __aicore__ inline void mix(const LocalTensor<T>& mixed, const LocalTensor<float>& x, int32_t first, int32_t t0,
                             int32_t n) {
    LocalTensor<T> raw = y_queue_.template AllocTensor<T>();
    rows_in(raw, y_[(static_cast<int64_t>(first) + t0) * v_.y_t + channel_], n, width_, v_.y_t, pitch_);
    y_queue_.EnQue(raw);
    raw = y_queue_.template DeQue<T>();
    const LocalTensor<float> y = wide(raw, y_buffer_, n);
    LocalTensor<float> sum;
    if constexpr (kWide)
      sum = mixed;
    else
      sum = sum_buffer_.template Get<float>();  // free until the products: hc * pitch floats a token fit
    const BinaryRepeatParams strides(1, 1, 0, static_cast<uint8_t>(pitch_ / 8), 0, 1);
    const uint8_t streams = static_cast<uint8_t>(v_.hc);
    ordered();
    for (int32_t at = 0; at < width_; at += kMhcLanes)
      for (int32_t t = 0; t < n; ++t)
        Mul(sum[t * v_.hc * pitch_ + at], y[t * pitch_ + at], coefficients_.post(t0 + t),
            static_cast<uint64_t>(lanes_at(at)), streams, strides);
    ordered();
    for (int32_t j = 0; j < v_.hc; ++j) {
      for (int32_t at = 0; at < width_; at += kMhcLanes)
        for (int32_t t = 0; t < n; ++t)
          MulAddDst(sum[t * v_.hc * pitch_ + at], x[(t * v_.hc + j) * pitch_ + at],
                    coefficients_.comb(t0 + t, j), static_cast<uint64_t>(lanes_at(at)), streams, strides);
      ordered();
    }
    y_queue_.FreeTensor(raw);
    if constexpr (!kWide) {
      for (int32_t at = 0; at < width_; at += kMhcLanes)
        Cast(mixed[at], sum[at], RoundMode::CAST_RINT, static_cast<uint64_t>(lanes_at(at)),
             static_cast<uint8_t>(n * v_.hc), UnaryRepeatParams(1, 1, pitch_ / 16, pitch_ / 8));
      ordered();
    }
  }
  __aicore__ inline void store(LocalTensor<T>& mixed, int64_t token, int32_t n) {
    mixed_queue_.EnQue(mixed);
    mixed = mixed_queue_.template DeQue<T>();
    streams<true>(mixed_, mixed, token, n, v_.out_t, v_.out_i);
    mixed_queue_.FreeTensor(mixed);
  }

  const MhcProjectTiling v_;
  int32_t rows_, pitch_, lanes_;  // columns and the squares; floats of a slice row; floats of a token's sums
  int32_t channel_ = 0, width_ = 0;  // of the weights held
  LocalTensor<T> kept_;  // of this slice
  GlobalTensor<T> residual_, y_, mixed_;
  GlobalTensor<float> fn_gm_, partial_;
  MhcCoefficients coefficients_;
  TQue<TPosition::VECIN, 1> fn_queue_, x_queue_, y_queue_;
  TQue<TPosition::VECOUT, 1> out_queue_, mixed_queue_;
  TBuf<TPosition::VECCALC> sum_buffer_, x_buffer_, y_buffer_;
};

}  // namespace dsv4_ascend
