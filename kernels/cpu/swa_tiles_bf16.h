// SPDX-License-Identifier: Apache-2.0
// The tiles of swa_tiles.h on the bf16 product instruction (two products added to an fp32 lane). Scores are exact
// products in fp32 sums. Weights are rounded to bf16, and the softmax divides by the sum of the rounded ones.
// Two keys are interleaved as they are loaded, so their sums come in the order of that interleaving:
// per 32 dims, vector 0 holds dims 0-3, 8-11, 16-19, 24-27 and vector 1 the others.
#pragma once
#include "swa_tiles.h"

#if defined(__AVX512BF16__)
#include <immintrin.h>

#include <initializer_list>

namespace dsv4::cpu {

template <>
struct Tiles<bf16> {
  using Q = bf16;
  static constexpr int kPair = 2 * W;  // bf16 numbers of a vector

  static __m512i load_pair(const bf16* p) { return _mm512_loadu_si512(p); }
  static __m512i load_half(const bf16* p) {  // the last 16 dims of a head size that is no multiple of 32
    return _mm512_maskz_loadu_epi16(0xffff, p);
  }
  static vf products(vf sum, __m512i a, __m512i b) {
    return reinterpret_cast<vf>(
        _mm512_dpbf16_ps(reinterpret_cast<__m512>(sum), reinterpret_cast<__m512bh>(a), reinterpret_cast<__m512bh>(b)));
  }

  static const bf16* query(bf16*, const bf16* q, int64_t) { return q; }
  static vf as_weight(vf e) { return rounded<bf16>(e); }

  static void scores(float* score, const bf16* const* q, int heads, const bf16* const* keys, int n, int64_t D) {
    for (int k = 0; k < n; k += 4)
      for (int h = 0; h < heads; h += kTileHeads) {
        const int next = k + 4 + h / kTileHeads;  // each tile of heads fetches one of the next four keys
        score_tile(score + h * kBlock + k, q + h, keys + k, keys[next < n ? next : n - 1], D);
      }
  }

  static void mix(float* acc, const float* alpha, const float* weight, int heads, const bf16* const* keys, int n,
                  int64_t D, const bf16* const* next, const bf16* ahead, const bf16* result) {
    for (int h = 0; h < heads; h += kTileHeads) {
      alignas(64) uint32_t pairs[kTileHeads][kBlock / 2];  // the weights of two neighbouring keys
      for (int i = 0; i < kTileHeads; ++i)
        for (int k = 0; k < n; k += W) {
          bf16 w[W];
          store(w, load(weight + (h + i) * kBlock + k));
          std::memcpy(pairs[i] + k / 2, w, sizeof w);
        }
      float* a = acc + h * kMaxHeadSize;
      const float* scale = alpha ? alpha + h : nullptr;
      const bf16* const* later = next + h / kTileHeads % 2;  // two tiles of heads share the keys, two the lines
      const int64_t line = h / kTileHeads / 2 % 2 * kPair;
      int64_t d = 0;
      for (; d + 2 * kPair <= D; d += 2 * kPair) {
        for (const bf16* rows : {ahead, result})  // of each of the heads as much as is mixed now
          if (rows)
            for (int i = 0; i < 2 * kTileHeads; ++i) __builtin_prefetch(rows + h * D + (4 * d + i * kPair), 0, 2);
        mix_tile<2, load_pair>(a + d, scale, pairs, keys, n, d, later, d + line);
      }
      if (d + kPair <= D) mix_tile<1, load_pair>(a + d, scale, pairs, keys, n, d, later, d), d += kPair;
      if (d < D) mix_tile<1, load_half>(a + d, scale, pairs, keys, n, d, later, d);
    }
  }

  static vf result(const float* acc, int64_t d) {
    const __m512i low = _mm512_setr_epi64(0, 1, 8, 9, 2, 3, 10, 11), high = _mm512_setr_epi64(4, 5, 12, 13, 6, 7, 14, 15);
    const float* pair = acc + d / kPair * kPair;
    return reinterpret_cast<vf>(
        _mm512_permutex2var_pd(_mm512_loadu_pd(pair), d % kPair ? high : low, _mm512_loadu_pd(pair + W)));
  }

 private:
  template <__m512i (*Load)(const bf16*)>
  static void score_step(vf* sum, const bf16* const* q, const bf16* const* keys, const bf16* next, int64_t d) {
    __builtin_prefetch(next + d);
    __m512i x[kTileHeads];
    for (int h = 0; h < kTileHeads; ++h) x[h] = Load(q[h] + d);
    for (int k = 0; k < 4; ++k) {
      const __m512i y = Load(keys[k] + d);
      for (int h = 0; h < kTileHeads; ++h) sum[h * 4 + k] = products(sum[h * 4 + k], x[h], y);
    }
  }

  static void score_tile(float* score, const bf16* const* q, const bf16* const* keys, const bf16* next, int64_t D) {
    vf sum[W] = {};
    int64_t d = 0;
    for (; d + kPair <= D; d += kPair) score_step<load_pair>(sum, q, keys, next, d);
    if (d < D) score_step<load_half>(sum, q, keys, next, d);
    alignas(64) float s[W];
    store(s, sums_of(sum));
    for (int h = 0; h < kTileHeads; ++h) std::memcpy(score + h * kBlock, s + h * 4, 16);
  }

  template <int N, __m512i (*Load)(const bf16*)>  // N x 32 dims
  static void mix_tile(float* acc, const float* alpha, const uint32_t (*pairs)[kBlock / 2],
                       const bf16* const* keys, int n, int64_t d, const bf16* const* later, int64_t line) {
    vf sum[kTileHeads][2 * N] = {};
    if (alpha)
      for (int h = 0; h < kTileHeads; ++h)
        for (int i = 0; i < 2 * N; ++i) sum[h][i] = load(acc + h * kMaxHeadSize + i * W) * alpha[h];
    for (int k = 0; k < n; k += 2) {
      __builtin_prefetch(later[k] + line, 0, 2);
      __m512i y[2 * N];
      for (int i = 0; i < N; ++i) {
        const __m512i a = Load(keys[k] + d + i * kPair), b = Load(keys[k + 1] + d + i * kPair);
        y[2 * i] = _mm512_unpacklo_epi16(a, b);
        y[2 * i + 1] = _mm512_unpackhi_epi16(a, b);
      }
      for (int h = 0; h < kTileHeads; ++h) {
        const __m512i w = _mm512_set1_epi32(static_cast<int>(pairs[h][k / 2]));
        for (int i = 0; i < 2 * N; ++i) sum[h][i] = products(sum[h][i], w, y[i]);
      }
    }
    for (int h = 0; h < kTileHeads; ++h)
      for (int i = 0; i < 2 * N; ++i) store(acc + h * kMaxHeadSize + i * W, sum[h][i]);
  }
};

}  // namespace dsv4::cpu
#endif  // __AVX512BF16__
