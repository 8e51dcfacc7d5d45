// SPDX-License-Identifier: Apache-2.0
// What the attention kernels share: the norm's factor of a row and the rotation of its trailing dims.
#pragma once
#include <cmath>

#include "shuffle.h"

namespace dsv4::cpu {

constexpr int kMaxHeadSize = 512;

// The angles of one position, one entry a rotated dim: x' = x * c + swap_pairs(x) * s.
// Whole vectors from `begin` to D are turned; dims before the rotated ones in the first of them, `lead`, stay as they are.
struct Turn {
  alignas(64) float c[kMaxHeadSize], s[kMaxHeadSize];
  int64_t begin = 0, lead = 0;

  // row: R/2 cosines, then R/2 sines.
  void set(const float* row, int64_t D, int64_t R, bool inverse = false) {
    begin = (D - R) / W * W;
    lead = D - R - begin;
    for (int64_t i = 0; i < lead; ++i) c[i] = 1.0f, s[i] = 0.0f;
    for (int64_t i = 0; i < R / 2; ++i) {
      const float sine = inverse ? -row[R / 2 + i] : row[R / 2 + i];
      c[lead + 2 * i] = c[lead + 2 * i + 1] = row[i];
      s[lead + 2 * i] = -sine;
      s[lead + 2 * i + 1] = sine;
    }
  }
  // x: the vector of dims [d, d + W), d >= begin.
  vf operator()(vf x, int64_t d) const {
    const vf turned = x * load(c + d - begin) + swap_pairs(x) * load(s + d - begin);
    // A dim without a partner gets nothing of its neighbour, which may be infinite.
    return d == begin && lead ? first_lanes(x, static_cast<int>(lead), turned) : turned;
  }
};

// 1 / sqrt(mean(x^2) + eps); the scalar end of it in double, so that only the sum of squares rounds more than once.
template <class T>
inline float rms_factor(const T* x, int64_t D, double eps) {
  vf sum[4] = {};
  int64_t d = 0;
  for (; d + 4 * W <= D; d += 4 * W)
    for (int i = 0; i < 4; ++i) {
      const vf v = load(x + d + i * W);
      sum[i] = sum[i] + v * v;
    }
  for (; d < D; d += W) {
    const vf v = load(x + d);
    sum[0] = sum[0] + v * v;
  }
  const double total = hsum((sum[0] + sum[1]) + (sum[2] + sum[3]));
  return static_cast<float>(1.0 / std::sqrt(total / static_cast<double>(D) + eps));
}

}  // namespace dsv4::cpu
