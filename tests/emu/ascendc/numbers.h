// SPDX-License-Identifier: Apache-2.0
// Values of the element types, as bit patterns.
#pragma once
#include <cmath>
#include <cstdint>
#include <cstring>

namespace ascend_emu {

template <class To, class From>
inline To bit_cast(From from) {
  static_assert(sizeof(To) == sizeof(From));
  To to;
  std::memcpy(&to, &from, sizeof to);
  return to;
}

enum Round : int { kNone, kRint, kFloor, kCeil, kRoundAway, kTrunc, kOdd, kHybrid };

// Rounds x to `bits` bits of mantissa less than a float has (its low bits become zero).
inline uint32_t round_bits(uint32_t x, int bits, int mode) {
  const uint32_t sign = x & 0x80000000u, magnitude = x & 0x7fffffffu;
  const uint32_t low = magnitude & ((1u << bits) - 1), cut = magnitude - low, half = 1u << (bits - 1);
  if (!low) return x;
  bool up = false;
  switch (mode) {
    case kNone: case kRint: up = low > half || (low == half && (cut >> bits & 1)); break;
    case kFloor: up = sign != 0; break;
    case kCeil: up = sign == 0; break;
    case kRoundAway: up = low >= half; break;
    case kOdd: return sign | cut | 1u << bits;
    default: break;
  }
  return sign | (cut + (up ? 1u << bits : 0));
}

inline float to_float(float x) { return x; }
inline uint16_t bf16_bits(float x, int mode) {
  const uint32_t u = bit_cast<uint32_t>(x);
  const bool nan = (u & 0x7fffffffu) > 0x7f800000u;
  if (mode == kRint) return static_cast<uint16_t>(nan ? u >> 16 | 0x40 : (u + 0x7fff + (u >> 16 & 1)) >> 16);
  if (nan) return static_cast<uint16_t>(u >> 16 | 0x40);
  return static_cast<uint16_t>(round_bits(u, 16, mode) >> 16);
}
inline float bf16_float(uint16_t bits) { return bit_cast<float>(static_cast<uint32_t>(bits) << 16); }

inline float half_float(uint16_t bits) {
  const uint32_t sign = static_cast<uint32_t>(bits & 0x8000) << 16, exponent = bits >> 10 & 31,
                 mantissa = bits & 1023;
  if (exponent == 31) return bit_cast<float>(sign | 0x7f800000u | mantissa << 13);
  if (exponent) return bit_cast<float>(sign | (exponent + 112) << 23 | mantissa << 13);
  const float tiny = static_cast<float>(mantissa) * 0x1p-24f;
  return sign ? -tiny : tiny;
}
inline uint16_t half_bits(float x, int mode) {
  const uint32_t u = bit_cast<uint32_t>(x), sign = u >> 16 & 0x8000;
  const uint32_t magnitude = u & 0x7fffffffu;
  if (magnitude > 0x7f800000u) return static_cast<uint16_t>(sign | 0x7e00 | (magnitude >> 13 & 0x1ff));
  if (magnitude == 0x7f800000u) return static_cast<uint16_t>(sign | 0x7c00);
  if (magnitude < 0x38800000u) {  // subnormal: in units of 2^-24
    const double units = std::fabs(static_cast<double>(x)) * 0x1p24;
    double whole = std::floor(units);
    const double rest = units - whole;
    bool up = false;
    switch (mode) {
      case kNone: case kRint: up = rest > 0.5 || (rest == 0.5 && std::fmod(whole, 2) == 1); break;
      case kFloor: up = sign && rest > 0; break;
      case kCeil: up = !sign && rest > 0; break;
      case kRoundAway: up = rest >= 0.5; break;
      case kOdd: up = rest > 0 && std::fmod(whole, 2) == 0; break;
      default: break;
    }
    return static_cast<uint16_t>(sign | static_cast<uint32_t>(whole + up));
  }
  const uint32_t rounded = round_bits(u, 13, mode) & 0x7fffffffu;
  if (rounded >= 0x47800000u) {  // beyond 65504
    const bool to_infinity = mode == kNone || mode == kRint || mode == kRoundAway || (mode == kFloor && sign) ||
                             (mode == kCeil && !sign);
    return static_cast<uint16_t>(sign | (to_infinity ? 0x7c00 : 0x7bff));
  }
  return static_cast<uint16_t>(sign | (rounded - 0x38000000u) >> 13);
}

// An integral value, by the mode.
inline double round_integral(double x, int mode) {
  switch (mode) {
    case kFloor: return std::floor(x);
    case kCeil: return std::ceil(x);
    case kRoundAway: return std::round(x);
    case kTrunc: return std::trunc(x);
    default: return std::nearbyint(x);
  }
}
template <class I>
inline I saturated(double x) {  // NaN becomes 0
  constexpr double low = static_cast<double>(I(I(1) << (sizeof(I) * 8 - 1)));
  if (std::isnan(x)) return 0;
  if (I(-1) < I(0)) {
    const double high = -low;
    return x >= high  ? static_cast<I>(~(I(1) << (sizeof(I) * 8 - 1)))
           : x <= low ? I(I(1) << (sizeof(I) * 8 - 1))
                      : static_cast<I>(x);
  }
  const double high = std::ldexp(1.0, sizeof(I) * 8);
  return x >= high ? static_cast<I>(-1) : x <= 0 ? 0 : static_cast<I>(x);
}

}  // namespace ascend_emu
