// SPDX-License-Identifier: Apache-2.0
// RMS norm and RoPE of a tile of rows: x = x / sqrt(mean(x^2) + eps) [* weight], then the trailing R of D
// dims turned.
//
// Sums of squares: 64 lanes a row, lane l adds channels l, l + 64, ... in order, then one reduction; so a
// row's bits do not depend on the tile. RoPE of interleaved pairs as x * C + swapped(x) * S, S = (-sin,
// +sin): C, S and the swapped row are gathered with offsets that are made once a core. The turned part begins
// at a 32-byte block and is 64 lanes or more (rows of less than a vector would overlap in one instruction);
// lanes before dim D - R get C = 1, and nothing is added to them. Heads of D < 64 come one at a time.
//
// An instruction takes a 64-channel column of all rows: D / 64 instructions of `rows` repeats for each step.
#pragma once
#include "mhc_vector.h"
#include "rope_tiling.h"

namespace dsv4_ascend {

// `ANGLE_ROWS`: every row has angles of its own (else all rows share one); WEIGHT: a norm weight.
template <class T, bool ANGLE_ROWS, bool WEIGHT>
class RopeRows {
 public:
  __aicore__ inline RopeRows(const RopeRowsTiling& tiling) : v(tiling) {
    begin_ = (v.D - v.R) / 8 * 8;
    if (v.D >= kRowLanes) begin_ = min_of(begin_, v.D - kRowLanes);
    before_ = v.D - v.R - begin_, turned_ = v.D - begin_;
    angle_pitch_ = round_up(v.R, 8);
  }
  __aicore__ inline int32_t angle_pitch() const { return angle_pitch_; }

  __aicore__ inline void init(TPipe* pipe) {
    const int32_t angles = ANGLE_ROWS ? v.rows : 1, turned = v.rows * turned_;
    pipe->InitBuffer(squares_, v.rows * kRowLanes * sizeof(float));
    pipe->InitBuffer(small_, (kRowLanes + round_up(v.rows, 8) * 9) * sizeof(float));
    pipe->InitBuffer(swapped_, turned * sizeof(float));
    pipe->InitBuffer(swap_places_, turned * sizeof(int32_t));
    pipe->InitBuffer(angle_places_, angles * turned_ * 2 * sizeof(int32_t));
    pipe->InitBuffer(turns_, angles * 2 * turned_ * sizeof(float));
    pipe->InitBuffer(scratch_,
                     4 * round_up(turned_, kRowLanes) * sizeof(float));  // signs; the rest while starting
    if (!is_float<T>) pipe->InitBuffer(floats_, v.rows * v.D * sizeof(float));
    if (WEIGHT) pipe->InitBuffer(weight_, v.D * sizeof(float));
    Duplicate(small_.Get<float>(), 1.f, kRowLanes + round_up(v.rows, 8));
    places();
  }
  // The norm weight from a buffer of a queue, as floats.
  template <class W>
  __aicore__ inline void set_weight(const LocalTensor<W>& raw) {
    if constexpr (is_float<W>)
      Muls(weight_.Get<float>(), raw, 1.f, v.D);
    else
      to_float(weight_.Get<float>(), raw, v.D);
    ordered();
  }
  // The angles of n rows (or of the one row that all share): cos and sin as loaded, angle_pitch() apart.
  __aicore__ inline void set_angles(const LocalTensor<float>& angles, int32_t n) {
    const LocalTensor<uint32_t> place = angle_places_.Get<uint32_t>();
    const LocalTensor<float> c = turns_.Get<float>(), s = c[sines()], sign = scratch_.Get<float>();
    const int32_t all = (ANGLE_ROWS ? v.rows : 1) * turned_;
    ordered();
    Gather(c, angles, place, 0u, static_cast<uint32_t>(n * turned_));
    Gather(s, angles, place[all], 0u, static_cast<uint32_t>(n * turned_));
    ordered();
    const uint8_t row = static_cast<uint8_t>(turned_ / 8);
    for (int32_t at = 0; at < turned_; at += kRowLanes)
      Mul(s[at], s[at], sign[at], lanes(turned_ - at), static_cast<uint8_t>(n),
          BinaryRepeatParams(1, 1, 1, row, row, 0));
    ordered();
    if (!before_) return;
    Duplicate(c, 1.f, static_cast<uint64_t>(before_), static_cast<uint8_t>(n), 1, row);
    Duplicate(s, 0.f, static_cast<uint64_t>(before_), static_cast<uint8_t>(n), 1, row);
    ordered();
  }

  // n rows of D: from `raw` to `out`.
  __aicore__ inline void run(const LocalTensor<T>& raw, const LocalTensor<T>& out, int32_t n) {
    LocalTensor<float> x, y;
    if constexpr (is_float<T>) {
      x = raw, y = out;
    } else {
      x = floats_.Get<float>(), y = x;
      to_float(x, raw, n * v.D);
      ordered();
    }
    const uint8_t rows = static_cast<uint8_t>(n), row = static_cast<uint8_t>(v.D / 8);
    const LocalTensor<float> squares = squares_.Get<float>(), ones = small_.Get<float>(),
                             factor = ones[kRowLanes], blocks = factor[round_up(v.rows, 8)];
    Mul(squares, x, x, lanes(v.D), rows, BinaryRepeatParams(1, 1, 1, 8, row, row));
    ordered();
    for (int32_t at = kRowLanes; at < v.D; at += kRowLanes) {
      MulAddDst(squares, x[at], x[at], lanes(v.D - at), rows, BinaryRepeatParams(1, 1, 1, 8, row, row));
      ordered();
    }
    WholeReduceSum(factor, squares, static_cast<int32_t>(lanes(v.D)), n, 1, 1, 8);
    ordered();
    inverse_rms(factor, ones, v.mean, v.eps, n);
    spread(blocks, factor, n);
    ordered();
    for (int32_t at = 0; at < v.D; at += kRowLanes)
      Mul(y[at], x[at], blocks, lanes(v.D - at), rows, BinaryRepeatParams(1, 1, 0, row, row, 1));
    ordered();
    if (WEIGHT) {
      const LocalTensor<float> weight = weight_.Get<float>();
      for (int32_t at = 0; at < v.D; at += kRowLanes)
        Mul(y[at], y[at], weight[at], lanes(v.D - at), rows, BinaryRepeatParams(1, 1, 1, row, row, 0));
      ordered();
    }
    turn(y, n);
    if constexpr (!is_float<T>) {
      from_float(out, y, n * v.D);
      ordered();
    }
  }

 private:
  __aicore__ inline static uint64_t lanes(int32_t left) {
    return static_cast<uint64_t>(min_of(left, kRowLanes));
  }
  __aicore__ inline int32_t sines() const { return (ANGLE_ROWS ? v.rows : 1) * turned_; }

  __aicore__ inline void turn(const LocalTensor<float>& y, int32_t n) {
    const LocalTensor<float> swapped = swapped_.Get<float>(), c = turns_.Get<float>(), s = c[sines()];
    const uint8_t rows = static_cast<uint8_t>(n), row = static_cast<uint8_t>(v.D / 8);
    const uint8_t part = static_cast<uint8_t>(turned_ / 8), angle = ANGLE_ROWS ? part : uint8_t{0};
    Gather(swapped, y, swap_places_.Get<uint32_t>(), 0u, static_cast<uint32_t>(n * turned_));
    ordered();
    for (int32_t at = 0; at < turned_; at += kRowLanes) {
      const uint64_t mask = lanes(turned_ - at);
      Mul(swapped[at], swapped[at], s[at], mask, rows, BinaryRepeatParams(1, 1, 1, part, part, angle));
      Mul(y[begin_ + at], y[begin_ + at], c[at], mask, rows, BinaryRepeatParams(1, 1, 1, row, row, angle));
    }
    ordered();
    if (before_) {  // a neighbour that is no number is no partner; -0 changes no number that it is added to
      Duplicate(swapped, -0.f, static_cast<uint64_t>(before_), rows, 1, part);
      ordered();
    }
    for (int32_t at = 0; at < turned_; at += kRowLanes)
      Add(y[begin_ + at], y[begin_ + at], swapped[at], lanes(turned_ - at), rows,
          BinaryRepeatParams(1, 1, 1, row, row, part));
    ordered();
  }

  // Offsets in bytes: of the partner of every turned lane, of its cosine and its sine; and the sign of its
  // sine.
  __aicore__ inline void places() {
    const int32_t n = turned_, angles = ANGLE_ROWS ? v.rows : 1;
    const LocalTensor<int32_t> swap = swap_places_.Get<int32_t>(), cosine = angle_places_.Get<int32_t>(),
                               sine = cosine[angles * n];
    const int32_t space = round_up(n, kRowLanes);
    const LocalTensor<float> sign = scratch_.Get<float>();
    const LocalTensor<int32_t> lane = scratch_.Get<int32_t>()[space], odd = lane[space], t = odd[space];
    CreateVecIndex(lane, int32_t{0}, static_cast<uint32_t>(n));
    ordered();
    Adds(odd, lane, before_, n);  // as odd as the place in the turned part, lane - before_
    ordered();
    ShiftRight(t, odd, int32_t{1}, n);
    ordered();
    ShiftLeft(t, t, int32_t{1}, n);
    ordered();
    Sub(odd, odd, t, n);
    ordered();
    ShiftLeft(odd, odd, int32_t{1}, n);
    ordered();
    Adds(odd, odd, int32_t{-1}, n);  // -1 at the first of a pair, 1 at the second
    ordered();
    Cast(sign, odd, RoundMode::CAST_RINT, static_cast<uint32_t>(n));
    Sub(t, lane, odd, n);
    ordered();
    Maxs(t, t, int32_t{0}, n);
    ordered();
    Adds(t, t, begin_, n);
    ordered();
    ShiftLeft(t, t, int32_t{2}, n);
    ordered();
    for (int32_t r = 0; r < v.rows; ++r) Adds(swap[r * n], t, r * v.D * 4, n);
    ordered();
    Adds(t, lane, -before_, n);
    ordered();
    Maxs(t, t, int32_t{0}, n);
    ordered();
    ShiftRight(t, t, int32_t{1}, n);
    ordered();
    ShiftLeft(t, t, int32_t{2}, n);
    ordered();
    for (int32_t r = 0; r < angles; ++r) {
      Adds(cosine[r * n], t, r * angle_pitch_ * 4, n);
      Adds(sine[r * n], t, v.R / 2 * 4 + r * angle_pitch_ * 4, n);
    }
    ordered();
  }

  const RopeRowsTiling v;
  int32_t begin_, before_, turned_, angle_pitch_;
  TBuf<TPosition::VECCALC> squares_, small_, swapped_, swap_places_, angle_places_, turns_, scratch_, floats_,
      weight_;
};

}  // namespace dsv4_ascend
