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
template <class Y>
constexpr int64_t kInOrder = sizeof(Y) == 4 ? 8 : 2;  // so many rows are quicker if W is fetched in the order of memory
constexpr int64_t kSums = kRowBlock * 4 * kColumns;  // of a group of columns: they stay in the first or second level

// What the tiles of a block of W's rows have in common: pitches, how many columns a ragged last vector has, and what is
// fetched into the second-level cache meanwhile. in_order: later rows of W in the order of memory, in pieces of `bytes` that
// lie `jump` apart, `lines` in all, and a page is looked up `touch` bytes ahead. Otherwise, if there are `lines`, the
// tile's own columns of later rows.
struct Block {
  int64_t x_pitch, w_pitch, pitch;
  int rest;
  bool in_order;
  const char* first;
  int64_t bytes, jump, lines, touch;
};

// sums[m][c] += x[m][k] * w[k][c] over `depth` rows of W, in order, for V vectors of columns; the last is whole or has
// block.rest columns. From `at` on kLines are fetched a row, in a piece that ends at `end`; kLines < 0: that many of the
// tile's own columns. The loops that begin and end a sum are unrolled by pragma, or GCC 12 keeps the sums in memory.
template <int M, int V, int kLines, bool kWhole, class Y>
__attribute__((noinline)) void tile(const float* x, const Y* w, int64_t depth, float* sums, const Block& block,
                                    const char* at = nullptr, const char* end = nullptr) {
  const int64_t x_pitch = block.x_pitch, w_pitch = block.w_pitch, pitch = block.pitch;
  const int64_t bytes = block.bytes, jump = block.jump, touch = block.touch;
  vf c[M][V], b[V];
#pragma GCC unroll 8
  for (int m = 0; m < M; ++m)
#pragma GCC unroll 8
    for (int j = 0; j < V; ++j) c[m][j] = load(sums + m * pitch + j * W);
  for (int64_t k = 0; k < depth; ++k) {
    if constexpr (kLines < 0) {
      for (int i = 0; i < -kLines; ++i) __builtin_prefetch(at + k * jump + 64 * i, 0, 2);
    } else if constexpr (kLines > 0) {
      for (int i = 0; i < kLines; ++i) __builtin_prefetch(at + 64 * i, 0, 2);
      at += 64 * kLines;
      if (at >= end) {
        end += jump, at = end - bytes;
        __builtin_prefetch(at + touch, 0, 3);
      }
    }
    for (int j = 0; j < V - 1; ++j) b[j] = load(w + k * w_pitch + j * W);
    b[V - 1] = kWhole ? load(w + k * w_pitch + (V - 1) * W) : load_n(w + k * w_pitch + (V - 1) * W, block.rest);
    for (int m = 0; m < M; ++m) {
      const vf a = splat(x[m * x_pitch + k]);
      for (int j = 0; j < V; ++j) c[m][j] += a * b[j];
    }
  }
#pragma GCC unroll 8
  for (int m = 0; m < M; ++m)
#pragma GCC unroll 8
    for (int j = 0; j < V; ++j) store(sums + m * pitch + j * W, c[m][j]);
}

// All rows of x for `count` columns. What lies behind a ragged last vector is read too, and not used, where later rows of the
// block lie there. step: rows of W that the block's tiles before these have been through, one after the other.
template <int V, class Y>
inline void tile_rows(int64_t rows, const float* x, const Y* w, int64_t depth, int64_t count, float* sums,
                      const Block& block, int64_t step) {
  constexpr int kAll = V < 4 ? 0 : std::max<int>(kColumns * sizeof(Y) / 64, 1);  // lines of a tile's row
  const int64_t over = V * W - count, w_pitch = block.w_pitch, each = (block.bytes + 63) / 64;
  const int64_t whole = over <= 0 ? depth : w_pitch > 0 ? std::max<int64_t>(depth - (over + w_pitch - 1) / w_pitch, 0) : 0;
  int64_t m = 0;
  auto run = [&](auto height) {
    constexpr int M = decltype(height)::value;
    const float* row = x + m * block.x_pitch;
    float* out = sums + m * block.pitch;
    auto fetching = [&](auto lines) {
      constexpr int kLines = decltype(lines)::value;
      const int64_t line = kLines < 0 ? m : step * kLines;
      if (kLines == 0 || line >= block.lines) return tile<M, V, 0, true>(row, w, whole, out, block);
      if constexpr (kLines < 0) return tile<M, V, kLines, true>(row, w, whole, out, block, block.first);
      const char* piece = block.first + line / each * block.jump;
      tile<M, V, kLines, true>(row, w, whole, out, block, piece + line % each * 64, piece + block.bytes);
    };
    const int64_t tiles = (rows + 3) / 4;
    if (!block.in_order) fetching(std::integral_constant<int, -kAll>{});
    else if (tiles == 1) fetching(std::integral_constant<int, kAll>{});
    else if (tiles < kAll) fetching(std::integral_constant<int, (kAll + 1) / 2>{});
    else fetching(std::integral_constant<int, std::min(kAll, 1)>{});
    if (whole < depth) tile<M, V, 0, false>(row + whole, w + whole * w_pitch, depth - whole, out, block);
    m += M, step += depth;
  };
  while (m + 4 <= rows) run(std::integral_constant<int, 4>{});
  if (rows - m == 3) run(std::integral_constant<int, 3>{});
  if (rows - m == 2) run(std::integral_constant<int, 2>{});
  if (rows - m == 1) run(std::integral_constant<int, 1>{});
}

// put(t, n, sums, count): columns n .. n + count - 1 of row t, for all T rows of x and N columns of w; row k of w starts at
// w + k * w_pitch. Few rows take long pieces of W's rows, because each lies in a page of its own. W is fetched ahead if it is
// far_away; in the order of memory, page after page, which are looked up in time, if there are products enough to hide that.
template <class Y, class Put>
void products(const float* x, int64_t x_pitch, int64_t T, const Y* w, int64_t w_pitch, int64_t N, int64_t K, bool far_away,
              Put&& put) {
  const int64_t work = kColumns * K * (sizeof(Y) + T / 8 * sizeof(float));
  constexpr int64_t size = sizeof(Y);
  const bool fetch = far_away && w_pitch > 0, in_order = T >= kInOrder<Y>;
  const int64_t deep = !in_order && T <= kFewRows ? kShallow : kDepthBlock;
  const int64_t group = kSums / std::min(std::max<int64_t>(T, 1), kRowBlock) / kColumns * kColumns;
  parallel((N + kColumns - 1) / kColumns, grain_for(work), [&](int64_t begin, int64_t end) {
    alignas(64) float sums[kSums + kRowBlock * W];
    const int64_t last = std::min(end * kColumns, N);
    for (int64_t n = begin * kColumns; n < last; n += group) {
      const int64_t columns = std::min(group, last - n);
      const int64_t pitch = (columns + W - 1) / W * W + W;  // a gap, so that rows of sums fall on cache sets of their own
      const int64_t far = fetch ? std::max(deep, std::min(kFetched / (columns * size), kSpan / (w_pitch * size))) : K;  // rows
      for (int64_t t0 = 0; t0 < T; t0 += kRowBlock) {
        const int64_t rows = std::min(kRowBlock, T - t0);
        std::fill_n(sums, rows * pitch, 0.0f);
        for (int64_t k = 0; k < K; k += deep) {
          Block block{x_pitch, w_pitch, pitch, 0, in_order, nullptr, columns * size, w_pitch * size, 0,
                      std::max(w_pitch * size, kPage)};
          if (t0 == 0 && k + deep + far <= K) block.lines = in_order ? deep * ((block.bytes + 63) / 64) : 1;
          const auto* later = reinterpret_cast<const char*>(w + (k + far) * w_pitch + n);
          for (int64_t c = 0; c < columns; c += kColumns) {
            const int64_t count = std::min<int64_t>(columns - c, kColumns), depth = std::min(deep, K - k);
            block.rest = static_cast<int>((count - 1) % W + 1);
            block.first = in_order ? later : later + c * size;
            const int64_t step = in_order ? c / kColumns * ((rows + 3) / 4) * depth : 0;
            auto run = [&](auto vectors) {
              tile_rows<decltype(vectors)::value>(rows, x + t0 * x_pitch + k, w + k * w_pitch + n + c, depth, count,
                                                  sums + c, block, step);
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
