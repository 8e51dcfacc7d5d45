// SPDX-License-Identifier: Apache-2.0
// The cube core of nextn_fuse_hidden: for a tile of channels and a chunk of tokens, e_proj . e and h_proj . h
// over all k into L0C, then as floats to the group's scratch. Weights lie [n, k] and so need no transposing
// (see fuse_units.h for sizes); tiles of k pass through L1 and L0 with two buffers each.
#pragma once
#include "fuse_units.h"

namespace dsv4_ascend {

template <class X, bool DECODED>
class FuseCube {
 public:
  __aicore__ inline FuseCube(GM_ADDR e_proj, GM_ADDR h_proj, GM_ADDR workspace, const NextnFuseHiddenTiling& tiling)
      : v(tiling), x_(global<X>(workspace)) {
    const int64_t group = GetBlockIdx();
    weight_[0] = global<X>(e_proj), weight_[1] = global<X>(h_proj);
    ring_ = global<X>(workspace + tiling.ring_at)[group * 2 * tiling.tile * kFuseDepth<X>];
    sums_ = global<float>(workspace + tiling.sums_at)[group * tiling.chunk * (1 + tiling.hc) * tiling.tile];
    const int32_t rows = tiling.chunk * tiling.hc;
    pipe.InitBuffer(a1_, 2, rows * 512);
    pipe.InitBuffer(b1_, 2, tiling.tile * 512);
    pipe.InitBuffer(a2_, 2, rows * 128);
    pipe.InitBuffer(b2_, 2, tiling.tile * 128);
    pipe.InitBuffer(c_, 1, tiling.chunk * (1 + tiling.hc) * tiling.tile * sizeof(float));
  }

  __aicore__ inline void run() {
    const Share mine = share_of(static_cast<int64_t>(v.tiles) * v.chunks, GetBlockNum(), GetBlockIdx());
    const int32_t steps = fuse_steps<X>(v);
    for (int64_t i = 0; i < mine.count; ++i) {
      const int64_t u = mine.first + i;
      if (i == 0 || DECODED) load(u, 0);
      LocalTensor<float> c = c_.template AllocTensor<float>();
      for (int32_t s = 0; s < steps; ++s) {
        // Decoded tiles of the next unit come after the vector cores have taken the sums of this one.
        if (s + 1 < steps) load(u, s + 1);
        else if (i + 1 < mine.count && !DECODED) load(u + 1, 0);
        multiply(u, s, c);
      }
      c_.EnQue(c);
      store(u, i);
    }
    CrossCoreWaitFlag(kSumsFree);  // every group has a unit
  }

 private:
  // Rows of x that a side of a unit multiplies: at least two, as m = 1 takes another layout in L0A. Scratch has a row
  // of zeros then.
  struct Rows {
    int32_t first, count;
  };
  __aicore__ inline Rows rows_of(const FuseUnit& unit, int32_t side) const {
    const int32_t count = side ? unit.tokens * v.hc : unit.tokens;
    return {side ? v.e_rows + unit.t * v.hc : unit.t, count > 1 ? count : 2};
  }

  __aicore__ inline void load(int64_t u, int32_t s) {
    const FuseUnit unit = fuse_unit(v, u);
    const FuseStep step = fuse_step<X>(v, s);
    const uint16_t columns = static_cast<uint16_t>(unit.columns), depth = static_cast<uint16_t>(step.depth);
    const uint16_t wide = round_up<uint16_t>(columns, 16);
    LocalTensor<X> b = b1_.template AllocTensor<X>();
    if constexpr (DECODED) {
      const uint16_t slot = static_cast<uint16_t>(tiles_ & 1);
      ++tiles_;
      CrossCoreWaitFlag(kTileReady + slot);
      DataCopy(b, ring_[slot * v.tile * kFuseDepth<X>],
               Nd2NzParams(1, columns, depth, 0, kFuseDepth<X>, wide, 1, 0));
      CrossCoreSetFlag<2, PIPE_MTE2>(kTileFree + slot);
    } else {
      DataCopy(b, weight_[step.side][unit.n * v.weight_n[step.side] + step.k],
               Nd2NzParams(1, columns, depth, 0, static_cast<uint16_t>(v.weight_n[step.side]), wide, 1, 0));
    }
    b1_.EnQue(b);
    const Rows rows = rows_of(unit, step.side);
    LocalTensor<X> a = a1_.template AllocTensor<X>();
    DataCopy(a, x_[static_cast<int64_t>(rows.first) * v.pitch + step.k],
             Nd2NzParams(1, static_cast<uint16_t>(rows.count), depth, 0, static_cast<uint16_t>(v.pitch),
                         round_up<uint16_t>(static_cast<uint16_t>(rows.count), 16), 1, 0));
    a1_.EnQue(a);
  }

  __aicore__ inline void multiply(int64_t u, int32_t s, const LocalTensor<float>& c) {
    constexpr int32_t c0 = block_elements<X>(), fractal = 16 * c0;
    const FuseUnit unit = fuse_unit(v, u);
    const FuseStep step = fuse_step<X>(v, s);
    const int32_t rows = rows_of(unit, step.side).count, tall = ceil_div(rows, 16), wide = ceil_div(unit.columns, 16);
    LocalTensor<X> a1 = a1_.template DeQue<X>(), b1 = b1_.template DeQue<X>();
    MmadParams p;
    p.m = static_cast<uint16_t>(rows), p.n = static_cast<uint16_t>(unit.columns);
    for (int32_t k = 0; k < step.depth; k += kFuseStep<X>) {
      p.k = static_cast<uint16_t>(min_of(kFuseStep<X>, step.depth - k));
      p.cmatrixInitVal = step.k + k == 0;
      const int32_t deep = ceil_div<int32_t>(p.k, c0), block = k / c0;
      LocalTensor<X> a2 = a2_.template AllocTensor<X>(), b2 = b2_.template AllocTensor<X>();
      if (tall < deep) {  // NZ to ZZ, along the shorter side
        for (int32_t i = 0; i < tall; ++i)
          LoadData(a2[i * deep * fractal], a1[(block * tall + i) * fractal],
                   LoadData2DParams(0, static_cast<uint8_t>(deep), static_cast<uint16_t>(tall), 0, 0, false, 0));
      } else {
        for (int32_t i = 0; i < deep; ++i)
          LoadData(a2[i * fractal], a1[(block + i) * tall * fractal],
                   LoadData2DParams(0, static_cast<uint8_t>(tall), 1, 0, static_cast<uint16_t>(deep - 1), false, 0));
      }
      LoadData(b2, b1[block * wide * fractal],
               LoadData2DParams(0, static_cast<uint8_t>(deep * wide), 1, 0, 0, false, 0));
      a2_.EnQue(a2);
      b2_.EnQue(b2);
      a2 = a2_.template DeQue<X>(), b2 = b2_.template DeQue<X>();
      Mmad(c[step.side * v.chunk * v.tile], a2, b2, p);
      if (p.m / 16 * (p.n / 16) < 10) PipeBarrier<PIPE_M>();
      a2_.FreeTensor(a2);
      b2_.FreeTensor(b2);
    }
    a1_.FreeTensor(a1);
    b1_.FreeTensor(b1);
  }

  __aicore__ inline void store(int64_t u, int64_t i) {
    const FuseUnit unit = fuse_unit(v, u);
    LocalTensor<float> c = c_.template DeQue<float>();
    if (i > 0) CrossCoreWaitFlag(kSumsFree);
    for (int32_t side = 0; side < 2; ++side) {
      const int32_t rows = side ? unit.tokens * v.hc : unit.tokens;
      FixpipeParamsV220 p(static_cast<uint16_t>(round_up(unit.columns, 16)), static_cast<uint16_t>(rows),
                          static_cast<uint16_t>(round_up(rows, 16)), static_cast<uint32_t>(v.tile), false);
      p.quantPre = QuantMode_t::NoQuant;
      Fixpipe<float, float, CFG_ROW_MAJOR>(sums_[side * v.chunk * v.tile], c[side * v.chunk * v.tile], p);
    }
    CrossCoreSetFlag<2, PIPE_FIX>(kSumsReady);
    c_.FreeTensor(c);
  }

  const NextnFuseHiddenTiling v;
  GlobalTensor<X> x_, ring_, weight_[2];
  GlobalTensor<float> sums_;
  TPipe pipe;
  TQue<TPosition::A1, 2> a1_;
  TQue<TPosition::B1, 2> b1_;
  TQue<TPosition::A2, 2> a2_;
  TQue<TPosition::B2, 2> b2_;
  TQue<TPosition::CO1, 1> c_;
  int64_t tiles_ = 0;
};

}  // namespace dsv4_ascend
