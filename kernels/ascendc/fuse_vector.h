// SPDX-License-Identifier: Apache-2.0
// The vector cores of nextn_fuse_hidden: the norms of all rows into scratch, tiles of decoded weights for the
// cube core of the group, and what becomes of its sums. T: rows in and out, X: what is multiplied, W: stored
// weights.
#pragma once
#include "fuse_decode.h"
#include "fuse_units.h"

namespace dsv4_ascend {

struct FuseOperands {  // of e, then of h
  GM_ADDR rows[2];
  GM_ADDR norm[2];
  GM_ADDR weight[2];
  GM_ADDR scale[2];
  GM_ADDR out;
  GM_ADDR workspace;
};

template <class T, class X, class W>
class FuseVector {
  using Stored = typename FuseStored<W>::type;
  static constexpr bool kDecoded = !SameType<W, X>::value, kE4m3 = SameType<W, e4m3_byte>::value;
  static constexpr bool kChannelScale = SameType<W, int8_t>::value;

 public:
  __aicore__ inline FuseVector(const FuseOperands& o, const NextnFuseHiddenTiling& tiling)
      : v(tiling), norm_{o.norm[0], o.norm[1]}, x_(global<X>(o.workspace)), out_(global<T>(o.out)) {
    const int64_t group = GetBlockIdx() / 2;
    for (int32_t side = 0; side < 2; ++side) {
      rows_[side] = global<T>(o.rows[side]), weight_[side] = global<Stored>(o.weight[side]);
      if constexpr (kE4m3) blocks_[side] = global<uint8_t>(o.scale[side]);
      if constexpr (kChannelScale) scale_[side] = global<float>(o.scale[side]);
    }
    ring_ = global<X>(o.workspace + tiling.ring_at)[group * 2 * tiling.tile * kFuseDepth<X>];
    sums_ = global<float>(o.workspace + tiling.sums_at)[group * tiling.chunk * (1 + tiling.hc) * tiling.tile];
    pipe.InitBuffer(in_, 2, kFuseCount * sizeof(float));
    pipe.InitBuffer(small_, 2, kFuseCount * sizeof(float));
    pipe.InitBuffer(made_, 2, kFuseCount * sizeof(float));
    pipe.InitBuffer(f_, kFuseCount * sizeof(float));
    pipe.InitBuffer(w_, kFuseCount * sizeof(float));
    pipe.InitBuffer(halves_, 2 * kFuseCount * sizeof(uint16_t));
    pipe.InitBuffer(few_, 1024);
    f = f_.template Get<float>(), w = w_.template Get<float>();
    few = few_.template Get<float>();
    const LocalTensor<uint16_t> halves = halves_.template Get<uint16_t>();
    work = FuseWork{f, halves, halves[kFuseCount], w.template ReinterpretCast<uint8_t>()};
  }

  __aicore__ inline void run() {
    norms();
    CrossCoreSetFlag<0, PIPE_MTE3>(kNormsOfAll);
    CrossCoreWaitFlag(kNormsOfAll);
    CrossCoreSetFlag<2, PIPE_MTE3>(kNormsReady);
    const Share mine = share_of(static_cast<int64_t>(v.tiles) * v.chunks, GetBlockNum(), GetBlockIdx() / 2);
    for (int64_t i = 0; i < mine.count; ++i) {
      const FuseUnit unit = fuse_unit(v, mine.first + i);
      if constexpr (kDecoded)
        for (int32_t s = 0; s < fuse_steps<X>(v); ++s) decode(unit, fuse_step<X>(v, s));
      finish(unit);
    }
    if constexpr (kDecoded)
      for (int64_t i = tiles_ > 2 ? tiles_ - 2 : 0; i < tiles_; ++i)
        CrossCoreWaitFlag(kTileFree + static_cast<uint16_t>(i & 1));
  }

 private:
  // ---- norms: every core some rows; a row longer than a piece is read twice
  __aicore__ inline void norms() {
    Duplicate(few, 1.f, 64);
    ordered();
    const Share mine = share_of(v.e_rows + v.h_rows, 2 * GetBlockNum(), GetBlockIdx());
    for (int64_t r = mine.first; r < mine.first + mine.count; ++r) {
      const int32_t side = r < v.e_rows ? 0 : 1, row = static_cast<int32_t>(side ? r - v.e_rows : r);
      if (row >= (side ? v.T * v.hc : v.T)) zero_row(r);
      else if (side) norm_row(side, rows_[1][row / v.hc * v.hidden_t + static_cast<int64_t>(row % v.hc) * v.d], r);
      else norm_row(side, rows_[0][row * v.embeds_t], r);
    }
  }
  __aicore__ inline int32_t piece_of(int32_t at) const { return min_of(kFuseCount, v.d - at); }

  __aicore__ inline void zero_row(int64_t r) {  // the second row of a product of one
    for (int32_t at = 0; at < v.d; at += kFuseCount) {
      LocalTensor<X> zeros = made_.template AllocTensor<X>();
      Duplicate(zeros.template ReinterpretCast<float>(), 0.f, kFuseCount * static_cast<int32_t>(sizeof(X)) / 4);
      put(r, at, zeros);
    }
  }
  __aicore__ inline void put(int64_t r, int32_t at, LocalTensor<X> made) {
    made_.EnQue(made);
    made = made_.template DeQue<X>();
    store_row(x_[r * v.pitch + at], made, piece_of(at));
    made_.FreeTensor(made);
  }

  template <class U>
  __aicore__ inline void widen(const LocalTensor<float>& to, const GlobalTensor<U>& from, int32_t n) {
    LocalTensor<U> in = in_.template AllocTensor<U>();
    load_row(in, from, n);
    in_.EnQue(in);
    in = in_.template DeQue<U>();
    if constexpr (is_float<U>) Muls(to, in, 1.f, n);
    else to_float(to, in, n);
    ordered();
    in_.FreeTensor(in);
  }

  __aicore__ inline void norm_row(int32_t side, const GlobalTensor<T>& row, int64_t r) {
    const LocalTensor<float> squares = halves_.template Get<float>(), sum = few[64], part = few[128];
    for (int32_t at = 0; at < v.d; at += kFuseCount) {
      const int32_t n = piece_of(at);
      widen(f, row[at], n);
      Mul(squares, f, f, n);
      ordered();
      ReduceSum(part, squares, squares, n);
      ordered();
      if (at) Add(sum, sum, part, 1);
      else Muls(sum, part, 1.f, 1);
      ordered();
    }
    inverse_rms(sum, few, v.mean, v.eps, 1);
    SetFlag<HardEvent::V_S>(EVENT_ID0);
    WaitFlag<HardEvent::V_S>(EVENT_ID0);
    const float q = sum.GetValue(0);
    SetFlag<HardEvent::S_V>(EVENT_ID0);
    WaitFlag<HardEvent::S_V>(EVENT_ID0);
    const bool whole = v.d <= kFuseCount;
    for (int32_t at = 0; at < v.d; at += kFuseCount) {
      const int32_t n = piece_of(at);
      if (!whole) widen(f, row[at], n);
      if (!whole || kept_ != side) {
        if (v.norm_f32[side]) widen(w, global<float>(norm_[side])[at], n);
        else widen(w, global<bfloat16_t>(norm_[side])[at], n);
        kept_ = side;
      }
      Muls(f, f, q, n);
      ordered();
      Mul(f, f, w, n);
      ordered();
      LocalTensor<X> made = made_.template AllocTensor<X>();
      if constexpr (is_float<X> && !is_float<T>) {  // rounded to the rows' type before the products
        const LocalTensor<T> rounded = halves_.template Get<T>();
        from_float(rounded, f, n);
        ordered();
        to_float(made, rounded, n);
      } else {
        take_floats(made, f, n);
      }
      ordered();
      put(r, at, made);
    }
  }

  // ---- a tile of weights, half of its rows by either vector core
  __aicore__ inline void decode(const FuseUnit& unit, const FuseStep& step) {
    const uint16_t slot = static_cast<uint16_t>(tiles_ & 1);
    if (tiles_ >= 2) CrossCoreWaitFlag(kTileFree + slot);
    ++tiles_;
    const int32_t middle = round_up(ceil_div(unit.columns, 2), kFuseRows);
    const bool second = GetSubBlockIdx() != 0;
    const int32_t first = second ? middle : 0, end = second ? unit.columns : min_of(middle, unit.columns);
    const int32_t pitch = round_up(step.depth, kBlock / static_cast<int32_t>(sizeof(Stored)));
    for (int32_t row = first; row < end; row += kFuseRows) {
      const int32_t rows = min_of(kFuseRows, end - row), n = unit.n + row;
      LocalTensor<Stored> in = in_.template AllocTensor<Stored>();
      const int64_t stride = v.weight_n[step.side];
      rows_in(in, weight_[step.side][n * stride + step.k], rows, step.depth, stride, pitch);
      in_.EnQue(in);
      in = in_.template DeQue<Stored>();
      LocalTensor<X> made = made_.template AllocTensor<X>();
      if constexpr (SameType<W, bfloat16_t>::value || SameType<W, half>::value) {
        to_float(made, in, rows * pitch);
      } else if constexpr (SameType<X, half>::value) {
        Cast(made, in, RoundMode::CAST_NONE, static_cast<uint32_t>(rows * pitch));  // int8
      } else {
        floats_of(work, in, rows * pitch);
        if constexpr (kE4m3)
          scale_blocks(f, blocks_[step.side][n / 128 * v.scale_n[step.side] + step.k / 128], rows, pitch);
        take_floats(made, f, rows * pitch);
      }
      ordered();
      in_.FreeTensor(in);
      made_.EnQue(made);
      made = made_.template DeQue<X>();
      rows_out(ring_[(slot * v.tile + row) * kFuseDepth<X>], made, rows, step.depth, kFuseDepth<X>, pitch);
      made_.FreeTensor(made);
    }
    CrossCoreSetFlag<2, PIPE_MTE3>(kTileReady + slot);
  }

  // ---- out[t, i] = sums of e_proj [t] + sums of h_proj [t, i], half of the tokens by either vector core
  __aicore__ inline void finish(const FuseUnit& unit) {
    const Share mine = share_of(unit.tokens, 2, GetSubBlockIdx());
    const int32_t tile = v.tile, n = unit.columns, at_once = kFuseCount / (v.hc * tile);
    if constexpr (kChannelScale)
      for (int32_t side = 0; side < 2; ++side) widen(w[side * tile], scale_[side][unit.n], n);
    kept_ = -1;
    CrossCoreWaitFlag(kSumsReady);
    for (int32_t done = 0; done < mine.count; done += at_once) {
      const int32_t tokens = min_of<int32_t>(at_once, mine.count - done), t = mine.first + done;
      const int32_t rows = tokens * v.hc;
      LocalTensor<float> e = small_.template AllocTensor<float>(), h = in_.template AllocTensor<float>();
      DataCopy(e, sums_[t * tile], tokens * tile);
      DataCopy(h, sums_[(v.chunk + t * v.hc) * tile], rows * tile);
      small_.EnQue(e);
      in_.EnQue(h);
      if (done + at_once >= mine.count) CrossCoreSetFlag<2, PIPE_MTE2>(kSumsFree);
      e = small_.template DeQue<float>(), h = in_.template DeQue<float>();
      if constexpr (kChannelScale) {
        for (int32_t i = 0; i < tokens; ++i) Mul(e[i * tile], e[i * tile], w, n);
        for (int32_t i = 0; i < rows; ++i) Mul(h[i * tile], h[i * tile], w[tile], n);
        ordered();
      }
      LocalTensor<T> made = made_.template AllocTensor<T>();
      LocalTensor<float> sum = f;
      if constexpr (is_float<T>) sum = made;
      for (int32_t i = 0; i < rows; ++i) Add(sum[i * tile], h[i * tile], e[i / v.hc * tile], n);
      ordered();
      if constexpr (!is_float<T>) {
        for (int32_t i = 0; i < rows; ++i) from_float(made[i * tile], f[i * tile], n);
        ordered();
      }
      small_.FreeTensor(e);
      in_.FreeTensor(h);
      made_.EnQue(made);
      made = made_.template DeQue<T>();
      const int64_t token = unit.t + t;
      if (v.out_t == v.hc * v.out_i) {
        rows_out(out_[token * v.out_t + unit.n], made, rows, n, v.out_i, tile);
      } else {
        for (int32_t i = 0; i < tokens; ++i)
          rows_out(out_[(token + i) * v.out_t + unit.n], made[i * v.hc * tile], v.hc, n, v.out_i, tile);
      }
      made_.FreeTensor(made);
    }
    if (mine.count == 0) CrossCoreSetFlag<2, PIPE_MTE2>(kSumsFree);
  }

  const NextnFuseHiddenTiling v;
  GM_ADDR norm_[2];
  GlobalTensor<T> rows_[2];
  GlobalTensor<Stored> weight_[2];
  GlobalTensor<uint8_t> blocks_[2];
  GlobalTensor<float> scale_[2], sums_;
  GlobalTensor<X> x_, ring_;
  GlobalTensor<T> out_;
  TPipe pipe;
  TQue<TPosition::VECIN, 2> in_, small_;
  TQue<TPosition::VECOUT, 2> made_;
  TBuf<TPosition::VECCALC> f_, w_, halves_, few_;
  LocalTensor<float> f, w, few;
  FuseWork work;
  int32_t kept_ = -1;  // whose norm weights stand in w
  int64_t tiles_ = 0;
};

}  // namespace dsv4_ascend
