// SPDX-License-Identifier: Apache-2.0
// Quantised weights as sources of gemm.h: decoded in registers, exactly.
#pragma once
#include "gemm.h"

namespace dsv4::cpu {

// 2^(byte - 127); 0 is 2^-127 (subnormal), 255 is NaN.
inline float e8m0(uint8_t byte) {
  const uint32_t u = byte == 255 ? 0x7fc00000u : byte ? static_cast<uint32_t>(byte) << 23 : 0x00400000u;
  float f;
  std::memcpy(&f, &u, 4);
  return f;
}
// With such a scale every E4M3 value (2^-9 .. 448) is a normal bf16, or zero.
inline bool e8m0_is_moderate(uint8_t byte) { return byte >= 16 && byte <= 240; }

// W values of E4M3.
inline vf e4m3(const uint8_t* p) {
  const vu x = widen(p), magnitude = x & 0x7fu;
  const vf normal = reinterpret_cast<vf>((magnitude << 20) + (120u << 23));
  // Exponent 0 has no hidden one: m * 2^-9 = 2 * (2^-7 * (1 + m/8)) - 2^-6.
  const vf subnormal = normal + normal - 0.015625f;
  const vu small = reinterpret_cast<vu>(magnitude < 8u), nan = reinterpret_cast<vu>(magnitude == 0x7fu);
  vu bits = (reinterpret_cast<vu>(subnormal) & small) | (reinterpret_cast<vu>(normal) & ~small);
  bits = (bits & ~nan) | (0x7fc00000u & nan) | ((x & 0x80u) << 24);
  return reinterpret_cast<vf>(bits);
}

// Fewer than kStep bytes: through a buffer that ends in zeros.
template <class Source, class Byte>
inline auto get_padded(const Source& source, const Byte* p, int n) {
  Byte buffer[64] = {};
  std::memcpy(buffer, p, n);
  return source.decode(buffer);
}

template <class Lanes>
struct I8Source;
template <>
struct I8Source<FloatLanes> {
  static constexpr bool kEnters = false;
  static int64_t place(int64_t k) { return k; }
  const int8_t* w[kTileColumns];
  static vf decode(const int8_t* p) { return __builtin_convertvector(widen(p), vf); }
  vf get(int row, int64_t k) const { return decode(w[row] + k); }
  vf get_n(int row, int64_t k, int n) const { return get_padded(*this, w[row] + k, n); }
};

// scales: the E8M0 bytes along k of the row block that all rows of the tile lie in.
template <class Lanes>
struct E4m3Source;
template <>
struct E4m3Source<FloatLanes> {
  static constexpr bool kEnters = true;
  static int64_t place(int64_t k) { return k; }
  const uint8_t* w[kTileColumns];
  const uint8_t* scales;
  vf scale{};
  void enter(int64_t k) { scale = splat(e8m0(scales[k / kScaleBlock])); }
  vf decode(const uint8_t* p) const { return e4m3(p) * scale; }
  vf get(int row, int64_t k) const { return decode(w[row] + k); }
  vf get_n(int row, int64_t k, int n) const { return get_padded(*this, w[row] + k, n); }
};

#ifdef __AVX512BF16__
template <>
struct I8Source<Bf16Lanes> {
  static constexpr bool kEnters = false;
  static int64_t place(int64_t k) { return k; }
  const int8_t* w[kTileColumns];
  static __m512i decode(const int8_t* p) {  // eight bits of magnitude fit bf16
    const vf low = I8Source<FloatLanes>::decode(p), high = I8Source<FloatLanes>::decode(p + 16);
    return (__m512i)_mm512_cvtne2ps_pbh(reinterpret_cast<__m512>(high), reinterpret_cast<__m512>(low));
  }
  __m512i get(int row, int64_t k) const { return decode(w[row] + k); }
  __m512i get_n(int row, int64_t k, int n) const { return get_padded(*this, w[row] + k, n); }
};

// The bf16 bits of the 128 magnitudes.
struct E4m3Table {
  alignas(64) uint16_t bits[128];
  constexpr E4m3Table() : bits() {
    constexpr uint16_t small[8] = {0, 0x3b00, 0x3b80, 0x3bc0, 0x3c00, 0x3c20, 0x3c40, 0x3c60};  // m * 2^-9
    for (int i = 0; i < 127; ++i) bits[i] = i < 8 ? small[i] : static_cast<uint16_t>((i << 4) + (120 << 7));
    bits[127] = 0x7fc0;
  }
};
inline constexpr E4m3Table kE4m3Table;

// For moderate scales: a table look-up, the scale added to the exponents in the table.
template <>
struct E4m3Source<Bf16Lanes> {
  static constexpr bool kEnters = true;
  static int64_t place(int64_t k) { return k; }
  const uint8_t* w[kTileColumns];
  const uint8_t* scales;
  __m512i table[4] = {};
  void enter(int64_t k) {
    const __m512i shift = _mm512_set1_epi16(static_cast<int16_t>((scales[k / kScaleBlock] - 127) * 128));
    constexpr __mmask32 numbers[4] = {0xfffffffeu, ~0u, ~0u, 0x7fffffffu};  // zero and NaN stay
    for (int i = 0; i < 4; ++i) {
      const __m512i v = _mm512_load_si512(kE4m3Table.bits + 32 * i);
      table[i] = _mm512_mask_add_epi16(v, numbers[i], v, shift);
    }
  }
  __m512i decode(const uint8_t* p) const {
    const __m512i x = _mm512_cvtepi8_epi16(_mm256_loadu_si256(reinterpret_cast<const __m256i*>(p)));  // the sign stays on top
    const __m512i low = _mm512_permutex2var_epi16(table[0], x, table[1]);
    const __m512i high = _mm512_permutex2var_epi16(table[2], x, table[3]);
    const __mmask32 upper = _mm512_test_epi16_mask(x, _mm512_set1_epi16(0x40));
    const __m512i bits = _mm512_mask_blend_epi16(upper, low, high), top = _mm512_set1_epi16(INT16_MIN);
    return _mm512_or_si512(bits, _mm512_and_si512(x, top));
  }
  __m512i get(int row, int64_t k) const { return decode(w[row] + k); }
  __m512i get_n(int row, int64_t k, int n) const { return get_padded(*this, w[row] + k, n); }
};
#endif

}  // namespace dsv4::cpu
