// SPDX-License-Identifier: Apache-2.0
// Two vectors of values at a time. Values of bf16 come as those in even and those in odd places, which takes a shift and
// a mask instead of two conversions; so do floats that meet them. Values of float come one vector after the other.
#pragma once
#include <algorithm>

#include "shuffle.h"

namespace dsv4::cpu {

struct Pair {
  vf a, b;
};

// fn(offset, count) over 2W values of a row of n at a time; only the last may be fewer.
template <class Fn>
inline void for_pairs(int64_t n, Fn&& fn) {
  int64_t c = 0;
  for (; c + 2 * W <= n; c += 2 * W) fn(c, 2 * W);
  if (c < n) fn(c, static_cast<int>(n - c));
}

// n <= 2W values in the order of those of type Order; the rest reads as 0.
template <class Order, class T>
__attribute__((always_inline)) inline Pair load_pair(const T* p, int n) {
  T some[2 * W];
  if (n < 2 * W) {
    std::fill(some + n, some + 2 * W, T{});
    p = static_cast<T*>(std::memcpy(some, p, n * sizeof(T)));
  }
  if constexpr (sizeof(Order) == sizeof(float)) {
    return {load(p), load(p + W)};
  } else if constexpr (sizeof(T) == sizeof(float)) {
    const vf x = load(p), y = load(p + W);
    return {even_lanes(x, y), odd_lanes(x, y)};
  } else {
    vu bits;
    std::memcpy(&bits, p, sizeof bits);
    return {reinterpret_cast<vf>(bits << 16), reinterpret_cast<vf>(bits & 0xffff0000u)};
  }
}

// As simd.h rounds single vectors.
__attribute__((always_inline)) inline vu bf16_bits(Pair v) {
#ifdef __AVX512BF16__
  const __m512 a = reinterpret_cast<__m512>(v.a), b = reinterpret_cast<__m512>(v.b);
  const int tiny = _mm512_fpclass_ps_mask(a, 0x20) | _mm512_fpclass_ps_mask(b, 0x20);
  if (__builtin_expect(tiny == 0, 1)) {
    const __m512i both = reinterpret_cast<__m512i>(_mm512_cvtne2ps_pbh(b, a));
    const __m512i even = _mm512_set_epi32(0x1f000f, 0x1e000e, 0x1d000d, 0x1c000c, 0x1b000b, 0x1a000a, 0x190009, 0x180008,
                                          0x170007, 0x160006, 0x150005, 0x140004, 0x130003, 0x120002, 0x110001, 0x100000);
    return reinterpret_cast<vu>(_mm512_maskz_permutexvar_epi16(~0u, even, both));
  }
  return bf16_bits_of_tiny(v.a) | bf16_bits_of_tiny(v.b) << 16;
#else
  return bf16_bits(v.a) | bf16_bits(v.b) << 16;
#endif
}

// Writes n values, past the caches if Stream (2W aligned ones then), and returns them as load_pair would.
template <bool Stream>
__attribute__((always_inline)) inline Pair store_pair(float* p, Pair v, int n) {
  if constexpr (Stream) return stream(p, v.a), stream(p + W, v.b), v;
  float all[2 * W];
  store(all, v.a), store(all + W, v.b);
  std::memcpy(p, all, n * sizeof(float));
  return v;
}
template <bool Stream>
__attribute__((always_inline)) inline Pair store_pair(bf16* p, Pair v, int n) {
  const vu bits = bf16_bits(v);
#ifdef __AVX512F__
  if constexpr (Stream) _mm512_stream_si512(reinterpret_cast<__m512i*>(p), reinterpret_cast<__m512i>(bits));
  else
#endif
  std::memcpy(p, &bits, n * sizeof(bf16));
  return {reinterpret_cast<vf>(bits << 16), reinterpret_cast<vf>(bits & 0xffff0000u)};
}

}  // namespace dsv4::cpu
