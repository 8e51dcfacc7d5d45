// SPDX-License-Identifier: Apache-2.0
// swa_paged_attention on vector cores in fp32: the exact, untuned path. A unit of work is up to 16 (query
// row, head) pairs of one request against tiles of 32 keys.
//   Scores: 64 lanes a (pair, key), lane l adds dims l, l + 64, ... in order, then one reduction of the
//   lanes. An instruction takes 64 dims of a pair and all keys of the tile. Weighted sum: key by key in
//   order; an instruction takes 64 dims of a key and all pairs.
// Keys that nobody loads and elements that are NaN or infinity are zeros by then: their scores have been
// taken, and a pair that sees such a key is told so by its poison.
#pragma once
#include "swa_softmax.h"
#include "swa_turn.h"

namespace dsv4_ascend {

class SwaExact {
 public:
  __aicore__ inline SwaExact(GM_ADDR q, GM_ADDR kv, GM_ADDR table, GM_ADDR starts, GM_ADDR lens, GM_ADDR sink,
                             GM_ADDR mask, GM_ADDR cos_sin, GM_ADDR out, const SwaTiling& tiling)
      : v(tiling),
        request_(v, table, starts, lens, mask),
        softmax_(v.pairs, 1, v.scale),
        turn_(v.D, v.R ? v.R : 2),
        q_(global<float>(q)),
        kv_(global<float>(kv)),
        out_(global<float>(out)),
        sink_(global<float>(sink)),
        cos_sin_(global<float>(cos_sin)) {
    pipe_.InitBuffer(q_queue_, 1, v.pairs * v.D * sizeof(float));
    pipe_.InitBuffer(kv_queue_, static_cast<uint8_t>(v.kv_buffers), kSwaKeys * v.D * sizeof(float));
    pipe_.InitBuffer(out_queue_, 1, v.pairs * v.D * sizeof(float));
    pipe_.InitBuffer(product_buffer_, kTogether * kSwaKeys * kRowLanes * sizeof(float));
    pipe_.InitBuffer(score_buffer_, v.pairs * kSwaKeys * sizeof(float));
    pipe_.InitBuffer(weight_buffer_, v.pairs * kSwaKeys * kBlock);
    pipe_.InitBuffer(finite_buffer_, kTogether * kSwaKeys * kRowLanes / 8);
    softmax_.init(&pipe_);
    if (v.R) turn_.init(&pipe_);
    Duplicate(score_buffer_.Get<float>(), 0.f, v.pairs * kSwaKeys);
    ordered();
  }

  __aicore__ inline void run() {
    const Share mine =
        share_of(ceil_div<int64_t>(v.T, v.tile_rows) * v.head_tiles, GetBlockNum(), GetBlockIdx());
    for (int64_t unit = mine.first; unit < mine.first + mine.count; ++unit) {
      const int64_t t = unit / v.head_tiles * v.tile_rows, end = min_of(t + v.tile_rows, v.T);
      h0_ = static_cast<int32_t>(unit % v.head_tiles) * v.tile_heads,
      heads_ = min_of(v.tile_heads, v.H - h0_);
      for (int64_t row = t; row < end; row += request_.g.rows) {
        if (request_.find(row, end)) attend();
        else if (v.zero_padding) clear();
      }
    }
    softmax_.finish(&pipe_);
  }

 private:
  static constexpr int32_t kTogether = 2;  // pairs whose scores are taken at once

  __aicore__ inline static uint64_t lanes(int32_t left) {
    return static_cast<uint64_t>(min_of(left, kRowLanes));
  }

  __aicore__ inline void attend() {
    pairs_ = request_.g.rows * heads_;
    LocalTensor<float> q = q_queue_.AllocTensor<float>();
    for (int32_t r = 0; r < request_.g.rows; ++r)
      rows_in(q[r * heads_ * v.D], q_[(request_.g.t + r) * v.q_t + h0_ * v.q_h], heads_, v.D, v.q_h, v.D);
    q_queue_.EnQue(q);
    LocalTensor<float> sum = out_queue_.AllocTensor<float>();
    Duplicate(sum, 0.f, pairs_ * v.D);
    softmax_.begin();
    sees_ = 0;
    q = q_queue_.DeQue<float>();

    const int32_t tiles = request_.tiles();
    const bool ahead = v.kv_buffers > 1;
    uint32_t usable = tiles ? load_tile(0) : 0u, next = 0;
    for (int32_t i = 0; i < tiles; ++i) {
      LocalTensor<float> kv = kv_queue_.DeQue<float>();
      if (ahead && i + 1 < tiles) next = load_tile(i + 1);
      const uint32_t wanted = look(i, usable);
      if (wanted) {
        const LocalTensor<float> x = score_buffer_.Get<float>();
        fill(kv, usable);
        score(x, q, kv);
        softmax_.weigh(x, 1);
        softmax_.add_up(x, 1);
        mix(sum, x, kv, wanted);
      }
      kv_queue_.FreeTensor(kv);
      if (!ahead && i + 1 < tiles) next = load_tile(i + 1);
      usable = next;
    }
    q_queue_.FreeTensor(q);
    finish(sum);
    store(sum);
  }

  // Begins to load a tile; the result has a bit for every key that comes.
  __aicore__ inline uint32_t load_tile(int32_t tile) {
    LocalTensor<float> kv = kv_queue_.AllocTensor<float>();
    uint32_t usable = 0;
    for (int32_t k = 0; k < kSwaKeys;) {
      const SwaRun run = request_.run_at(tile * kSwaKeys + k, (tile + 1) * kSwaKeys);
      if (run.at >= 0) {
        rows_in(kv[k * v.D], kv_[run.at], run.count, v.D, v.kv_slot, v.D);
        usable |= bits_below(k + run.count) & ~bits_below(k);
      }
      k += run.count;
    }
    kv_queue_.EnQue(kv);
    return usable;
  }

  // Tells the softmax what every pair sees; the result is what any does.
  __aicore__ inline uint32_t look(int32_t tile, uint32_t usable) {
    uint32_t any = 0;
    for (int32_t r = 0; r < request_.g.rows; ++r) any |= request_.seen(r, tile) & usable;
    if (!any) return any;
    softmax_.open();
    int32_t pair = 0;
    for (int32_t r = 0; r < request_.g.rows; ++r) {
      const uint32_t seen = request_.seen(r, tile) & usable;
      if (seen) sees_ |= bits_below(pair + heads_) & ~bits_below(pair);
      for (int32_t h = 0; h < heads_; ++h) softmax_.set_word(pair++, seen);
    }
    for (; pair < v.pairs; ++pair) softmax_.set_word(pair, 0);
    softmax_.close();
    return any;
  }

  // Zeros for the keys that did not come.
  __aicore__ inline void fill(const LocalTensor<float>& kv, uint32_t usable) {
    for (int32_t k = 0; k < kSwaKeys; ++k)
      if (!(usable >> k & 1)) Duplicate(kv[k * v.D], 0.f, v.D);
    ordered();
  }

  __aicore__ inline void score(const LocalTensor<float>& x, const LocalTensor<float>& q,
                               const LocalTensor<float>& kv) {
    const LocalTensor<float> product = product_buffer_.Get<float>();
    const uint8_t row = static_cast<uint8_t>(v.D / 8);
    const BinaryRepeatParams strides(1, 1, 1, 8, row, 0);
    constexpr uint8_t kKeys = kSwaKeys;
    for (int32_t m = 0; m < pairs_; m += kTogether) {
      const int32_t together = min_of(kTogether, pairs_ - m);
      for (int32_t at = 0; at < v.D; at += kRowLanes) {
        for (int32_t i = 0; i < together; ++i) {
          const LocalTensor<float> to = product[i * kSwaKeys * kRowLanes], mine = q[(m + i) * v.D + at];
          if (at == 0) Mul(to, kv, mine, lanes(v.D), kKeys, strides);
          else MulAddDst(to, kv[at], mine, lanes(v.D - at), kKeys, strides);
        }
        ordered();
      }
      for (int32_t i = 0; i < together; ++i)
        WholeReduceSum(x[(m + i) * kSwaKeys], product[i * kSwaKeys * kRowLanes],
                       static_cast<int32_t>(lanes(v.D)), kSwaKeys, 1, 1, 8);
      ordered();
    }
  }

  __aicore__ inline void mix(const LocalTensor<float>& sum, const LocalTensor<float>& weights,
                             const LocalTensor<float>& kv, uint32_t wanted) {
    clean(kv);
    const LocalTensor<float> blocks = weight_buffer_.Get<float>();
    spread(blocks, weights, v.pairs * kSwaKeys);
    scale_by(sum, softmax_.blocks);
    const uint8_t row = static_cast<uint8_t>(v.D / 8), pairs = static_cast<uint8_t>(pairs_);
    const BinaryRepeatParams strides(1, 1, 0, row, 0, kSwaKeys);
    for (int32_t k = 0; k < kSwaKeys; ++k) {
      if (!(wanted >> k & 1)) continue;
      for (int32_t at = 0; at < v.D; at += kRowLanes)
        MulAddDst(sum[at], kv[k * v.D + at], blocks[k * 8], lanes(v.D - at), pairs, strides);
      ordered();
    }
  }
  __aicore__ inline void clean(const LocalTensor<float>& kv) {
    const LocalTensor<float> zeros = product_buffer_.Get<float>();
    const LocalTensor<uint8_t> finite = finite_buffer_.Get<uint8_t>();
    for (int32_t at = 0, all = kSwaKeys * v.D; at < all; at += kTogether * kSwaKeys * kRowLanes) {
      const int32_t n = min_of(all - at, kTogether * kSwaKeys * kRowLanes);
      Muls(zeros, kv[at], 0.f, n);
      ordered();
      Compares(finite, zeros, 0.f, CMPMODE::EQ, static_cast<uint32_t>(n));
      ordered();
      Select(kv[at], finite, kv[at], 0.f, SELMODE::VSEL_TENSOR_SCALAR_MODE, static_cast<uint32_t>(n));
      ordered();
    }
  }
  // Rows of the sum times a block each.
  __aicore__ inline void scale_by(const LocalTensor<float>& sum, const LocalTensor<float>& blocks) {
    const uint8_t row = static_cast<uint8_t>(v.D / 8);
    for (int32_t at = 0; at < v.D; at += kRowLanes)
      Mul(sum[at], sum[at], blocks, lanes(v.D - at), static_cast<uint8_t>(pairs_),
          BinaryRepeatParams(1, 1, 0, row, row, 1));
    ordered();
  }

  __aicore__ inline void finish(const LocalTensor<float>& sum) {
    if (v.has_sink) {
      softmax_.open();
      for (int32_t m = 0; m < v.pairs; ++m)  // a sink may be NaN: 0 is 0 without it
        softmax_.set_sink(m, sees_ >> m & 1 ? sink_.GetValue(h0_ + m % heads_) : 0.f);
      softmax_.close();
    }
    const LocalTensor<float> poison = softmax_.divisors(v.has_sink != 0);
    const uint8_t row = static_cast<uint8_t>(v.D / 8), pairs = static_cast<uint8_t>(pairs_);
    const BinaryRepeatParams strides(1, 1, 0, row, row, 1);
    for (int32_t at = 0; at < v.D; at += kRowLanes)
      Div(sum[at], sum[at], softmax_.blocks, lanes(v.D - at), pairs, strides);
    ordered();
    for (int32_t at = 0; at < v.D; at += kRowLanes)
      Add(sum[at], sum[at], poison, lanes(v.D - at), pairs, strides);
    ordered();
    if (!v.R) return;
    for (int32_t r = 0; r < request_.g.rows; ++r)
      turn_.run(sum[r * heads_ * v.D], heads_, v.D, cos_sin_, request_.angles_at(r));
  }

  __aicore__ inline void clear() {
    LocalTensor<float> out = out_queue_.AllocTensor<float>();
    Duplicate(out, 0.f, request_.g.rows * heads_ * v.D);
    store(out);
  }
  __aicore__ inline void store(LocalTensor<float>& out) {
    out_queue_.EnQue(out);
    out = out_queue_.DeQue<float>();
    for (int32_t r = 0; r < request_.g.rows; ++r)
      rows_out(out_[(request_.g.t + r) * v.out_t + h0_ * v.out_h], out[r * heads_ * v.D], heads_, v.D,
               v.out_h, v.D);
    out_queue_.FreeTensor(out);
  }

  const SwaTiling v;
  SwaRequest request_;
  SwaSoftmax<kSwaKeys> softmax_;
  SwaTurn turn_;
  int32_t h0_ = 0, heads_ = 0, pairs_ = 0;
  uint32_t sees_ = 0;  // pairs that see a key
  GlobalTensor<float> q_, kv_, out_;
  GlobalTensor<float> sink_, cos_sin_;
  TPipe pipe_;
  TQue<TPosition::VECIN, 1> q_queue_, kv_queue_;
  TQue<TPosition::VECOUT, 1> out_queue_;
  TBuf<TPosition::VECCALC> product_buffer_, score_buffer_, weight_buffer_, finite_buffer_;
};

}  // namespace dsv4_ascend
