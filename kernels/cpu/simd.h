// SPDX-License-Identifier: Apache-2.0
// One float vector type for every CPU level, from the compiler's vector extension: the same kernel source becomes
// SSE, AVX2, AVX-512 or NEON code by its compile flags. vf holds W floats; bf16 values widen on load and round to
// nearest even on store.
#pragma once
#include <cstdint>
#include <cstring>
#if defined(__SSE4_1__)
#include <immintrin.h>
#endif

namespace dsv4::cpu {

#if defined(__AVX512F__)
constexpr int W = 16;
#elif defined(__AVX2__)
constexpr int W = 8;
#else
constexpr int W = 4;
#endif

typedef float vf __attribute__((vector_size(W * 4)));
typedef int32_t vi __attribute__((vector_size(W * 4)));
typedef uint32_t vu __attribute__((vector_size(W * 4)));
typedef uint16_t vh __attribute__((vector_size(W * 2)));
typedef uint8_t vb __attribute__((vector_size(W)));  // W bytes
typedef int8_t vc __attribute__((vector_size(W)));

// Conversions of integer width from memory. GCC builds __builtin_convertvector of these from many shuffles (of bytes
// even from scalars), so x86 names the instruction; its masked form, because GCC 12 warns about the plain one.
inline vu widen(const uint16_t* p) {
#if defined(__AVX512F__)
  const __m256i h = _mm256_loadu_si256(reinterpret_cast<const __m256i*>(p));
  return reinterpret_cast<vu>(_mm512_maskz_cvtepu16_epi32(0xffff, h));
#elif defined(__AVX2__)
  return reinterpret_cast<vu>(_mm256_cvtepu16_epi32(_mm_loadu_si128(reinterpret_cast<const __m128i*>(p))));
#elif defined(__SSE4_1__)
  return reinterpret_cast<vu>(_mm_cvtepu16_epi32(_mm_loadl_epi64(reinterpret_cast<const __m128i*>(p))));
#else
  vh h;
  std::memcpy(&h, p, sizeof h);
  return __builtin_convertvector(h, vu);
#endif
}
inline int32_t load_u32(const void* p) {
  int32_t u;
  std::memcpy(&u, p, 4);
  return u;
}
inline vu widen(const uint8_t* p) {
#if defined(__AVX512F__)
  return reinterpret_cast<vu>(_mm512_maskz_cvtepu8_epi32(0xffff, _mm_loadu_si128(reinterpret_cast<const __m128i*>(p))));
#elif defined(__AVX2__)
  return reinterpret_cast<vu>(_mm256_cvtepu8_epi32(_mm_loadl_epi64(reinterpret_cast<const __m128i*>(p))));
#elif defined(__SSE4_1__)
  return reinterpret_cast<vu>(_mm_cvtepu8_epi32(_mm_cvtsi32_si128(load_u32(p))));
#else
  vb b;
  std::memcpy(&b, p, sizeof b);
  return __builtin_convertvector(b, vu);
#endif
}
inline vi widen(const int8_t* p) {
  return (reinterpret_cast<vi>(widen(reinterpret_cast<const uint8_t*>(p))) << 24) >> 24;
}
// The low 16 bits of each lane.
inline void narrow(uint16_t* p, vu v) {
#if defined(__AVX512F__)
  _mm256_storeu_si256(reinterpret_cast<__m256i*>(p), _mm512_maskz_cvtepi32_epi16(0xffff, reinterpret_cast<__m512i>(v)));
#else
  const vh h = __builtin_convertvector(v, vh);
  std::memcpy(p, &h, sizeof h);
#endif
}

struct bf16 {
  uint16_t bits;
};

inline float to_float(float x) { return x; }
inline float to_float(bf16 x) {
  const uint32_t u = static_cast<uint32_t>(x.bits) << 16;
  float f;
  std::memcpy(&f, &u, 4);
  return f;
}
template <class T>
inline T from_float(float x);
template <>
inline float from_float<float>(float x) { return x; }
template <>
inline bf16 from_float<bf16>(float x) {
  uint32_t u;
  std::memcpy(&u, &x, 4);
  if (x != x) return bf16{static_cast<uint16_t>((u >> 16) | 0x40)};  // stays NaN
  return bf16{static_cast<uint16_t>((u + 0x7fff + ((u >> 16) & 1)) >> 16)};
}

inline vf splat(float x) {  // the instruction: a sum with zero is an addition more
#if defined(__AVX512F__)
  return reinterpret_cast<vf>(_mm512_set1_ps(x));
#elif defined(__AVX2__)
  return reinterpret_cast<vf>(_mm256_set1_ps(x));
#else
  return vf{} + x;
#endif
}

inline vf load(const float* p) {
  vf v;
  std::memcpy(&v, p, sizeof v);
  return v;
}
inline vf load(const bf16* p) {
  return reinterpret_cast<vf>(widen(&p->bits) << 16);
}
inline void store(float* p, vf v) { std::memcpy(p, &v, sizeof v); }
// The bf16 bits of each lane, nearest even; NaN stays NaN.
inline vu bf16_bits(vf v) {
  const vu u = reinterpret_cast<vu>(v);
  const vu round = (u + 0x7fffu + ((u >> 16) & 1u)) >> 16;
  const vu nan = (u >> 16) | 0x40u;
  const vu is_nan = reinterpret_cast<vu>(v != v);
  return (is_nan & nan) | (~is_nan & round);
}
#ifdef __AVX512BF16__
// The instruction takes subnormal numbers for zero. Vectors with some, which hardly ever occur, are rounded as integers,
// in a function of their own, or GCC would rather call all of to_bf16 than have its code in many places.
__attribute__((noinline, cold)) inline vu bf16_bits_of_tiny(vf v) { return bf16_bits(v); }
__attribute__((always_inline)) inline __m256i to_bf16(vf v) {
  const __m512 x = reinterpret_cast<__m512>(v);
  if (__builtin_expect(_mm512_fpclass_ps_mask(x, 0x20) == 0, 1)) return reinterpret_cast<__m256i>(_mm512_cvtneps_pbh(x));
  return _mm512_maskz_cvtepi32_epi16(0xffff, reinterpret_cast<__m512i>(bf16_bits_of_tiny(v)));
}
inline void store(bf16* p, vf v) { _mm256_storeu_si256(reinterpret_cast<__m256i*>(p), to_bf16(v)); }
#else
inline void store(bf16* p, vf v) { narrow(&p->bits, bf16_bits(v)); }
#endif
// The value that a store as T followed by a load gives.
template <class T>
inline vf rounded(vf v) { return v; }
template <>
inline vf rounded<bf16>(vf v) {
#ifdef __AVX512BF16__
  return reinterpret_cast<vf>(reinterpret_cast<vu>(_mm512_maskz_cvtepu16_epi32(0xffff, to_bf16(v))) << 16);
#else
  return reinterpret_cast<vf>(bf16_bits(v) << 16);
#endif
}
// A store of a result too large for the caches, past them: whole lines are written without being read first. p is
// aligned to a vector of T (see streamable in kernel.h).
inline void stream(float* p, vf v) {
#if defined(__AVX512F__)
  _mm512_stream_ps(p, reinterpret_cast<__m512>(v));
#elif defined(__AVX__)
  _mm256_stream_ps(p, reinterpret_cast<__m256>(v));
#else
  store(p, v);
#endif
}
inline void stream(bf16* p, vf v) {
#if defined(__AVX512BF16__)
  _mm256_stream_si256(reinterpret_cast<__m256i*>(p), to_bf16(v));
#elif defined(__AVX512F__)
  _mm256_stream_si256(reinterpret_cast<__m256i*>(p),
                      _mm512_maskz_cvtepi32_epi16(0xffff, reinterpret_cast<__m512i>(bf16_bits(v))));
#else
  store(p, v);
#endif
}
inline void end_of_stream() {
#if defined(__AVX__)
  _mm_sfence();  // the next launch may read it on another core
#endif
}
// The first n < W elements; the rest reads as 0 and is not written.
template <class T>
inline vf load_n(const T* p, int n) {
  T buffer[W] = {};
  std::memcpy(buffer, p, n * sizeof(T));
  return load(buffer);
}
template <class T>
inline void store_n(T* p, vf v, int n) {
  T buffer[W];
  store(buffer, v);
  std::memcpy(p, buffer, n * sizeof(T));
}

// a > b ? a : b, so b if one of them is NaN.
inline vf vmax(vf a, vf b) {
#if defined(__AVX512F__)  // the instruction; the compiler makes a comparison and a selection of the other
  return reinterpret_cast<vf>(_mm512_maskz_max_ps(0xffff, reinterpret_cast<__m512>(a), reinterpret_cast<__m512>(b)));
#else
  const vi m = a > b;
  return reinterpret_cast<vf>((reinterpret_cast<vi>(a) & m) | (reinterpret_cast<vi>(b) & ~m));
#endif
}
// The instruction: the compiler takes roots one by one, for the sake of errno.
inline vf vsqrt(vf x) {
#if defined(__AVX512F__)
  return reinterpret_cast<vf>(_mm512_maskz_sqrt_ps(0xffff, reinterpret_cast<__m512>(x)));
#elif defined(__AVX2__)
  return reinterpret_cast<vf>(_mm256_sqrt_ps(reinterpret_cast<__m256>(x)));
#else
  for (int i = 0; i < W; ++i) x[i] = __builtin_sqrtf(x[i]);
  return x;
#endif
}
// Pairwise, so that the order (and the bits) do not depend on anything but W.
inline float hsum(vf v) {
#if defined(__clang__) || __GNUC__ >= 12
#if defined(__AVX512F__)
  v += __builtin_shufflevector(v, v, 8, 9, 10, 11, 12, 13, 14, 15, 8, 9, 10, 11, 12, 13, 14, 15);
  v += __builtin_shufflevector(v, v, 4, 5, 6, 7, 4, 5, 6, 7, 4, 5, 6, 7, 4, 5, 6, 7);
  v += __builtin_shufflevector(v, v, 2, 3, 2, 3, 2, 3, 2, 3, 2, 3, 2, 3, 2, 3, 2, 3);
#elif defined(__AVX2__)
  v += __builtin_shufflevector(v, v, 4, 5, 6, 7, 4, 5, 6, 7);
  v += __builtin_shufflevector(v, v, 2, 3, 2, 3, 2, 3, 2, 3);
#else
  v += __builtin_shufflevector(v, v, 2, 3, 2, 3);
#endif
  return v[0] + v[1];
#else
  float x[W];
  std::memcpy(x, &v, sizeof v);
  for (int n = W / 2; n > 0; n /= 2)
    for (int i = 0; i < n; ++i) x[i] += x[i + n];
  return x[0];
#endif
}

// e^x, relative error below 2e-7 on [-87, 88]; underflows to 0, overflows to inf, NaN stays.
inline vf vexp(vf x) {
#if defined(__AVX512F__)
  const __m512 below = _mm512_maskz_min_ps(0xffff, _mm512_set1_ps(89.0f), reinterpret_cast<__m512>(x));  // NaN stays
  const vf clamped = reinterpret_cast<vf>(_mm512_maskz_max_ps(0xffff, _mm512_set1_ps(-104.0f), below));
#else
  const vf clamped = vmax(splat(-104.0f), -vmax(-x, splat(-89.0f)));
#endif
  const vf scaled = clamped * 1.44269504088896341f;
  const vf magic = splat(12582912.0f);  // 1.5 * 2^23: rounds to the nearest integer
  const vf n = (scaled + magic) - magic;
  vf r = clamped - n * 0.693359375f;
  r = r + n * 2.12194440e-4f;
  vf p = splat(1.9875691500e-4f);
  p = p * r + 1.3981999507e-3f;
  p = p * r + 8.3334519073e-3f;
  p = p * r + 4.1665795894e-2f;
  p = p * r + 1.6666665459e-1f;
  p = p * r + 5.0000001201e-1f;
  p = p * r * r + r + 1.0f;
#if defined(__AVX512F__)
  return reinterpret_cast<vf>(_mm512_maskz_scalef_ps(0xffff, reinterpret_cast<__m512>(p), reinterpret_cast<__m512>(n)));
#else
  // 2^n in two factors reaches subnormals and infinity without a special case.
  const vi whole = __builtin_convertvector(n, vi);
  const vi half = whole >> 1;
  const vf a = reinterpret_cast<vf>((half + 127) << 23);
  const vf b = reinterpret_cast<vf>((whole - half + 127) << 23);
  const vf e = p * a * b;
  const vi is_nan = x != x;
  return reinterpret_cast<vf>((reinterpret_cast<vi>(x) & is_nan) | (reinterpret_cast<vi>(e) & ~is_nan));
#endif
}

}  // namespace dsv4::cpu
