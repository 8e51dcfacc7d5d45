// SPDX-License-Identifier: Apache-2.0
// The inverse rotation of rows of floats in local memory, as x * C + swapped(x) * S over the trailing R dims:
// pairs (a, b) become (a cos + b sin, b cos - a sin). Vector memory is read from multiples of 32 bytes, so
// the turned part begins at the block that holds dim D - R; lanes before that dim get C = 1 and S = 0. C, S
// and the swapped row are gathered with offsets that are made once a core.
#pragma once
#include "mhc_vector.h"

namespace dsv4_ascend {

class SwaTurn {
 public:
  static constexpr int32_t kArrays = 7;  // of a word a turned lane, rounded up to 64

  __aicore__ inline SwaTurn(int32_t D, int32_t R)
      : r_(R), begin_((D - R) / 8 * 8), before_(D - R - begin_), n_(D - begin_) {}

  __aicore__ inline void init(TPipe* pipe) {
    pipe->InitBuffer(queue_, 1, round_up(r_, 8) * sizeof(float));
    pipe->InitBuffer(buffer_, kArrays * round_up(n_, kRowLanes) * sizeof(float));
    const LocalTensor<int32_t> lane = array<int32_t>(kCos), odd = array<int32_t>(kSin),
                               t = array<int32_t>(kSwapped);
    CreateVecIndex(lane, int32_t{0}, static_cast<uint32_t>(n_));
    ordered();
    ShiftRight(t, lane, int32_t{1}, n_);
    ordered();
    ShiftLeft(t, t, int32_t{1}, n_);
    ordered();
    Sub(odd, lane, t, n_);
    ordered();
    Muls(odd, odd, int32_t{-2}, n_);
    ordered();
    Adds(odd, odd, int32_t{1},
         n_);  // 1 at the first of a pair, -1 at the second: the sign of its sine, the way to the other
    ordered();
    Cast(array<float>(kSign), odd, RoundMode::CAST_RINT, static_cast<uint32_t>(n_));
    Add(t, lane, odd, n_);
    ordered();
    ShiftLeft(array<int32_t>(kPartner), t, int32_t{2}, n_);
    ordered();
    Adds(t, lane, -before_, n_);
    ordered();
    Maxs(t, t, int32_t{0}, n_);
    ordered();
    ShiftRight(t, t, int32_t{1}, n_);
    ordered();
    ShiftLeft(array<int32_t>(kCosAt), t, int32_t{2}, n_);
    ordered();
    Adds(array<int32_t>(kSinAt), array<int32_t>(kCosAt), r_ / 2 * 4, n_);
    ordered();
  }

  // The rows x, x + pitch, ... of one position, whose angles begin at angles[at].
  __aicore__ inline void run(const LocalTensor<float>& x, int32_t rows, int32_t pitch,
                             const GlobalTensor<float>& angles, int64_t at) {
    const LocalTensor<float> c = array<float>(kCos), s = array<float>(kSin), swapped = array<float>(kSwapped);
    if (at != held_) {
      load(angles[at], c, s);
      held_ = at;
    }
    for (int32_t i = 0; i < rows; ++i) {
      const LocalTensor<float> turned = x[i * pitch + begin_];
      Gather(swapped, turned, array<uint32_t>(kPartner), 0u, static_cast<uint32_t>(n_));
      ordered();
      Mul(swapped, swapped, s, n_);
      Mul(turned, turned, c, n_);
      ordered();
      Add(turned, turned, swapped, n_);
      ordered();
    }
  }

 private:
  __aicore__ inline void load(const GlobalTensor<float>& angles, const LocalTensor<float>& c,
                              const LocalTensor<float>& s) {
    LocalTensor<float> raw = queue_.template AllocTensor<float>();
    load_row(raw, angles, r_);
    queue_.EnQue(raw);
    raw = queue_.template DeQue<float>();
    Gather(c, raw, array<uint32_t>(kCosAt), 0u, static_cast<uint32_t>(n_));
    Gather(s, raw, array<uint32_t>(kSinAt), 0u, static_cast<uint32_t>(n_));
    ordered();
    queue_.FreeTensor(raw);
    Mul(s, s, array<float>(kSign), n_);
    ordered();
    if (!before_) return;
    Duplicate(c, 1.f, before_);
    Duplicate(s, 0.f, before_);
    ordered();
  }

  enum { kCos, kSin, kSwapped, kSign, kPartner, kCosAt, kSinAt };
  template <class U>
  __aicore__ inline LocalTensor<U> array(int32_t which) {
    return buffer_.template Get<U>()[which * round_up(n_, kRowLanes)];
  }
  const int32_t r_, begin_, before_, n_;
  int64_t held_ = -1;
  TQue<TPosition::VECIN, 1> queue_;
  TBuf<TPosition::VECCALC> buffer_;
};

}  // namespace dsv4_ascend
