// SPDX-License-Identifier: Apache-2.0
// Device functions that the CUDA headers declare for nvcc only. The fast approximations are exact here: a test bound
// that holds for them here may be too tight for a device.
#pragma once
#include <cmath>
#include <cstring>
#include <type_traits>

#include "core.h"

// ---- bits ----
namespace cuda_emu {
template <class To, class From>
inline To bits_as(From from) {
  static_assert(sizeof(To) == sizeof(From), "a cast of bits keeps the size");
  To to;
  std::memcpy(&to, &from, sizeof(to));
  return to;
}
}  // namespace cuda_emu
inline float __int_as_float(int x) { return cuda_emu::bits_as<float>(x); }
inline float __uint_as_float(unsigned x) { return cuda_emu::bits_as<float>(x); }
inline int __float_as_int(float x) { return cuda_emu::bits_as<int>(x); }
inline unsigned __float_as_uint(float x) { return cuda_emu::bits_as<unsigned>(x); }
inline long long __double_as_longlong(double x) { return cuda_emu::bits_as<long long>(x); }
inline double __longlong_as_double(long long x) { return cuda_emu::bits_as<double>(x); }
inline int __popc(unsigned x) { return __builtin_popcount(x); }
inline int __popcll(unsigned long long x) { return __builtin_popcountll(x); }
inline int __ffs(int x) { return __builtin_ffs(x); }
inline int __ffsll(long long x) { return __builtin_ffsll(x); }
inline int __clz(int x) { return x ? __builtin_clz(static_cast<unsigned>(x)) : 32; }
inline int __clzll(long long x) { return x ? __builtin_clzll(static_cast<unsigned long long>(x)) : 64; }
inline unsigned __brev(unsigned x) {
  unsigned r = 0;
  for (int i = 0; i < 32; ++i) r |= (x >> i & 1u) << (31 - i);
  return r;
}
inline unsigned __byte_perm(unsigned x, unsigned y, unsigned selector) {
  const uint64_t both = static_cast<uint64_t>(y) << 32 | x;
  unsigned r = 0;
  for (int i = 0; i < 4; ++i) {
    const unsigned s = selector >> (4 * i);
    unsigned byte = static_cast<unsigned>(both >> (8 * (s & 7))) & 0xffu;
    if (s & 8) byte = byte & 0x80u ? 0xffu : 0u;
    r |= byte << (8 * i);
  }
  return r;
}
inline unsigned __funnelshift_l(unsigned lo, unsigned hi, unsigned shift) {
  const uint64_t both = static_cast<uint64_t>(hi) << 32 | lo;
  return static_cast<unsigned>(both << (shift & 31) >> 32);
}
inline unsigned __funnelshift_r(unsigned lo, unsigned hi, unsigned shift) {
  const uint64_t both = static_cast<uint64_t>(hi) << 32 | lo;
  return static_cast<unsigned>(both >> (shift & 31));
}
inline unsigned __umulhi(unsigned a, unsigned b) { return static_cast<unsigned>(static_cast<uint64_t>(a) * b >> 32); }
inline int __mulhi(int a, int b) { return static_cast<int>(static_cast<int64_t>(a) * b >> 32); }

// ---- loads and stores with a cache hint ----
#define CUDA_EMU_LOAD(name) \
  template <class T> inline T name(const T* p) { return *p; }
#define CUDA_EMU_STORE(name) \
  template <class T> inline void name(T* p, T v) { *p = v; }
CUDA_EMU_LOAD(__ldg) CUDA_EMU_LOAD(__ldca) CUDA_EMU_LOAD(__ldcg) CUDA_EMU_LOAD(__ldcs) CUDA_EMU_LOAD(__ldlu)
CUDA_EMU_LOAD(__ldcv)
CUDA_EMU_STORE(__stwb) CUDA_EMU_STORE(__stcg) CUDA_EMU_STORE(__stcs) CUDA_EMU_STORE(__stwt)
#undef CUDA_EMU_LOAD
#undef CUDA_EMU_STORE

// ---- arithmetic ----
inline float __fadd_rn(float a, float b) { return a + b; }
inline float __fsub_rn(float a, float b) { return a - b; }
inline float __fmul_rn(float a, float b) { return a * b; }
inline float __fdiv_rn(float a, float b) { return a / b; }
inline float __frcp_rn(float a) { return 1.0f / a; }
inline float __fsqrt_rn(float a) { return std::sqrt(a); }
inline float __frsqrt_rn(float a) { return static_cast<float>(1.0 / std::sqrt(static_cast<double>(a))); }
inline float __fmaf_rn(float a, float b, float c) { return std::fma(a, b, c); }
inline float __fdividef(float a, float b) { return a / b; }
inline float __saturatef(float a) { return a > 0.0f ? (a < 1.0f ? a : 1.0f) : 0.0f; }  // NaN becomes 0
inline float rsqrtf(float a) { return __frsqrt_rn(a); }
inline int __float2int_rn(float a) { return static_cast<int>(std::nearbyint(a)); }
inline int __float2int_rz(float a) { return static_cast<int>(a); }
inline int __float2int_rd(float a) { return static_cast<int>(std::floor(a)); }
inline int __float2int_ru(float a) { return static_cast<int>(std::ceil(a)); }
inline float __int2float_rn(int a) { return static_cast<float>(a); }
inline float __uint2float_rn(unsigned a) { return static_cast<float>(a); }

// The C library declares names like __expf for itself, so these are macros.
namespace cuda_emu {
inline float fast_exp(float a) { return std::exp(a); }
inline float fast_exp10(float a) { return std::pow(10.0f, a); }
inline float fast_log(float a) { return std::log(a); }
inline float fast_log2(float a) { return std::log2(a); }
inline float fast_log10(float a) { return std::log10(a); }
inline float fast_sin(float a) { return std::sin(a); }
inline float fast_cos(float a) { return std::cos(a); }
inline float fast_pow(float a, float b) { return std::pow(a, b); }
}  // namespace cuda_emu
#define __expf ::cuda_emu::fast_exp
#define __exp10f ::cuda_emu::fast_exp10
#define __logf ::cuda_emu::fast_log
#define __log2f ::cuda_emu::fast_log2
#define __log10f ::cuda_emu::fast_log10
#define __sinf ::cuda_emu::fast_sin
#define __cosf ::cuda_emu::fast_cos
#define __powf ::cuda_emu::fast_pow

// CUDA's min and max: mixed types meet in their common type, and of a NaN and a number the number wins.
template <class A, class B, class = std::enable_if_t<std::is_arithmetic<A>::value && std::is_arithmetic<B>::value>>
inline std::common_type_t<A, B> min(A a, B b) {
  using T = std::common_type_t<A, B>;
  if constexpr (std::is_floating_point<T>::value) return std::fmin(static_cast<T>(a), static_cast<T>(b));
  else return static_cast<T>(b) < static_cast<T>(a) ? static_cast<T>(b) : static_cast<T>(a);
}
template <class A, class B, class = std::enable_if_t<std::is_arithmetic<A>::value && std::is_arithmetic<B>::value>>
inline std::common_type_t<A, B> max(A a, B b) {
  using T = std::common_type_t<A, B>;
  if constexpr (std::is_floating_point<T>::value) return std::fmax(static_cast<T>(a), static_cast<T>(b));
  else return static_cast<T>(a) < static_cast<T>(b) ? static_cast<T>(b) : static_cast<T>(a);
}

[[noreturn]] inline void __trap() { cuda_emu::fail("__trap"); }
