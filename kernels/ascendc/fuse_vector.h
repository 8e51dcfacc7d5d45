// SPDX-License-Identifier: Apache-2.0
// The vector cores of nextn_fuse_hidden: tiles of decoded weights for the cube core of the group, and what
// becomes of its sums. T: rows in and out, X: what is multiplied, W: stored weights.
#pragma once
#include "fuse_decode.h"
#include "fuse_units.h"

namespace dsv4_ascend {

struct FuseOperands {  // of e, then of h
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
  static constexpr int32_t kMostTokens = 32;  // of a chunk: half of 64

 public:
  __aicore__ inline FuseVector(const FuseOperands& o, const NextnFuseHiddenTiling& tiling)
      : v(tiling), flags_(global<float>(o.workspace + tiling.flags_at)), out_(global<T>(o.out)) {
    const int64_t group = GetBlockIdx() / 2;
    for (int32_t side = 0; side < 2; ++side) {
      weight_[side] = global<Stored>(o.weight[side]);
      if constexpr (kE4m3) blocks_[side] = global<uint8_t>(o.scale[side]);
      if constexpr (kChannelScale) scale_[side] = global<float>(o.scale[side]);
    }
    ring_ = global<X>(o.workspace + tiling.ring_at)[group * 2 * tiling.tile * kFuseDepth<X>];
    channels_ = global<float>(o.workspace + tiling.channels_at)[group * 2 * kFuseChannels];
    sums_ = global<float>(o.workspace + tiling.sums_at)[group * tiling.chunk * (1 + tiling.hc) * tiling.tile];
    pipe.InitBuffer(in_, 2, kFuseCount * sizeof(float));
    pipe.InitBuffer(small_, 2, kFuseCount * sizeof(float));
    pipe.InitBuffer(made_, 2, kFuseCount * sizeof(float));
    pipe.InitBuffer(f_, kFuseCount * sizeof(float));
    pipe.InitBuffer(w_, kFuseCount * sizeof(float));
    pipe.InitBuffer(halves_, 2 * kFuseCount * sizeof(uint16_t));
    pipe.InitBuffer(flag_in_, 1, (kFuseChannels + kMostTokens * (1 + v.hc) * 8) * sizeof(float));
    pipe.InitBuffer(flag_out_, 1, kFuseChannels * sizeof(float));
    pipe.InitBuffer(channel_, (kFuseChannels + 3 * 128) * sizeof(half));
    f = f_.template Get<float>(), w = w_.template Get<float>();
    channel = channel_.template Get<half>();
    const LocalTensor<uint16_t> halves = halves_.template Get<uint16_t>();
    work = FuseWork{f, halves, halves[kFuseCount], w.template ReinterpretCast<uint8_t>(), channel[kFuseChannels + 128]};
  }

  __aicore__ inline void run() {
    const Share mine = share_of(static_cast<int64_t>(v.tiles) * v.chunks, GetBlockNum(), GetBlockIdx() / 2);
    for (int64_t i = 0; i < mine.count; ++i) {
      const FuseUnit unit = fuse_unit(v, mine.first + i);
      if constexpr (kE4m3) Duplicate(channel, static_cast<half>(0.f), kFuseChannels);
      if constexpr (kDecoded)
        for (int32_t s = 0, steps = fuse_steps<X>(v); s < steps; ++s)
          decode(unit, fuse_step<X>(v, s), channels_[i % 2 * kFuseChannels], s + 1 == steps);
      finish(unit, channels_[i % 2 * kFuseChannels]);
    }
    if constexpr (kDecoded)
      for (int64_t i = tiles_ > 2 ? tiles_ - 2 : 0; i < tiles_; ++i)
        CrossCoreWaitFlag(kTileFree + static_cast<uint16_t>(i & 1));
  }

 private:
  // ---- a tile of weights, half of its rows by either vector core
  __aicore__ inline void decode(const FuseUnit& unit, const FuseStep& step, const GlobalTensor<float>& flags,
                                bool last) {
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
        floats_of(work, in, rows * pitch, rows, step.depth, pitch);
        if constexpr (kE4m3) {
          scale_blocks(work.most, f, blocks_[step.side][n / 128 * v.scale_n[step.side] + step.k / 128], rows, pitch);
          for (int32_t at = 0; at < step.depth; at += 128) {
            Max(channel[row], channel[row], work.most[at], rows);
            ordered();
          }
        }
        take_floats(made, f, rows * pitch);
      }
      ordered();
      in_.FreeTensor(in);
      made_.EnQue(made);
      made = made_.template DeQue<X>();
      rows_out(ring_[(slot * v.tile + row) * kFuseDepth<X>], made, rows, step.depth, kFuseDepth<X>, pitch);
      made_.FreeTensor(made);
    }
    if constexpr (kE4m3)
      if (last && first < end) put_channels(flags, first, end - first);
    CrossCoreSetFlag<2, PIPE_MTE3>(kTileReady + slot);
  }
  // NaN for the channels in whose weights one was; both vector cores take them all.
  __aicore__ inline void put_channels(const GlobalTensor<float>& flags, int32_t first, int32_t count) {
    const int32_t all = round_up(count, 64);
    Cast(f, channel[first], RoundMode::CAST_NONE, static_cast<uint32_t>(count));
    ordered();
    Compares(work.mask, f, kNaNCode, CMPMODE::LT, static_cast<uint32_t>(all));
    LocalTensor<float> out = flag_out_.template AllocTensor<float>();
    Duplicate(out, 0.f, all);
    ordered();
    Select(out, work.mask, out, float_of_bits(0x7fc00000u), SELMODE::VSEL_TENSOR_SCALAR_MODE,
           static_cast<uint32_t>(all));
    flag_out_.EnQue(out);
    ordered();
    out = flag_out_.template DeQue<float>();
    store_row(flags[first], out, count);
    flag_out_.FreeTensor(out);
  }

  // ---- out[t, i] = sums of e_proj [t] + sums of h_proj [t, i], half of the tokens by either vector core
  __aicore__ inline void finish(const FuseUnit& unit, const GlobalTensor<float>& channels) {
    const Share mine = share_of(unit.tokens, 2, GetSubBlockIdx());
    const int32_t tile = v.tile, n = unit.columns, at_once = kFuseCount / (v.hc * tile);
    if constexpr (kChannelScale)
      for (int32_t side = 0; side < 2; ++side) widen(in_, w[side * tile], scale_[side][unit.n], n);
    CrossCoreWaitFlag(kSumsReady);
    const LocalTensor<float> flags = take_flags(unit, mine, channels), of_h = flags[kFuseChannels];
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
      if constexpr (kE4m3) {
        for (int32_t i = 0; i < tokens; ++i) Add(e[i * tile], e[i * tile], flags, n);
        ordered();
      }
      LocalTensor<T> made = made_.template AllocTensor<T>();
      LocalTensor<float> sum = f;
      if constexpr (is_float<T>) sum = made;
      for (int32_t i = 0; i < rows; ++i) Add(sum[i * tile], h[i * tile], e[i / v.hc * tile], n);
      ordered();
      for (int32_t i = 0; i < rows; ++i) add_block(sum[i * tile], of_h[(done * v.hc + i) * 8], n);
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
    LocalTensor<float> used = flags;
    flag_in_.FreeTensor(used);
  }
  // NaN or 0, to be added: for channels, then a block for each row of the streams, the embedding's included.
  __aicore__ inline LocalTensor<float> take_flags(const FuseUnit& unit, const Share& mine,
                                                  const GlobalTensor<float>& channels) {
    const int32_t tokens = static_cast<int32_t>(mine.count), rows = tokens * v.hc;
    LocalTensor<float> flags = flag_in_.template AllocTensor<float>();
    const LocalTensor<float> of_h = flags[kFuseChannels], of_e = of_h[kMostTokens * v.hc * 8];
    if constexpr (kE4m3) load_row(flags, channels, unit.columns);
    if (tokens) {
      const int64_t t = unit.t + mine.first;
      DataCopy(of_e, flags_[t * 8], static_cast<uint32_t>(tokens * 8));
      DataCopy(of_h, flags_[(v.e_rows + t * v.hc) * 8], static_cast<uint32_t>(rows * 8));
    }
    flag_in_.EnQue(flags);
    flags = flag_in_.template DeQue<float>();
    for (int32_t i = 0; i < rows; ++i) Add(of_h[i * 8], of_h[i * 8], of_e[i / v.hc * 8], 8);
    ordered();
    return flags;
  }
  // n floats plus one that stands in a block.
  __aicore__ inline void add_block(const LocalTensor<float>& x, const LocalTensor<float>& block, int32_t n) {
    const BinaryRepeatParams strides(1, 1, 0, 8, 8, 0);
    const int32_t whole = n / kRowLanes, left = n % kRowLanes;
    if (whole) Add(x, x, block, static_cast<uint64_t>(kRowLanes), static_cast<uint8_t>(whole), strides);
    if (left) Add(x[whole * kRowLanes], x[whole * kRowLanes], block, static_cast<uint64_t>(left), 1, strides);
  }

  const NextnFuseHiddenTiling v;
  GlobalTensor<Stored> weight_[2];
  GlobalTensor<uint8_t> blocks_[2];
  GlobalTensor<float> flags_, channels_, scale_[2], sums_;
  GlobalTensor<X> ring_;
  GlobalTensor<T> out_;
  TPipe pipe;
  TQue<TPosition::VECIN, 2> in_, small_;
  TQue<TPosition::VECIN, 1> flag_in_;
  TQue<TPosition::VECOUT, 2> made_;
  TQue<TPosition::VECOUT, 1> flag_out_;
  TBuf<TPosition::VECCALC> f_, w_, halves_, channel_;
  LocalTensor<float> f, w;
  LocalTensor<half> channel;  // the largest code of a channel of the unit, without its sign
  FuseWork work;
  int64_t tiles_ = 0;
};

}  // namespace dsv4_ascend
