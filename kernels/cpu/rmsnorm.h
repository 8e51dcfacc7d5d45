// SPDX-License-Identifier: Apache-2.0
// Weighted RMSNorm of one row.
#pragma once
#include <cmath>

#include "simd.h"
#include "tensor_view.h"

namespace dsv4::cpu {

// fn(offset, count) over vectors of a row of n; only the last may be shorter than W.
template <class Fn>
inline void for_vectors(int64_t n, Fn&& fn) {
  int64_t c = 0;
  for (; c + W <= n; c += W) fn(c, W);
  if (c < n) fn(c, static_cast<int>(n - c));
}
template <class T>
inline vf load_some(const T* p, int n) { return n == W ? load(p) : load_n(p, n); }
template <class T>
inline void store_some(T* p, vf v, int n) {
  if (n == W) store(p, v);
  else store_n(p, v, n);
}

template <class T>
inline float sum_squares(const T* x, int64_t n) {
  vf sum{};
  for_vectors(n, [&](int64_t c, int count) {
    const vf v = load_some(x + c, count);
    sum += v * v;
  });
  return hsum(sum);
}

// out = (x * inverse_rms) * weight, rounded to Round; Out may be wider than Round. out may be x.
template <class Round, class T, class Out>
inline void scale_row(const T* x, const TensorView& weight, float inverse_rms, int64_t n, Out* out) {
  auto run = [&](auto* w) {
    for_vectors(n, [&](int64_t c, int count) {
      const vf v = load_some(x + c, count) * inverse_rms * load_some(w + c, count);
      store_some(out + c, sizeof(Out) > sizeof(Round) ? rounded<Round>(v) : v, count);
    });
  };
  if (weight.dtype == kF32) run(weight.at<const float>());
  else run(weight.at<const bf16>());
}

inline float inverse_rms(float squares, int64_t n, double eps) {
  return 1.0f / std::sqrt(squares / static_cast<float>(n) + static_cast<float>(eps));
}

}  // namespace dsv4::cpu
