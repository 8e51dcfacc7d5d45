// SPDX-License-Identifier: Apache-2.0
// Small products of row-major [rows, k] operands, both contiguous in k: y = x W^T with x and W as they lie in memory.
// Every (row, column) pair has one vector of partial sums that runs over k in order, so a result does not depend on
// how many rows or columns are computed together.
#pragma once
#include <algorithm>

#include "kernel.h"

namespace dsv4::cpu {

// Rows of x and of W in one register tile: accumulators fill the register file but for the operands.
constexpr int kTileColumns = 4;
#if defined(__AVX512F__) || defined(__aarch64__)
constexpr int kTileRows = 6;
#else
constexpr int kTileRows = 2;
#endif
constexpr int64_t kShortDepth = 512;  // k up to which a row of weights is short
constexpr int64_t kScaleBlock = 128;  // edge of the scale blocks of FP8 weights

// How values are multiplied: V holds kStep of them.
struct FloatLanes {
  using V = vf;
  static constexpr int kStep = W;
  template <class T>
  static V load(const T* p) { return cpu::load(p); }
  template <class T>
  static V load_n(const T* p, int n) { return cpu::load_n(p, n); }
  static void store(float* p, V v) { cpu::store(p, v); }
  static vf multiply_add(vf sum, V a, V b) { return sum + a * b; }
};
#ifdef __AVX512BF16__
struct Bf16Lanes {  // products of bf16 are exact, two are added to an fp32 lane
  using V = __m512i;
  static constexpr int kStep = 32;
  static V load(const bf16* p) { return _mm512_loadu_si512(p); }
  static V load_n(const bf16* p, int n) { return _mm512_maskz_loadu_epi16((1u << n) - 1, p); }
  static void store(bf16* p, V v) { _mm512_storeu_si512(p, v); }
  static vf multiply_add(vf sum, V a, V b) {
    return reinterpret_cast<vf>(_mm512_dpbf16_ps(reinterpret_cast<__m512>(sum), (__m512bh)a, (__m512bh)b));
  }
};
// Two vectors side by side: the same sums, for weights that are decoded 64 at once.
struct Bf16PairLanes {
  struct V {
    __m512i first, second;
  };
  static constexpr int kStep = 64;
  static V load(const bf16* p) { return {Bf16Lanes::load(p), Bf16Lanes::load(p + 32)}; }
  static V load_n(const bf16* p, int n) {
    const uint64_t mask = (uint64_t{1} << n) - 1;
    return {_mm512_maskz_loadu_epi16(static_cast<uint32_t>(mask), p), _mm512_maskz_loadu_epi16(mask >> 32, p + 32)};
  }
  static void store(bf16* p, V v) { Bf16Lanes::store(p, v.first), Bf16Lanes::store(p + 32, v.second); }
  static vf multiply_add(vf sum, V a, V b) {
    return Bf16Lanes::multiply_add(Bf16Lanes::multiply_add(sum, a.first, b.first), a.second, b.second);
  }
};
#endif

// Where the weights of a tile come from: get(row, k) for kStep values and get_n for fewer, after enter(k) at every
// multiple of kScaleBlock if kEnters. This one reads floats; decode.h has the quantised ones.
template <class Lanes, class Y>
struct FloatSource {
  static constexpr bool kEnters = false;
  const Y* w[kTileColumns];
  static int64_t place(int64_t k) { return k; }  // of value k behind w
  typename Lanes::V get(int row, int64_t k) const { return Lanes::load(w[row] + k); }
  typename Lanes::V get_n(int row, int64_t k, int n) const { return Lanes::load_n(w[row] + k, n); }
};

// sums[m*N + n] += x[m] . w[n] over k values, a lane's share each. ahead: what lies so many values behind each weight is
// fetched into the second-level cache meanwhile (0: nothing), the pages after that looked up if there are products enough to
// hide it. fresh: the sums start at zero, whatever they hold.
template <class Lanes, int M, int N, class X, class Source>
inline void dots(const X* const* x, Source w, int64_t k, vf* sums, int64_t ahead = 0, bool fresh = false) {
  if (M == kTileRows && ahead)
    for (int n = 0; n < N; ++n) {
      constexpr int64_t kValues = kPage / sizeof(*w.w[0]);
      for (int64_t i = kValues; i < w.place(k); i += kValues) __builtin_prefetch(w.w[n] + ahead + i, 0, 3);
      __builtin_prefetch(w.w[n] + 2 * ahead, 0, 3);
    }
  vf c[M][N];
  for (int m = 0; m < M; ++m)
    for (int n = 0; n < N; ++n) c[m][n] = fresh ? vf{} : sums[m * N + n];
  auto step = [&](int64_t i) {
    typename Lanes::V b[N];
    for (int n = 0; n < N; ++n) b[n] = w.get(n, i);
    if (ahead)
      for (int n = 0; n < N; ++n) __builtin_prefetch(w.w[n] + w.place(i) + ahead, 0, 2);
    for (int m = 0; m < M; ++m) {
      const typename Lanes::V a = Lanes::load(x[m] + i);
      for (int n = 0; n < N; ++n) c[m][n] = Lanes::multiply_add(c[m][n], a, b[n]);
    }
  };
  int64_t i = 0;
  if constexpr (Source::kEnters) {
    while (i + Lanes::kStep <= k) {
      w.enter(i);
      for (const int64_t end = std::min(i + kScaleBlock, k); i + Lanes::kStep <= end; i += Lanes::kStep) step(i);
    }
  } else {  // one loop: around an inner one GCC would keep the sums in memory
    for (; i + Lanes::kStep <= k; i += Lanes::kStep) step(i);
  }
  for (int m = 0; m < M; ++m)
    for (int n = 0; n < N; ++n) sums[m * N + n] = c[m][n];
  if (i == k) return;
  if constexpr (Source::kEnters)
    if (i % kScaleBlock == 0) w.enter(i);
  const int rest = static_cast<int>(k - i);
  for (int m = 0; m < M; ++m)
    for (int n = 0; n < N; ++n)
      sums[m * N + n] = Lanes::multiply_add(sums[m * N + n], Lanes::load_n(x[m] + i, rest), w.get_n(n, i, rest));
}

// The sums of four vectors, each with the bits of hsum.
__attribute__((always_inline)) inline void hsum4(const vf* v, float* out) {
#if defined(__clang__) || __GNUC__ >= 12
  typedef float v4 __attribute__((vector_size(16)));
  v4 q[4];
  for (int i = 0; i < 4; ++i) {
    vf x = v[i];
#if defined(__AVX512F__)
    x += __builtin_shufflevector(x, x, 8, 9, 10, 11, 12, 13, 14, 15, 8, 9, 10, 11, 12, 13, 14, 15);
    x += __builtin_shufflevector(x, x, 4, 5, 6, 7, 4, 5, 6, 7, 4, 5, 6, 7, 4, 5, 6, 7);
#elif defined(__AVX2__)
    x += __builtin_shufflevector(x, x, 4, 5, 6, 7, 4, 5, 6, 7);
#endif
    q[i] = __builtin_shufflevector(x, x, 0, 1, 2, 3);
  }
  const v4 a = __builtin_shufflevector(q[0], q[1], 0, 4, 1, 5) + __builtin_shufflevector(q[0], q[1], 2, 6, 3, 7);
  const v4 b = __builtin_shufflevector(q[2], q[3], 0, 4, 1, 5) + __builtin_shufflevector(q[2], q[3], 2, 6, 3, 7);
  const v4 sum = __builtin_shufflevector(a, b, 0, 1, 4, 5) + __builtin_shufflevector(a, b, 2, 3, 6, 7);
  std::memcpy(out, &sum, sizeof sum);
#else
  for (int i = 0; i < 4; ++i) out[i] = hsum(v[i]);
#endif
}

// sums[m*N + n] += x_m . w[n] for any number of rows; row m starts at x + m*pitch.
template <class Lanes, int N, class X, class Source>
inline void dots_rows(const X* x, int64_t pitch, int64_t rows, const Source& w, int64_t k, vf* sums, int64_t ahead = 0,
                      bool fresh = false) {
  const X* a[kTileRows];
  auto tile = [&](auto count, int64_t m) {
    constexpr int M = decltype(count)::value;
    for (int i = 0; i < M; ++i) a[i] = x + (m + i) * pitch;
    dots<Lanes, M, N>(a, w, k, sums + m * N, m == 0 ? ahead : 0, fresh);
  };
  int64_t m = 0;
  for (; m + kTileRows <= rows; m += kTileRows) tile(std::integral_constant<int, kTileRows>{}, m);
  const int64_t rest = rows - m;
  if constexpr (kTileRows > 2) {
    if (rest == 5) return tile(std::integral_constant<int, 5>{}, m);
    if (rest == 4) return tile(std::integral_constant<int, 4>{}, m);
    if (rest == 3) return tile(std::integral_constant<int, 3>{}, m);
    if (rest == 2) return tile(std::integral_constant<int, 2>{}, m);
  }
  if (rest) tile(std::integral_constant<int, 1>{}, m);
}

// y[m*4 + n] = x_m . w[n] of one to four rows, with the bits of dots and hsum, where k is a multiple of kStep: products too
// short to pay for sums that pass through memory.
template <class Lanes, int M, class X, class Y>
inline void short_tile(const X* x, int64_t pitch, const FloatSource<Lanes, Y>& w, int64_t k, float* y) {
  const Y *w0 = w.w[0], *w1 = w.w[1], *w2 = w.w[2], *w3 = w.w[3];
  vf c[M * 4] = {};
  for (int64_t i = 0; i < k; i += Lanes::kStep) {
    const typename Lanes::V b0 = Lanes::load(w0 + i), b1 = Lanes::load(w1 + i), b2 = Lanes::load(w2 + i),
                            b3 = Lanes::load(w3 + i);
    for (int m = 0; m < M; ++m) {
      const typename Lanes::V a = Lanes::load(x + m * pitch + i);
      c[m * 4] = Lanes::multiply_add(c[m * 4], a, b0);
      c[m * 4 + 1] = Lanes::multiply_add(c[m * 4 + 1], a, b1);
      c[m * 4 + 2] = Lanes::multiply_add(c[m * 4 + 2], a, b2);
      c[m * 4 + 3] = Lanes::multiply_add(c[m * 4 + 3], a, b3);
    }
  }
  for (int m = 0; m < M; ++m) hsum4(c + 4 * m, y + 4 * m);
}

// The same for `rows` rows; false, and nothing is done, if they are not one to four, if k is no such multiple, or if it is
// so long that weights are to be fetched ahead.
template <class Lanes, class X, class Y>
inline bool short_rows(const X* x, int64_t pitch, int64_t rows, const FloatSource<Lanes, Y>& w, int64_t k, float* y) {
  if (rows > 4 || k % Lanes::kStep || k > kShortDepth) return false;
  if (rows == 1) short_tile<Lanes, 1>(x, pitch, w, k, y);
  else if (rows == 2) short_tile<Lanes, 2>(x, pitch, w, k, y);
  else if (rows == 3) short_tile<Lanes, 3>(x, pitch, w, k, y);
  else short_tile<Lanes, 4>(x, pitch, w, k, y);
  return true;
}

}  // namespace dsv4::cpu
