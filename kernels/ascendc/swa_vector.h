// SPDX-License-Identifier: Apache-2.0
// The vector cores' side of swa_paged_attention: each of the two takes half of a unit's pairs; scores in,
// rounded weights out, weighted sums in, results out. A part holds all keys of a row where v.online is 0;
// else sums stay here between parts and are shrunk as the maximum rises.
#pragma once
#include "swa_clean.h"
#include "swa_softmax.h"
#include "swa_turn.h"

namespace dsv4_ascend {

template <class T>
class SwaVector {
 public:
  __aicore__ inline SwaVector(GM_ADDR kv, GM_ADDR table, GM_ADDR starts, GM_ADDR lens, GM_ADDR sink,
                              GM_ADDR mask, GM_ADDR cos_sin, GM_ADDR out, GM_ADDR workspace,
                              const SwaTiling& tiling)
      : v(tiling),
        request_(v, table, starts, lens, mask),
        softmax_(v.pairs / 2, kGroups, v.scale),
        turn_(v.D, v.R ? v.R : 2),
        keys_(kv, workspace, GetBlockIdx() / 2, v),
        out_(global<T>(out)),
        sink_(global<float>(sink)),
        cos_sin_(global<float>(cos_sin)),
        second_(GetSubBlockIdx() != 0) {
    const SwaScratch s = swa_scratch(v.pairs, v.D);
    const int64_t group = GetBlockIdx() / 2;
    scores_ = swa_scratch_at<float>(workspace, v, group, 0);
    weights_ = swa_scratch_at<T>(workspace, v, group, s.weights);
    sums_ = swa_scratch_at<float>(workspace, v, group, s.sums);
    pipe_.InitBuffer(score_queue_, 1, v.pairs / 2 * kSwaPart * sizeof(float));
    pipe_.InitBuffer(weight_queue_, 1, v.pairs / 2 * kSwaPart * sizeof(T));
    pipe_.InitBuffer(sum_queue_, 2, kRows * v.D * sizeof(float));
    pipe_.InitBuffer(out_queue_, 2, kRows * v.D * sizeof(T));
    if (v.online) pipe_.InitBuffer(total_buffer_, v.pairs / 2 * v.D * sizeof(float));
    softmax_.init(&pipe_);
    keys_.init(&pipe_);
    if (v.R) turn_.init(&pipe_);
  }

  __aicore__ inline void run() {
    const Share mine =
        share_of(ceil_div<int64_t>(v.T, v.tile_rows) * v.head_tiles, GetBlockNum(), GetBlockIdx() / 2);
    for (int64_t unit = mine.first; unit < mine.first + mine.count; ++unit) {
      const int64_t t = unit / v.head_tiles * v.tile_rows, end = min_of(t + v.tile_rows, v.T);
      h0_ = static_cast<int32_t>(unit % v.head_tiles) * v.tile_heads,
      heads_ = min_of(v.tile_heads, v.H - h0_);
      for (int64_t row = t; row < end; row += request_.g.rows) {
        const bool real = request_.find(row, end);
        const int32_t pairs = request_.g.rows * heads_, half = min_of(round_up(ceil_div(pairs, 2), 8), pairs);
        first_ = second_ ? half : 0, pairs_ = second_ ? pairs - half : half;
        if (real) attend();
        else if (v.zero_padding) clear();
      }
    }
    softmax_.finish(&pipe_);
    keys_.finish(&pipe_);
  }

 private:
  static constexpr int32_t kGroup = 64, kGroups = kSwaPart / kGroup;
  static constexpr int32_t kRows = 8;  // of weighted sums that are worked on at once

  __aicore__ inline static uint64_t lanes(int32_t left) {
    return static_cast<uint64_t>(min_of(left, kRowLanes));
  }

  __aicore__ inline void attend() {
    softmax_.use(pairs_ ? pairs_ : 1);
    softmax_.begin();
    LocalTensor<float> total;
    if (v.online) {
      total = total_buffer_.template Get<float>();
      if (pairs_) Duplicate(total, 0.f, pairs_ * v.D);
      ordered();
    }
    bool any = false;
    for (int32_t i = request_.keys.first / kSwaPart; i < request_.parts(); ++i) {
      const SwaPart part = request_.part(i);
      if (part.any < 0) continue;
      any = true;
      weigh(part, i * kSwaPart);
      if (!v.online) divide_by();
      CrossCoreWaitFlag(kSwaSumsFlag);
      for (int32_t at = 0; at < pairs_; at += kRows) {
        const int32_t n = min_of(pairs_ - at, kRows);
        LocalTensor<float> sums = sum_queue_.template AllocTensor<float>();
        load_row(sums, sums_[static_cast<int64_t>(first_ + at) * v.D], n * v.D);
        sum_queue_.EnQue(sums);
        sums = sum_queue_.template DeQue<float>();
        if (v.online) add(total[at * v.D], sums, at, n);
        else finish(sums, at, n);
        sum_queue_.FreeTensor(sums);
      }
    }
    if (!any) return clear();
    if (!v.online) return;
    divide_by();
    for (int32_t at = 0; at < pairs_; at += kRows) finish(total[at * v.D], at, min_of(pairs_ - at, kRows));
  }

  // Scores of a part become weights. `base` is the key of column 0.
  __aicore__ inline void weigh(const SwaPart& part, int32_t base) {
    const int32_t from = (part.begin - base) / kGroup, groups = ceil_div(part.end - base, kGroup) - from;
    const int32_t width = groups * kGroup, column = from * kGroup;
    look(part, base + column, groups);
    CrossCoreWaitFlag(kSwaScoresFlag);
    const int64_t scores = static_cast<int64_t>(count_++ % 2) * v.pairs * kSwaPart;
    if (pairs_) {
      LocalTensor<float> x = score_queue_.template AllocTensor<float>();
      rows_in(x, scores_[scores + first_ * kSwaPart + column], pairs_, width, kSwaPart, width);
      score_queue_.EnQue(x);
      x = score_queue_.template DeQue<float>();
      if (!second_) keys_.judge(x, softmax_.spare, part, groups, request_);
      softmax_.weigh(x, groups);
      LocalTensor<T> weights = weight_queue_.template AllocTensor<T>();
      from_float(weights, x, pairs_ * width);
      ordered();
      to_float(x, weights, pairs_ * width);
      weight_queue_.EnQue(weights);
      ordered();
      softmax_.add_up(x, groups);
      score_queue_.FreeTensor(x);
      weights = weight_queue_.template DeQue<T>();
      rows_out(weights_[first_ * kSwaPart + column], weights, pairs_, width, kSwaPart, width);
      weight_queue_.FreeTensor(weights);
    }
    CrossCoreSetFlag<2, PIPE_MTE3>(kSwaWeightsFlag);
  }

  // What every pair sees, as words, and which columns hold scores.
  __aicore__ inline void look(const SwaPart& part, int32_t first, int32_t groups) {
    const int32_t words = groups * (kGroup / 32), tile = first / 32;
    uint32_t usable[kSwaPart / 32];
    for (int32_t w = 0; w < words; ++w) {
      usable[w] = 0;
      for (int32_t k = 0; k < 32;) {
        const SwaRun run = request_.run_at(first + w * 32 + k, first + w * 32 + 32);
        if (run.at >= 0) usable[w] |= bits_below(k + run.count) & ~bits_below(k);
        k += run.count;
      }
    }
    softmax_.open();
    if (!pairs_)
      for (int32_t w = 0; w < words; ++w) softmax_.set_word(w, 0);
    int32_t held = -1;
    uint32_t seen[kSwaPart / 32];
    for (int32_t i = 0; i < pairs_; ++i) {
      const int32_t row = (first_ + i) / heads_;
      if (row != held)
        for (int32_t w = 0; w < words; ++w) seen[w] = request_.seen(row, tile + w) & usable[w];
      held = row;
      for (int32_t w = 0; w < words; ++w) softmax_.set_word(i * words + w, seen[w]);
    }
    if (!second_) keys_.set_range(part, first, words);
    softmax_.close();
    if (!pairs_) softmax_.unused();
  }

  // n rows of sums, from pair `at` on.
  __aicore__ inline void add(const LocalTensor<float>& total, const LocalTensor<float>& sums, int32_t at,
                             int32_t n) {
    const uint8_t row = static_cast<uint8_t>(v.D / 8), rows = static_cast<uint8_t>(n);
    for (int32_t d = 0; d < v.D; d += kRowLanes)
      Mul(total[d], total[d], softmax_.blocks[at * 8], lanes(v.D - d), rows,
          BinaryRepeatParams(1, 1, 0, row, row, 1));
    ordered();
    Add(total, total, sums, n * v.D);
    ordered();
  }
  __aicore__ inline void divide_by() {
    if (v.has_sink) {
      softmax_.open();
      for (int32_t i = 0; i < (pairs_ ? pairs_ : 1); ++i)
        softmax_.set_sink(i, sink_.GetValue(h0_ + (first_ + i) % heads_));
      softmax_.close();
    }
    poison_ = softmax_.divisors(v.has_sink != 0);
  }
  __aicore__ inline void finish(const LocalTensor<float>& sums, int32_t at, int32_t n) {
    const uint8_t row = static_cast<uint8_t>(v.D / 8), rows = static_cast<uint8_t>(n);
    const BinaryRepeatParams strides(1, 1, 0, row, row, 1);
    for (int32_t d = 0; d < v.D; d += kRowLanes)
      Div(sums[d], sums[d], softmax_.blocks[at * 8], lanes(v.D - d), rows, strides);
    ordered();
    for (int32_t d = 0; d < v.D; d += kRowLanes)
      Add(sums[d], sums[d], poison_[at * 8], lanes(v.D - d), rows, strides);
    ordered();
    if (v.R)
      for (int32_t i = 0; i < n;) {
        const int32_t count = heads_from(at + i, n - i);
        turn_.run(sums[i * v.D], count, v.D, cos_sin_, request_.angles_at((first_ + at + i) / heads_));
        i += count;
      }
    LocalTensor<T> out = out_queue_.template AllocTensor<T>();
    from_float(out, sums, n * v.D);
    ordered();
    store(out, at, n);
  }
  // Pairs of one row that follow pair i, at most n.
  __aicore__ inline int32_t heads_from(int32_t i, int32_t n) const {
    return min_of(heads_ - (first_ + i) % heads_, n);
  }

  __aicore__ inline void clear() {
    for (int32_t at = 0; at < pairs_; at += kRows) {
      const int32_t n = min_of(pairs_ - at, kRows);
      LocalTensor<T> out = out_queue_.template AllocTensor<T>();
      Duplicate(out.template ReinterpretCast<int16_t>(), int16_t{0}, n * v.D);
      store(out, at, n);
    }
  }
  __aicore__ inline void store(LocalTensor<T>& out, int32_t at, int32_t n) {
    out_queue_.EnQue(out);
    out = out_queue_.template DeQue<T>();
    for (int32_t i = 0; i < n;) {
      const int32_t pair = first_ + at + i, count = heads_from(at + i, n - i);
      rows_out(out_[(request_.g.t + pair / heads_) * v.out_t + (h0_ + pair % heads_) * v.out_h], out[i * v.D],
               count, v.D, v.out_h, v.D);
      i += count;
    }
    out_queue_.FreeTensor(out);
  }

  const SwaTiling v;
  SwaRequest request_;
  SwaSoftmax<kGroup> softmax_;
  SwaTurn turn_;
  SwaClean<T> keys_;
  GlobalTensor<T> out_, weights_;
  GlobalTensor<float> sink_, cos_sin_, scores_, sums_;
  const bool second_;
  int32_t h0_ = 0, heads_ = 0, first_ = 0, pairs_ = 0, count_ = 0;
  LocalTensor<float> poison_;
  TPipe pipe_;
  TQue<TPosition::VECIN, 1> score_queue_, sum_queue_;
  TQue<TPosition::VECOUT, 1> weight_queue_, out_queue_;
  TBuf<TPosition::VECCALC> total_buffer_;
};

}  // namespace dsv4_ascend
