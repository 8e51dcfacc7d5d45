// SPDX-License-Identifier: Apache-2.0
// Lane movements of the float vector, for every width, on GCC and clang.
#pragma once
#include "simd.h"

namespace dsv4::cpu {

#if defined(__clang__)
#define DSV4_SHUFFLE(a, b, ...) __builtin_shufflevector(a, b, __VA_ARGS__)
#else
#define DSV4_SHUFFLE(a, b, ...) __builtin_shuffle(a, b, vi{__VA_ARGS__})
#endif

#if defined(__AVX512F__)
inline vf zip_lo(vf a, vf b) { return DSV4_SHUFFLE(a, b, 0, 16, 1, 17, 2, 18, 3, 19, 4, 20, 5, 21, 6, 22, 7, 23); }
inline vf zip_hi(vf a, vf b) { return DSV4_SHUFFLE(a, b, 8, 24, 9, 25, 10, 26, 11, 27, 12, 28, 13, 29, 14, 30, 15, 31); }
inline vf swap_pairs(vf a) { return DSV4_SHUFFLE(a, a, 1, 0, 3, 2, 5, 4, 7, 6, 9, 8, 11, 10, 13, 12, 15, 14); }
inline vf even_lanes(vf a, vf b) { return DSV4_SHUFFLE(a, b, 0, 2, 4, 6, 8, 10, 12, 14, 16, 18, 20, 22, 24, 26, 28, 30); }
inline vf odd_lanes(vf a, vf b) { return DSV4_SHUFFLE(a, b, 1, 3, 5, 7, 9, 11, 13, 15, 17, 19, 21, 23, 25, 27, 29, 31); }
#elif defined(__AVX2__)
inline vf zip_lo(vf a, vf b) { return DSV4_SHUFFLE(a, b, 0, 8, 1, 9, 2, 10, 3, 11); }
inline vf zip_hi(vf a, vf b) { return DSV4_SHUFFLE(a, b, 4, 12, 5, 13, 6, 14, 7, 15); }
inline vf swap_pairs(vf a) { return DSV4_SHUFFLE(a, a, 1, 0, 3, 2, 5, 4, 7, 6); }
inline vf even_lanes(vf a, vf b) { return DSV4_SHUFFLE(a, b, 0, 2, 4, 6, 8, 10, 12, 14); }
inline vf odd_lanes(vf a, vf b) { return DSV4_SHUFFLE(a, b, 1, 3, 5, 7, 9, 11, 13, 15); }
#else
inline vf zip_lo(vf a, vf b) { return DSV4_SHUFFLE(a, b, 0, 4, 1, 5); }
inline vf zip_hi(vf a, vf b) { return DSV4_SHUFFLE(a, b, 2, 6, 3, 7); }
inline vf swap_pairs(vf a) { return DSV4_SHUFFLE(a, a, 1, 0, 3, 2); }
inline vf even_lanes(vf a, vf b) { return DSV4_SHUFFLE(a, b, 0, 2, 4, 6); }
inline vf odd_lanes(vf a, vf b) { return DSV4_SHUFFLE(a, b, 1, 3, 5, 7); }
#endif

// W vectors become one: lane l of the result combines all lanes of v[l], each by the same pairwise tree.
// (Recursive, so that indices are constants and the vectors stay in registers.)
#if defined(__AVX512F__)
// Lanes i and i + Half of a and of b combined; those of a come where the bit Half of the lane's number is clear. Selections
// run on any port, so a step has one shuffle where zips have two.
template <int Half, class Combine>
inline vf fold(vf x, vf y, Combine combine) {
  constexpr __mmask16 upper = Half == 8 ? 0xff00 : Half == 4 ? 0xf0f0 : Half == 2 ? 0xcccc : 0xaaaa;
  const __m512 a = reinterpret_cast<__m512>(x), b = reinterpret_cast<__m512>(y);
  const __m512 own = _mm512_mask_blend_ps(upper, a, b), rest = _mm512_mask_blend_ps(upper, b, a);
  __m512 other;
  if constexpr (Half == 8) other = _mm512_maskz_shuffle_f32x4(0xffff, rest, rest, 0x4e);
  else if constexpr (Half == 4) other = _mm512_maskz_shuffle_f32x4(0xffff, rest, rest, 0xb1);
  else other = _mm512_maskz_permute_ps(0xffff, rest, Half == 2 ? 0x4e : 0xb1);
  return combine(reinterpret_cast<vf>(own), reinterpret_cast<vf>(other));
}
template <int First = 0, int Step = 1, class Combine>
inline vf combine_lanes(const vf* v, Combine combine) {
  if constexpr (Step == W) return v[First];
  else
    return fold<Step>(combine_lanes<First, 2 * Step>(v, combine), combine_lanes<First + Step, 2 * Step>(v, combine), combine);
}
#else
template <int First = 0, int Step = 1, class Combine>
inline vf combine_lanes(const vf* v, Combine combine) {
  if constexpr (Step == W) {
    return v[First];
  } else {
    const vf a = combine_lanes<First, 2 * Step>(v, combine), b = combine_lanes<First + Step, 2 * Step>(v, combine);
    return combine(zip_lo(a, b), zip_hi(a, b));
  }
}
#endif
inline vf sums_of(const vf* v) {
  return combine_lanes(v, [](vf a, vf b) { return a + b; });
}
inline vf maxima_of(const vf* v) {
  return combine_lanes(v, [](vf a, vf b) { return vmax(a, b); });
}

// x in the first n lanes, `rest` in the others.
inline vf first_lanes(vf x, int n, vf rest) {
  if (n >= W) return x;
  vi lane;
  for (int i = 0; i < W; ++i) lane[i] = i;
  const vi keep = lane < n;
  return reinterpret_cast<vf>((reinterpret_cast<vi>(x) & keep) | (reinterpret_cast<vi>(rest) & ~keep));
}

// Lane l of vector i becomes lane i of vector l: each pass moves the top bit of the vector's number behind the lane's.
inline void transpose(vf (&v)[W]) {
  for (int pass = 1; pass < W; pass *= 2) {
    vf next[W];
    for (int i = 0; i < W / 2; ++i) {
      next[2 * i] = zip_lo(v[i], v[i + W / 2]);
      next[2 * i + 1] = zip_hi(v[i], v[i + W / 2]);
    }
    for (int i = 0; i < W; ++i) v[i] = next[i];
  }
}

}  // namespace dsv4::cpu
