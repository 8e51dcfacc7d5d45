// SPDX-License-Identifier: Apache-2.0
// Launch 2 of mhc_pre, mhc_post_pre and mhc_head, the cores that make y. From the partial sums: the weights
// of a group of 8 tokens; then row by row y = sum_i w[i] * x[i], rounded to the stream dtype, and the norm of
// that. A row of y stays in the buffer until it is done; x passes through it in tiles of `width` channels,
// once.
#pragma once
#include "mhc_tiling.h"
#include "mhc_vector.h"

namespace dsv4_ascend {

constexpr int32_t kMhcMostSlices = 256;  // d is 32768 at most
constexpr int32_t kMhcAtOnce = 16;  // slices summed as a tree before they join the total

// n rows of `size` floats, whole vectors apart, into the first, by halves.
__aicore__ inline constexpr int32_t fold_pitch(int32_t size) { return round_up(size, kRowLanes); }
__aicore__ inline void fold(const LocalTensor<float>& rows, int32_t n, int32_t size) {
  const int32_t pitch = fold_pitch(size);
  const uint8_t step = static_cast<uint8_t>(pitch / 8);
  while (n > 1) {
    const int32_t half = (n + 1) / 2;
    for (int32_t at = 0; at < size; at += kRowLanes)
      Add(rows[at], rows[at], rows[half * pitch + at], static_cast<uint64_t>(min_of(size - at, kRowLanes)),
          static_cast<uint8_t>(n - half), BinaryRepeatParams(1, 1, 1, step, step, step));
    ordered();
    n = half;
  }
}

// base and scale of a site, every value eight times: 24 blocks of base, then up to 8 of scale.
constexpr int32_t kMhcSiteBlocks = 32;
template <class Queue>
__aicore__ inline void load_site(Queue& queue, const LocalTensor<float>& blocks, GM_ADDR base, GM_ADDR scale,
                                 int32_t columns, int32_t scales) {
  LocalTensor<float> raw = queue.template AllocTensor<float>();
  load_row(raw, global<float>(base), columns);
  load_row(raw[24], global<float>(scale), scales);
  queue.EnQue(raw);
  raw = queue.template DeQue<float>();
  spread(blocks, raw, columns);
  spread(blocks[24 * 8], raw[24], scales);
  ordered();
  queue.FreeTensor(raw);
}

// The first `rows` sums of a group's tokens, [row][8 tokens], into `total`.
template <class Queue>
__aicore__ inline void load_sums(Queue& queue, const LocalTensor<float>& total,
                                 const GlobalTensor<float>& partial, int64_t group, int32_t rows,
                                 const MhcFinishTiling& v) {
  const int32_t size = rows * kMhcGroup, whole = (1 + v.columns) * kMhcGroup;
  for (int32_t s = 0; s < v.slices; s += kMhcAtOnce) {
    const int32_t n = min_of(v.slices - s, kMhcAtOnce);
    LocalTensor<float> part = queue.template AllocTensor<float>();
    rows_in(part, partial[(group * v.slices + s) * whole], n, size, whole, fold_pitch(size));
    queue.EnQue(part);
    part = queue.template DeQue<float>();
    fold(part, n, size);
    if (s == 0)
      Adds(total, part, 0.f, size);
    else
      Add(total, total, part, size);
    ordered();
    queue.FreeTensor(part);
  }
}

// The weights of a group's tokens, [stream][8 tokens], behind the group's factors in `total`.
template <class Queue>
__aicore__ inline void weights_of(Queue& queue, const LocalTensor<float>& total, const GlobalTensor<float>& partial,
                                  int64_t group, const LocalTensor<float>& site, const LocalTensor<float>& ones,
                                  const MhcFinishTiling& v) {
  const LocalTensor<float> w = total[kMhcGroup];
  const int32_t n = v.hc * kMhcGroup;
  load_sums(queue, total, partial, group, 1 + v.hc, v);
  inverse_rms(total, ones, v.mean_row, v.rms_eps, kMhcGroup);
  by_block<false>(w, w, total, n);  // here a block is the group's eight factors
  ordered();
  by_block<false>(w, w, site[24 * 8], n);
  ordered();
  Add(w, w, site, n);
  ordered();
  sigmoid(w, ones, n, 1);
  Adds(w, w, v.hc_eps, n);
  ordered();
}

// n channels of the norm weight as floats.
template <class W, class Queue>
__aicore__ inline void load_norm_row(Queue& queue, const LocalTensor<float>& to, GM_ADDR norm, int64_t channel,
                                     int32_t n) {
  LocalTensor<W> raw = queue.template AllocTensor<W>();
  load_row(raw, global<W>(norm)[channel], n);
  queue.EnQue(raw);
  raw = queue.template DeQue<W>();
  if constexpr (is_float<W>)
    Muls(to, raw, 1.f, n);
  else
    to_float(to, raw, n);
  ordered();
  queue.FreeTensor(raw);
}

template <class T>
class MhcJoin {
 public:
  __aicore__ inline MhcJoin(const MhcFinishTiling& tiling) : v(tiling) {}
  __aicore__ inline void init(TPipe* pipe, GM_ADDR residual, GM_ADDR partial, GM_ADDR base, GM_ADDR scale,
                              GM_ADDR norm, GM_ADDR y, int32_t scales) {
    residual_ = global<T>(residual), partial_ = global<float>(partial), y_ = global<T>(y), norm_ = norm;
    pipe->InitBuffer(sum_queue_, 2, kMhcAtOnce * fold_pitch((1 + v.hc) * kMhcGroup) * sizeof(float));
    pipe->InitBuffer(x_queue_, 2, v.hc * v.width * sizeof(T));
    pipe->InitBuffer(y_queue_, v.y_buffers, round_up(v.d, 64) * sizeof(T));
    pipe->InitBuffer(small_, kMhcJoinSmall);
    pipe->InitBuffer(row_, v.width * sizeof(float));
    if (!is_float<T>) pipe->InitBuffer(floats_, v.hc * v.width * sizeof(float));
    if (v.norm) {
      pipe->InitBuffer(norm_queue_, 2, v.width * sizeof(float));
      pipe->InitBuffer(norm_floats_, (v.norm_kept ? round_up(v.d, 64) : v.width) * sizeof(float));
    }
    Duplicate(at(kOnes), 1.f, kRowLanes);
    Duplicate(at(kSquares), 0.f, kMhcMostSlices);
    load_site(sum_queue_, at(kSite), base, scale, v.columns, scales);
    if (v.norm && v.norm_kept)
      for (int32_t c = 0; c < v.d; c += v.width) load_norm(norm_floats_.Get<float>()[c], c);
  }

  __aicore__ inline void run(int64_t index, int64_t cores) {
    const Share mine = share_of(v.tokens, cores, index);
    int64_t held = -1;
    for (int64_t t = mine.first; t < mine.first + mine.count; ++t) {
      if (t / kMhcGroup != held) held = t / kMhcGroup, blocks_of(held);
      row_of(t);
    }
  }

 private:
  // floats in small_
  static constexpr int32_t kOnes = 0, kSite = 64, kTotal = kSite + kMhcSiteBlocks * 8, kWeights = kTotal + 64,
                           kSquares = kWeights + 256, kFactor = kSquares + kMhcMostSlices;
  __aicore__ inline LocalTensor<float> at(int32_t offset) { return small_.Get<float>()[offset]; }

  // The weights of a group's tokens as blocks [stream][token].
  __aicore__ inline void blocks_of(int64_t group) {
    weights_of(sum_queue_, at(kTotal), partial_, group, at(kSite), at(kOnes), v);
    spread(at(kWeights), at(kTotal + kMhcGroup), v.hc * kMhcGroup);
    ordered();
  }

  __aicore__ inline void row_of(int64_t t) {
    LocalTensor<T> y = y_queue_.template AllocTensor<T>();
    for (int32_t c = 0; c < v.d; c += v.width) join(y[c], t, c, min_of(v.width, v.d - c));
    if (v.norm) {
      factor_of();
      for (int32_t c = 0; c < v.d; c += v.width) scale(y[c], c, min_of(v.width, v.d - c));
    }
    y_queue_.EnQue(y);
    y = y_queue_.template DeQue<T>();
    store_row(y_[t * v.y_t], y, v.d);
    y_queue_.FreeTensor(y);
  }

  // n channels of y from `channel` on, and the sum of squares of every slice of them.
  __aicore__ inline void join(const LocalTensor<T>& y, int64_t t, int32_t channel, int32_t n) {
    LocalTensor<T> raw = x_queue_.template AllocTensor<T>();
    rows_in(raw, residual_[t * v.residual_t + channel], v.hc, n, v.residual_i, v.width);
    x_queue_.EnQue(raw);
    raw = x_queue_.template DeQue<T>();
    LocalTensor<float> x, sum, row = row_.Get<float>();
    if constexpr (is_float<T>) {
      x = raw, sum = y;
    } else {
      x = floats_.Get<float>(), sum = row;
      for (int32_t i = 0; i < v.hc; ++i) to_float(x[i * v.width], raw[i * v.width], n);
      ordered();
      x_queue_.FreeTensor(raw);
    }
    const LocalTensor<float> w = at(kWeights)[t % kMhcGroup * 8];
    by_block<false>(sum, x, w, n);
    ordered();
    for (int32_t i = 1; i < v.hc; ++i) {
      by_block<true>(sum, x[i * v.width], w[i * kMhcGroup * 8], n);
      ordered();
    }
    if constexpr (is_float<T>) {
      x_queue_.FreeTensor(raw);
    } else {
      from_float(y, sum, n);
      ordered();
    }
    if (!v.norm) return;
    if constexpr (!is_float<T>) {
      to_float(row, y, n);
      ordered();
      Mul(row, row, row, n);
    } else {
      Mul(row, y, y, n);
    }
    ordered();
    slice_sums(at(kSquares)[channel / kMhcSlice], row, n);
  }
  // The sum of every slice's squares: lanes l and l + 64, then the lanes. As MhcOnce does, for many rows at once.
  __aicore__ inline void slice_sums(const LocalTensor<float>& to, const LocalTensor<float>& from, int32_t n) {
    const int32_t whole = n / kMhcSlice, left = n % kMhcSlice;
    const LocalTensor<float> rest = from[whole * kMhcSlice];
    if (whole)
      Add(from, from, from[kRowLanes], static_cast<uint64_t>(kRowLanes), static_cast<uint8_t>(whole),
          BinaryRepeatParams(1, 1, 1, 16, 16, 16));
    if (left > kRowLanes) Add(rest, rest, rest[kRowLanes], left - kRowLanes);
    ordered();
    if (whole) WholeReduceSum(to, from, kRowLanes, whole, 1, 1, 16);
    if (whole && left) ordered();  // both may write one block
    if (left) WholeReduceSum(to[whole], rest, min_of(left, kRowLanes), 1, 1, 1, 8);
    ordered();
  }
  // The inverse RMS of the row of y as a block.
  __aicore__ inline void factor_of() {
    const LocalTensor<float> factor = at(kFactor);
    spread(factor, at(kSquares), v.slices);
    ordered();
    fold_rows(factor, v.slices, 8);
    inverse_rms(factor, at(kOnes), v.mean_channels, v.rms_eps, 8);
  }
  __aicore__ inline void scale(const LocalTensor<T>& y, int32_t channel, int32_t n) {
    LocalTensor<float> norm = norm_floats_.Get<float>(), x = row_.Get<float>();
    if (v.norm_kept)
      norm = norm[channel];
    else
      load_norm(norm, channel);
    if constexpr (is_float<T>) {
      x = y;
    } else {
      to_float(x, y, n);
      ordered();
    }
    by_block<false>(x, x, at(kFactor), n);
    ordered();
    Mul(x, x, norm, n);
    ordered();
    if constexpr (!is_float<T>) {
      from_float(y, x, n);
      ordered();
    }
  }

  __aicore__ inline void load_norm(const LocalTensor<float>& to, int32_t channel) {
    const int32_t n = min_of(v.width, v.d - channel);
    if (v.norm == 2)
      load_norm_row<bfloat16_t>(norm_queue_, to, norm_, channel, n);
    else
      load_norm_row<float>(norm_queue_, to, norm_, channel, n);
  }
  const MhcFinishTiling v;
  GlobalTensor<T> residual_, y_;
  GlobalTensor<float> partial_;
  GM_ADDR norm_;
  TQue<TPosition::VECIN, 1> sum_queue_, x_queue_, norm_queue_;
  TQue<TPosition::VECOUT, 1> y_queue_;
  TBuf<TPosition::VECCALC> small_, row_, floats_, norm_floats_;
};

}  // namespace dsv4_ascend
