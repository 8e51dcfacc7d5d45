// SPDX-License-Identifier: Apache-2.0
// Products of a tile of residual rows with columns of fn, over n channels of one stream. The sum of one row and one column
// is a vector that runs over the channels, whatever else is in the tile; all sums of a call stay in registers until they
// are added up.
#pragma once
#include <algorithm>

#include "gemm.h"
#include "kernel.h"
#include "rmsnorm.h"

namespace dsv4::cpu {

constexpr int kNarrowColumns = 4;  // or fewer are formed in one go, from rows as they are
template <int COLUMNS>
constexpr int64_t kPiece = COLUMNS <= kNarrowColumns ? 2048 : 1024;
constexpr int64_t kWideRow = kPiece<kNarrowColumns + 1> + 16;  // a cache line more than a power of two apart

struct MhcRows {
  TensorView residual, source, fn, base, scale, norm_weight, y;  // source: the residual that comes from memory
  int64_t T, hc, d;
  double rms_eps, hc_eps;
};
template <class Params>
inline MhcRows mhc_rows(const Params& p, const TensorView& residual, const TensorView& y) {
  return {residual, p.residual, p.fn, p.base, p.scale, p.norm_weight, y, p.T, p.hc, p.d, p.rms_eps, p.hc_eps};
}

// Channels [c0, c0 + n) of stream s of `count` tokens from t.
struct MhcTile {
  int64_t t, count, s, c0, n;
  template <class T>
  const T* row(const TensorView& residual, int64_t m) const { return residual.at<const T>(t + m, s) + c0; }
  const float* column(const MhcRows& p, int i) const { return p.fn.at<const float>(i) + s * p.d + c0; }
};
// What a call fetches into the second-level cache while it multiplies, a line or two a step.
template <class T>
struct MhcFetch {
  const float* fn[4];    // as much from each as there is of a column; nullptr: nothing
  const T* row;          // a row of the next tile
  int64_t rows, stride;  // further ones
};

// In what follows the loops that begin and end a sum are unrolled by pragma, or GCC 12 keeps the sums in memory.

// partial[m * pitch + i]: columns i < N of M rows, and at `squares` the sum of squares. A value is widened where it is used,
// and kept in `wide` for other columns if Keep.
template <class T, int M, int N, bool Keep>
__attribute__((noinline)) void tile_from_rows(const MhcRows& p, const MhcTile& tile, float* wide, float* partial,
                                              int64_t pitch, int squares, const MhcFetch<T>& fetch) {
  constexpr int kFetched = Keep ? 1 : M;  // a call for few columns is all that its tile has
  const T *x[M], *next[kFetched];
  const float *w[N], *ahead[N];
  for (int m = 0; m < M; ++m) x[m] = tile.row<T>(p.residual, m);
  for (int m = 0; m < kFetched; ++m) next[m] = m < fetch.rows ? fetch.row + m * fetch.stride : x[m];
  for (int i = 0; i < N; ++i) w[i] = tile.column(p, i), ahead[i] = fetch.fn[i] ? fetch.fn[i] : w[i];
  vf sums[M][N], square[M];
#pragma GCC unroll 8
  for (int m = 0; m < M; ++m) {
    square[m] = vf{};
#pragma GCC unroll 8
    for (int i = 0; i < N; ++i) sums[m][i] = vf{};
  }
  const int64_t n = tile.n;
  for (int64_t c = 0; c < n; c += W) {
    vf b[N];
    for (int i = 0; i < N; ++i) b[i] = load(w[i] + c);
    for (int i = 0; i < N; ++i) __builtin_prefetch(ahead[i] + c, 0, 2);
    for (int m = 0; m < kFetched; ++m) __builtin_prefetch(next[m] + c, 0, 2);
    for (int m = 0; m < M; ++m) {
      const vf v = load(x[m] + c);
      if constexpr (Keep) store(wide + m * kWideRow + c, v);
      for (int i = 0; i < N; ++i) sums[m][i] += v * b[i];
      square[m] += v * v;
    }
  }
#pragma GCC unroll 8
  for (int m = 0; m < M; ++m) {
    if constexpr (N == 4) hsum4(sums[m], partial + m * pitch);
    else for (int i = 0; i < N; ++i) partial[m * pitch + i] = hsum(sums[m][i]);
    partial[m * pitch + squares] = hsum(square[m]);
  }
}

// partial[m * pitch + i] = columns first + i, i < 4, of M widened rows.
template <class T, int M>
__attribute__((noinline)) void tile_from_wide(const MhcRows& p, const MhcTile& tile, int first, const float* wide,
                                              float* partial, int64_t pitch, const MhcFetch<T>& fetch) {
  const float *w[4], *ahead[4];
  for (int i = 0; i < 4; ++i) w[i] = tile.column(p, first + i), ahead[i] = fetch.fn[i] ? fetch.fn[i] : w[i];
  const T* next = fetch.rows > 0 ? fetch.row : tile.row<T>(p.residual, 0);
  vf sums[M][4];
#pragma GCC unroll 8
  for (int m = 0; m < M; ++m)
#pragma GCC unroll 8
    for (int i = 0; i < 4; ++i) sums[m][i] = vf{};
  const int64_t n = tile.n;
  for (int64_t c = 0; c < n; c += W) {
    vf b[4];
    for (int i = 0; i < 4; ++i) b[i] = load(w[i] + c);
    for (int i = 0; i < 4; ++i) __builtin_prefetch(ahead[i] + c, 0, 2);
    __builtin_prefetch(next + c, 0, 2);
    for (int m = 0; m < M; ++m) {
      const vf v = load(wide + m * kWideRow + c);
      for (int i = 0; i < 4; ++i) sums[m][i] += v * b[i];
    }
  }
#pragma GCC unroll 8
  for (int m = 0; m < M; ++m) hsum4(sums[m], partial + m * pitch);
}

// The product of a row with a column, or (-1) with itself, for any number of channels.
template <class T>
inline float row_product(const MhcRows& p, const MhcTile& tile, int64_t m, int column) {
  const T* x = tile.row<T>(p.residual, m);
  const float* w = column < 0 ? nullptr : tile.column(p, column);
  vf sum{};
  for_vectors(tile.n, [&](int64_t c, int count) {
    const vf v = load_some(x + c, count);
    sum += v * (w ? load_some(w + c, count) : v);
  });
  return hsum(sum);
}

// fn(integral_constant<M>) for M = count <= Most.
template <int Most, class Fn>
inline void for_count(int64_t count, Fn&& fn) {
  if constexpr (Most > 1)
    if (count < Most) return for_count<Most - 1>(count, fn);
  fn(std::integral_constant<int, Most>{});
}

constexpr int kNarrowRows = kTileRows > 4 ? 4 : 2;  // their sums, with the weights, fill the register file
constexpr int kFirstRows = kTileRows > 4 ? 3 : 2;   // the same with a value that is kept
template <int COLUMNS>
constexpr int kRowsOfTile = COLUMNS <= kNarrowColumns ? kNarrowRows : kTileRows;

// What a tile fetches: the next tile's rows, a token a call; and four rows of fn a time, those of the next piece spread
// over the tiles of this one. In the first piece of a range, and where a piece is one tile, the next four rows instead.
template <class T, int COLUMNS>
struct MhcPlan {
  static constexpr int kFours = (COLUMNS + 3) / 4;
  MhcTile next;
  int64_t tile, tiles;
  bool first_piece;
  const float* ahead[4 * kFours];  // of the next piece
  MhcFetch<T> fetch(const MhcRows& p, const MhcTile& now, int call, int four) const {
    const bool here = tiles == 1 || (first_piece && tile == 0);
    const int64_t before = first_piece ? 1 : 0;
    MhcFetch<T> f{{}, next.row<T>(p.source, call), next.count - call, p.source.stride[0]};
    for (int i = 0; i < 4; ++i) {
      if (here && four + 1 < kFours) f.fn[i] = now.column(p, 4 * four + 4 + i);
      else if (tiles == 1) f.fn[i] = ahead[i];
      else if (!here && i * (tiles - before) / 4 == tile - before) f.fn[i] = ahead[4 * four + i];
    }
    return f;
  }
};

// Partial sums of a tile: partial[m * pitch + slot], a slot a column and one for the sum of squares.
template <class T, int COLUMNS>
inline void project_tile(const MhcRows& p, const MhcTile& tile, float* partial, int64_t pitch,
                         const MhcPlan<T, COLUMNS>& plan) {
  constexpr int kFours = (COLUMNS + 3) / 4;
  if (tile.n % W != 0) {
    for (int64_t m = 0; m < tile.count; ++m)
      for (int i = 0; i <= COLUMNS; ++i)
        partial[m * pitch + i] = row_product<T>(p, tile, m, i < COLUMNS ? i : -1);
  } else if constexpr (COLUMNS <= kNarrowColumns) {
    for_count<kNarrowRows>(tile.count, [&](auto count) {
      tile_from_rows<T, decltype(count)::value, COLUMNS, false>(p, tile, nullptr, partial, pitch, COLUMNS,
                                                                plan.fetch(p, tile, 0, 0));
    });
  } else {
    alignas(64) float wide[kTileRows * kWideRow];
    int call = 0;
    const int64_t rows = tile.count <= kFirstRows ? tile.count : (tile.count + 1) / 2;
    for (int64_t m = 0; m < tile.count; m += rows) {
      const MhcTile part{tile.t + m, std::min(rows, tile.count - m), tile.s, tile.c0, tile.n};
      MhcFetch<T> fetch = plan.fetch(p, tile, call++, 0);
      if (m > 0) std::fill(fetch.fn, fetch.fn + 4, nullptr);
      for_count<kFirstRows>(part.count, [&](auto count) {
        tile_from_rows<T, decltype(count)::value, 4, true>(p, part, wide + m * kWideRow, partial + m * pitch, pitch,
                                                           COLUMNS, fetch);
      });
    }
    for (int four = 1; four < kFours; ++four)
      for_count<kTileRows>(tile.count, [&](auto count) {
        tile_from_wide<T, decltype(count)::value>(p, tile, 4 * four, wide, partial + 4 * four, pitch,
                                                  plan.fetch(p, tile, call++, four));
      });
  }
}

}  // namespace dsv4::cpu
