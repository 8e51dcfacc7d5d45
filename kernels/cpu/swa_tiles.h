// SPDX-License-Identifier: Apache-2.0
// The two inner products of swa_paged_attention on register tiles: scores of (4 heads x some keys) and weighted sums
// of keys for (4 heads x some dims). Every key vector that is loaded feeds four heads. The order of additions within
// a (head, key) score or a (head, dim) sum does not depend on the tile it falls into.
#pragma once
#include "rope.h"

namespace dsv4::cpu {

constexpr int kHeads = 16;       // heads of a work item
constexpr int kTileHeads = 4;    // heads of a tile; divides kHeads
constexpr int kBlock = 64;       // keys of one softmax step
constexpr int kTileKeys = W == 8 ? 2 : 4;  // AVX2 has 16 registers, the others 32; kTileHeads * kTileKeys is a multiple of W
constexpr int kTileVectors = W == 8 ? 2 : 4;

// Arrays: q [kHeads] pointers, acc [kHeads][kMaxHeadSize], score and weight [kHeads][kBlock], alpha [kHeads].
// `heads` is rounded up to kTileHeads and keys [n] to a multiple of 4; what is added for that is zero.
template <class T>
struct Tiles {
  using Q = float;

  // The query as `scores` reads it, in `room` unless it can stay where it is.
  static const Q* query(Q* room, const T* q, int64_t D) {
    if constexpr (sizeof(T) == sizeof(Q)) return q;
    for (int64_t d = 0; d < D; d += W) store(room + d, load(q + d));
    return room;
  }

  // A softmax weight as `mix` will use it.
  static vf as_weight(vf e) { return e; }

  static void scores(float* score, const Q* const* q, int heads, const T* const* keys, int n, int64_t D) {
    for (int k = 0; k < n; k += kTileKeys)
      for (int h = 0; h < heads; h += kTileHeads) score_tile(score + h * kBlock + k, q + h, keys + k, D);
  }

  // acc = acc * alpha + sum_k weight_k * key_k; without alpha acc is not read. The bf16 tiles meanwhile fetch the keys
  // next[0, n), the queries at `ahead` and what lies where the result goes, if these are given.
  static void mix(float* acc, const float* alpha, const float* weight, int heads, const T* const* keys, int n,
                  int64_t D, const T* const*, const T*, const T*) {
    for (int h = 0; h < heads; h += kTileHeads) {
      float* a = acc + h * kMaxHeadSize;
      const float* w = weight + h * kBlock;
      int64_t d = 0;
      for (; d + kTileVectors * W <= D; d += kTileVectors * W)
        mix_tile<kTileVectors>(a + d, alpha ? alpha + h : nullptr, w, keys, n, d);
      for (; d < D; d += W) mix_tile<1>(a + d, alpha ? alpha + h : nullptr, w, keys, n, d);
    }
  }

  // Dims d .. d + W of a row of acc.
  static vf result(const float* acc, int64_t d) { return load(acc + d); }

 private:
  static void score_tile(float* score, const Q* const* q, const T* const* keys, int64_t D) {
    vf sum[kTileHeads * kTileKeys] = {};
    for (int64_t d = 0; d < D; d += W) {
      vf x[kTileHeads];
      for (int h = 0; h < kTileHeads; ++h) x[h] = load(q[h] + d);
      for (int k = 0; k < kTileKeys; ++k) {
        const vf y = load(keys[k] + d);
        for (int h = 0; h < kTileHeads; ++h) sum[h * kTileKeys + k] = sum[h * kTileKeys + k] + x[h] * y;
      }
    }
    float s[kTileHeads * kTileKeys];
    for (int g = 0; g < kTileHeads * kTileKeys; g += W) store(s + g, sums_of(sum + g));
    for (int h = 0; h < kTileHeads; ++h) std::memcpy(score + h * kBlock, s + h * kTileKeys, kTileKeys * sizeof(float));
  }

  template <int N>
  static void mix_tile(float* acc, const float* alpha, const float* weight, const T* const* keys, int n, int64_t d) {
    vf sum[kTileHeads][N] = {};
    if (alpha)
      for (int h = 0; h < kTileHeads; ++h)
        for (int i = 0; i < N; ++i) sum[h][i] = load(acc + h * kMaxHeadSize + i * W) * alpha[h];
    for (int k = 0; k < n; ++k) {
      vf y[N];
      for (int i = 0; i < N; ++i) y[i] = load(keys[k] + d + i * W);
      for (int h = 0; h < kTileHeads; ++h) {
        const vf w = splat(weight[h * kBlock + k]);
        for (int i = 0; i < N; ++i) sum[h][i] = sum[h][i] + w * y[i];
      }
    }
    for (int h = 0; h < kTileHeads; ++h)
      for (int i = 0; i < N; ++i) store(acc + h * kMaxHeadSize + i * W, sum[h][i]);
  }
};

}  // namespace dsv4::cpu
