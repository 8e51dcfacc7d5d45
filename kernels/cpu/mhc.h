// SPDX-License-Identifier: Apache-2.0
// What mhc_pre, mhc_post_pre and mhc_head share: the projection of a residual row on a few columns, and the weighted
// sum of its streams.
//
// A stream's row is cut into pieces of kPiece channels, whose partial sums are added in the order of channels, then
// streams. The partition depends on hc and d alone, so neither the thread count nor the number of tokens changes a bit of
// the result. Few tokens spread over the threads by pieces, whose partial sums go to the workspace: [token][piece][slot],
// one slot a column and a last one for the sum of squares. Of many tokens every thread takes its own, without barriers.
#pragma once
#include "mhc_tile.h"

namespace dsv4::cpu {

constexpr int64_t kBlockTokens = 8 * kTileRows;  // tokens between two barriers
constexpr int64_t kOwnBlock = 4 * kTileRows;     // tokens that a thread projects and joins while their rows are in its cache
constexpr int64_t kOwnTokens = 8 * kTileRows;    // from so many a thread on, every thread has tokens of its own
constexpr int64_t kOwnShare = 16;                // tiles of one range of them at least, if there are many

constexpr int mhc_slots(int columns) { return (columns + 1 + 15) / 16 * 16; }
inline int64_t mhc_pieces(int64_t hc, int64_t d) { return (d + kPiece - 1) / kPiece * hc; }
inline uint64_t mhc_workspace(int64_t T, int64_t hc, int64_t d, int columns) {
  return std::min(T, kBlockTokens) * mhc_pieces(hc, d) * mhc_slots(columns) * sizeof(float);
}

// The sums of tokens [t0, t1) over pieces [begin, end): each piece's to its own slots, or all together if `add`. sums: of
// the first token; pitch: from one to the next. before(t, c0, n) fills channels of all streams of the residual of token t
// before the first of them is read. first: no call before fetched for this one. after: the first tile of the next call.
template <class T, int HC, int COLUMNS, class Before>
__attribute__((noinline)) void project(const MhcRows& p, int64_t t0, int64_t t1, int64_t begin, int64_t end, float* sums,
                                       int64_t pitch, bool add, bool first, MhcTile after, Before&& before) {
  constexpr int64_t kRows = kRowsOfTile<COLUMNS>, kSlots = mhc_slots(COLUMNS);
  alignas(64) float partial[kRows * kSlots] = {};
  auto piece_of = [&](int64_t i, int64_t t) {
    const int64_t c0 = i / HC * kPiece;
    return MhcTile{t, std::min(kRows, t1 - t), i % HC, c0, std::min(kPiece, p.d - c0)};
  };
  for (int64_t i = begin; i < end; ++i) {
    MhcTile tile = piece_of(i, t0);
    const MhcTile following = i + 1 < end ? piece_of(i + 1, t0) : after;
    MhcPlan<T, COLUMNS> plan{{}, 0, (t1 - t0 + kRows - 1) / kRows, first && i == begin, {}};
    for (int c = 0; c < COLUMNS && following.count > 0; ++c) {
      plan.ahead[c] = following.column(p, c);
      __builtin_prefetch(plan.ahead[c], 0, 2);  // all at once, so that the walks for their pages overlap
    }
    for (; tile.t < t1; ++plan.tile) {
      if (tile.s == 0)
        for (int64_t t = tile.t; t < tile.t + tile.count; ++t) before(t, tile.c0, tile.n);
      MhcTile next = piece_of(i, tile.t + kRows);
      plan.next = next.count > 0 ? next : following;
      project_tile<T, COLUMNS>(p, tile, partial, kSlots, plan);
      for (int64_t m = 0; m < tile.count; ++m) {
        float* to = sums + (tile.t - t0 + m) * pitch + (add ? 0 : i * kSlots);
        for (int64_t c = 0; c < kSlots; c += W) {
          const vf v = load(partial + m * kSlots + c);
          store(to + c, add ? load(to + c) + v : v);
        }
      }
      tile = next;
    }
  }
}

// m = (fn . x) / rms(x) of `count` <= W tokens, one token a lane. partial: `pieces` partial sums of the first of them,
// then of the next one.
template <int HC, int COLUMNS>
inline void normed_columns(const MhcRows& p, const float* partial, int64_t pieces, int count, vf* m) {
  float lanes[COLUMNS][W] = {};
  for (int lane = 0; lane < count; ++lane, partial += pieces * mhc_slots(COLUMNS)) {
    float sums[COLUMNS + 1] = {};
    for (int64_t piece = 0; piece < pieces; ++piece)
      for (int i = 0; i <= COLUMNS; ++i) sums[i] += partial[piece * mhc_slots(COLUMNS) + i];
    const float q = inverse_rms(sums[COLUMNS], HC * p.d, p.rms_eps);
    for (int i = 0; i < COLUMNS; ++i) lanes[i][lane] = sums[i] * q;
  }
  for (int i = 0; i < COLUMNS; ++i) m[i] = load(lanes[i]);
}

inline vf sigmoid(vf x) { return 1.0f / (1.0f + vexp(-x)); }

// y = sum over the streams, rounded; then the norm of the rounded row, if there is one. weights: HC, one token's. next: the
// token whose y is fetched meanwhile.
template <class T, int HC, bool Norm, bool Stream>
inline void join_streams(const MhcRows& p, int64_t t, const float* weights, int64_t next) {
  T *y = p.y.at<T>(t), *next_y = p.y.at<T>(next);
  const T* row[HC];
  for (int s = 0; s < HC; ++s) row[s] = p.residual.at<const T>(t, s);
  vf squares{};
  for_vectors(p.d, [&](int64_t c, int n) {
    if constexpr (!Stream) __builtin_prefetch(next_y + c, 1, 2);
    vf v{};  // so that every product is one of a product and a sum: GCC may fuse either of two products
    for (int s = 0; s < HC; ++s) v += load_some(row[s] + c, n) * weights[s];
    if constexpr (Stream) stream(y + c, v);
    else store_some(y + c, v, n);
    if constexpr (Norm) v = rounded<T>(v), squares += v * v;
  });
  if constexpr (Norm) scale_row<T>(y, p.norm_weight, inverse_rms(hsum(squares), p.d, p.rms_eps), p.d, y);
}

// Weights and stream sums of tokens [t0, t1), whose sums begin at `partial`.
template <class T, int HC, int COLUMNS, class Coefficients>
__attribute__((noinline)) void join(const MhcRows& p, int64_t t0, int64_t t1, const float* partial, int64_t pieces,
                 Coefficients&& coefficients) {
  const bool streams = !p.norm_weight && streamable<T>(p.y);
  for (int64_t t = t0; t < t1; t += W, partial += W * pieces * mhc_slots(COLUMNS)) {
    const int count = static_cast<int>(std::min<int64_t>(W, t1 - t));
    vf m[COLUMNS], weights[HC];
    normed_columns<HC, COLUMNS>(p, partial, pieces, count, m);
    coefficients(t, count, m, weights);
    for (int lane = 0; lane < count; ++lane) {
      float w[HC];
      for (int s = 0; s < HC; ++s) w[s] = weights[s][lane];
      const int64_t token = t + lane, next = std::min(token + 1, t1 - 1);
      if (p.norm_weight) join_streams<T, HC, true, false>(p, token, w, next);
      else if (streams) join_streams<T, HC, false, true>(p, token, w, next);
      else join_streams<T, HC, false, false>(p, token, w, next);
    }
  }
  if (streams) end_of_stream();
}

// coefficients(t, count, m, weights) turns the columns of `count` tokens from t (one a lane) into weights[HC], and writes
// what else depends on them. Mixes: before() fills all streams of its channels, so their pieces go together.
template <class T, int HC, int COLUMNS, bool Mixes, class Before, class Coefficients>
inline void mhc_project_and_join(const MhcRows& p, float* workspace, Before&& before, Coefficients&& coefficients) {
  constexpr int64_t kSlots = mhc_slots(COLUMNS);
  const int64_t pieces = mhc_pieces(HC, p.d);
  const int64_t threads = g_host->num_threads();
  if (p.T >= kOwnTokens * threads) {
    constexpr int64_t kRows = kRowsOfTile<COLUMNS>;
    const int64_t tiles = (p.T + kRows - 1) / kRows, share = (tiles + 2 * threads - 1) / (2 * threads);
    parallel(tiles, std::min(share, kOwnShare), [&](int64_t begin, int64_t end) {
      const int64_t first = begin * kRows, last = std::min(end * kRows, p.T);
      for (int64_t t0 = first, t1; t0 < last; t0 = t1) {
        t1 = std::min(t0 + kOwnBlock, last);
        alignas(64) float sums[kOwnBlock * kSlots] = {};
        project<T, HC, COLUMNS>(p, t0, t1, 0, pieces, sums, kSlots, true, t0 == first,
                                {t1, std::min(kRows, last - t1), 0, 0, std::min(kPiece, p.d)}, before);
        join<T, HC, COLUMNS>(p, t0, t1, sums, 1, coefficients);
      }
    });
    return;
  }
  constexpr int64_t kUnit = Mixes ? HC : 1;
  for (int64_t t0 = 0; t0 < p.T; t0 += kBlockTokens) {
    const int64_t t1 = std::min(t0 + kBlockTokens, p.T);
    const int64_t work = COLUMNS * kUnit * std::min(p.d, kPiece) * (4 + (t1 - t0) / 4);
    parallel(pieces / kUnit, grain_for(work), [&](int64_t begin, int64_t end) {
      project<T, HC, COLUMNS>(p, t0, t1, begin * kUnit, end * kUnit, workspace, pieces * kSlots, false, true, {}, before);
    });
    const int64_t row_bytes = (HC + 3) * p.d * sizeof(T) + 4096;
    parallel(t1 - t0, grain_for(row_bytes), [&](int64_t begin, int64_t end) {
      join<T, HC, COLUMNS>(p, t0 + begin, t0 + end, workspace + begin * pieces * kSlots, pieces, coefficients);
    });
  }
}

// Calls fn(type<T>, integral_constant<HC>) for the dtype and stream count of `residual`.
template <class Fn>
inline void mhc_dispatch(const TensorView& residual, Fn&& fn) {
  auto streams = [&](auto zero) {
    switch (residual.shape[1]) {
      case 1: fn(zero, std::integral_constant<int, 1>{}); break;
      case 2: fn(zero, std::integral_constant<int, 2>{}); break;
      default: fn(zero, std::integral_constant<int, 4>{});
    }
  };
  if (residual.dtype == kF32) streams(float{});
  else streams(bf16{});
}

}  // namespace dsv4::cpu
