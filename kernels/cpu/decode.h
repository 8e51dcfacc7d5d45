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
constexpr int kLeastModerate = 16, kModerateScales = 225;
inline bool e8m0_is_moderate(uint8_t byte) { return byte >= kLeastModerate && byte < kLeastModerate + kModerateScales; }

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

// The two bytes of the bf16 numbers that the 128 magnitudes of E4M3 stand for under each moderate scale.
struct E4m3Tables {
  struct Bytes {
    alignas(64) uint8_t low[128], high[128];
  } of[kModerateScales];
  constexpr E4m3Tables() : of() {
    constexpr uint16_t small[8] = {0, 0x3b00, 0x3b80, 0x3bc0, 0x3c00, 0x3c20, 0x3c40, 0x3c60};  // m * 2^-9
    for (int scale = 0; scale < kModerateScales; ++scale)
      for (int i = 0; i < 128; ++i) {
        int bits = i < 8 ? small[i] : (i << 4) + (120 << 7);
        if (i > 0) bits += (scale + kLeastModerate - 127) * 128;
        if (i == 127) bits = 0x7fc0;
        of[scale].low[i] = static_cast<uint8_t>(bits & 255), of[scale].high[i] = static_cast<uint8_t>(bits >> 8);
      }
  }
};
inline constexpr E4m3Tables kE4m3Tables;

// For moderate scales: a table look-up, 64 values at once, the two bytes of each from tables of their own.
template <>
struct E4m3Source<Bf16PairLanes> {
  using V = Bf16PairLanes::V;
  static constexpr bool kEnters = true;
  static int64_t place(int64_t k) { return k; }
  const uint8_t* w[kTileColumns];
  const uint8_t* scales;
  __m512i low[2] = {}, high[2] = {};
  void enter(int64_t k) {
    const auto& table = kE4m3Tables.of[scales[k / kScaleBlock] - kLeastModerate];
    for (int i = 0; i < 2; ++i)
      low[i] = _mm512_load_si512(table.low + 64 * i), high[i] = _mm512_load_si512(table.high + 64 * i);
  }
  V decode(const uint8_t* p) const {
    // Eight values of the first half beside eight of the second: unpacking leaves each half in order.
    const __m512i halves = _mm512_setr_epi64(0, 4, 1, 5, 2, 6, 3, 7);
    const __m512i x = _mm512_maskz_permutexvar_epi64(0xff, halves, _mm512_loadu_si512(p));
    const __m512i a = _mm512_permutex2var_epi8(low[0], x, low[1]), b = _mm512_permutex2var_epi8(high[0], x, high[1]);
    const __m512i c = _mm512_ternarylogic_epi64(b, x, _mm512_set1_epi8(INT8_MIN), 0xf8);  // b | (x & sign)
    return {_mm512_unpacklo_epi8(a, c), _mm512_unpackhi_epi8(a, c)};
  }
  V get(int row, int64_t k) const { return decode(w[row] + k); }
  V get_n(int row, int64_t k, int n) const { return get_padded(*this, w[row] + k, n); }
};
#endif

}  // namespace dsv4::cpu
