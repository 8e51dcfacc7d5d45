// SPDX-License-Identifier: Apache-2.0
// Products x W of few rows with W [K, N] as it lies in memory: a vector of results is a row of W after another times one
// value of x, so there is nothing to add up across lanes, which is what products of short rows are slowed down by.
#pragma once
#include <algorithm>
#include <type_traits>

#include "kernel.h"
#include "rmsnorm.h"

namespace dsv4::cpu {

constexpr int kColumns = 4 * W;  // of a tile: with 4 rows its sums fill half of the register file
constexpr int64_t kDepthBlock = 32, kRowBlock = 64;  // rows of W, and of x, in a block
constexpr int64_t kShallow = 8, kFewRows = 2;  // so many rows of x are quicker with so few of W: memory is what they wait for
constexpr int64_t kFar = 1 << 20;  // bytes of W that do not stay in a core's caches
constexpr int64_t kFetched = 16 << 10, kSpan = 128 << 10;  // bytes of it on their way, so that they come in time, and where
                                                          // they lie: in few pages
constexpr int64_t kSums = kRowBlock * 4 * kColumns;  // of a group of columns: they stay in the first or second level

// sums[m][c] += x[m][k] * w[k][c] over a block of k, in order, for V vectors of columns, of which `count` are there. The
// rest of a vector is read too where later rows of the block lie behind it, and not used. ahead: what lies so many values
// behind is fetched meanwhile (0: nothing).
template <int M, int V, class Y>
inline void tile(const float* x, int64_t x_pitch, const Y* w, int64_t w_pitch, int64_t depth, int64_t count, float* sums,
                 int64_t pitch, int64_t ahead) {
  vf c[M][V];
  for (int m = 0; m < M; ++m)
    for (int j = 0; j < V; ++j) c[m][j] = load(sums + m * pitch + j * W);
  auto add = [&](int64_t k, const vf* b) {
    for (int m = 0; m < M; ++m) {
      const vf a = splat(x[m * x_pitch + k]);
      for (int j = 0; j < V; ++j) c[m][j] += a * b[j];
    }
  };
  const int rest = static_cast<int>(count - (V - 1) * W);
  const int64_t over = V * W - count;
  const int64_t whole = over <= 0 ? depth : w_pitch > 0 ? std::max<int64_t>(depth - (over + w_pitch - 1) / w_pitch, 0) : 0;
  vf b[V];
  constexpr int kLine = 64 / sizeof(Y);
  for (int64_t k = 0; k < whole; ++k) {
    if (ahead)
      for (int j = 0; j < V * W; j += kLine) __builtin_prefetch(w + k * w_pitch + j + ahead, 0, 2);
    for (int j = 0; j < V; ++j) b[j] = load(w + k * w_pitch + j * W);
    add(k, b);
  }
  for (int64_t k = whole; k < depth; ++k) {
    for (int j = 0; j < V - 1; ++j) b[j] = load(w + k * w_pitch + j * W);
    b[V - 1] = load_n(w + k * w_pitch + (V - 1) * W, rest);
    add(k, b);
  }
  for (int m = 0; m < M; ++m)
    for (int j = 0; j < V; ++j) store(sums + m * pitch + j * W, c[m][j]);
}

template <int V, class Y>
inline void tile_rows(int64_t rows, const float* x, int64_t x_pitch, const Y* w, int64_t w_pitch, int64_t depth,
                      int64_t count, float* sums, int64_t pitch, int64_t ahead) {
  int64_t m = 0;
  auto run = [&](auto height) {
    constexpr int M = decltype(height)::value;
    tile<M, V>(x + m * x_pitch, x_pitch, w, w_pitch, depth, count, sums + m * pitch, pitch, m ? 0 : ahead);
    m += M;
  };
  while (m + 4 <= rows) run(std::integral_constant<int, 4>{});
  if (rows - m == 3) run(std::integral_constant<int, 3>{});
  if (rows - m == 2) run(std::integral_constant<int, 2>{});
  if (rows - m == 1) run(std::integral_constant<int, 1>{});
}

// put(t, n, sums, count): columns n .. n + count - 1 of row t, for all T rows of x and N columns of w; row k of w starts at
// w + k * w_pitch. Few rows take long pieces of W's rows, because each lies in a page of its own.
template <class Y, class Put>
void products(const float* x, int64_t x_pitch, int64_t T, const Y* w, int64_t w_pitch, int64_t N, int64_t K, Put&& put) {
  const int64_t work = kColumns * K * (sizeof(Y) + T / 8 * sizeof(float));
  const int64_t deep = T <= kFewRows ? kShallow : kDepthBlock;
  constexpr int64_t size = sizeof(Y);
  const bool fetch = K * N * size >= kFar && w_pitch > 0;
  const int64_t group = kSums / std::min(std::max<int64_t>(T, 1), kRowBlock) / kColumns * kColumns;
  parallel((N + kColumns - 1) / kColumns, grain_for(work), [&](int64_t begin, int64_t end) {
    alignas(64) float sums[kSums];
    const int64_t last = std::min(end * kColumns, N);
    for (int64_t n = begin * kColumns; n < last; n += group) {
      const int64_t columns = std::min(group, last - n), pitch = (columns + W - 1) / W * W;
      const int64_t far = fetch ? std::max(deep, std::min(kFetched / (columns * size), kSpan / (w_pitch * size))) : K;  // rows
      for (int64_t t0 = 0; t0 < T; t0 += kRowBlock) {
        const int64_t rows = std::min(kRowBlock, T - t0);
        std::fill_n(sums, rows * pitch, 0.0f);
        for (int64_t k = 0; k < K; k += deep) {
          const int64_t ahead = t0 == 0 && k + deep + far <= K ? far * w_pitch : 0;
          for (int64_t c = 0; c < columns; c += kColumns) {
            const int64_t count = std::min<int64_t>(columns - c, kColumns), depth = std::min(deep, K - k);
            auto run = [&](auto vectors) {
              tile_rows<decltype(vectors)::value>(rows, x + t0 * x_pitch + k, x_pitch, w + k * w_pitch + n + c, w_pitch,
                                                  depth, count, sums + c, pitch, ahead);
            };
            if (count > 3 * W) run(std::integral_constant<int, 4>{});
            else if (count > 2 * W) run(std::integral_constant<int, 3>{});
            else if (count > W) run(std::integral_constant<int, 2>{});
            else run(std::integral_constant<int, 1>{});
          }
        }
        for (int64_t t = 0; t < rows; ++t) put(t0 + t, n, sums + t * pitch, columns);
      }
    }
  });
}

}  // namespace dsv4::cpu
