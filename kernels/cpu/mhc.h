// SPDX-License-Identifier: Apache-2.0
// What mhc_pre, mhc_post_pre and mhc_head share: the projection of a residual row on a few columns, and the weighted
// sum of its streams.
//
// A stream's row is cut into pieces of kPiece channels, whose partial sums are added in the order of channels, then
// streams; of few columns (mhc_head) in the order of memory, a page of bf16 a piece. The partition depends on hc and d
// alone, so neither the thread count nor the number of tokens changes a bit of the result. Few tokens spread over the
// threads by pieces, whose partial sums go to the workspace: [token][piece][slot], one slot a column and a last one for
// the sum of squares. Of many tokens every thread takes its own, without barriers.
#pragma once
#include "mhc_tile.h"
#include "pairs.h"

namespace dsv4::cpu {

constexpr int64_t kMaxWidth = 32768;  // of d
constexpr int64_t kBlockTokens = 8 * kTileRows;  // tokens between two barriers
template <int COLUMNS>  // tokens that a thread projects and joins while their rows are in its cache
constexpr int64_t kOwnBlock = (COLUMNS <= kNarrowColumns ? 2 : 4) * kTileRows;
template <int COLUMNS>  // from so many tokens a thread on, every thread has tokens of its own
constexpr int64_t kOwnTokens = COLUMNS <= kNarrowColumns ? 8 : 8 * kTileRows;
constexpr int64_t kOwnShare = 16;  // tiles of one range of them at least, if there are many

constexpr int mhc_slots(int columns) { return (columns + 1 + 15) / 16 * 16; }
inline int64_t mhc_pieces(int64_t hc, int64_t d, int columns) {
  const int64_t piece = columns <= kNarrowColumns ? kPiece<1> : kPiece<kNarrowColumns + 1>;
  return (d + piece - 1) / piece * hc;
}
inline uint64_t mhc_workspace(int64_t T, int64_t hc, int64_t d, int columns) {
  return std::min(T, kBlockTokens) * mhc_pieces(hc, d, columns) * mhc_slots(columns) * sizeof(float);
}

// The sums of tokens [t0, t1) over pieces [begin, end): each piece's to its own slots, or all together if `add`. sums: of
// the first token; pitch: from one to the next. before(t, c0, n) fills channels of all streams of the residual of token t
// before the first of them is read. first: no call before fetched for this one. after: the first tile of the next call.
template <class T, int HC, int COLUMNS, class Before>
__attribute__((noinline)) void project(const MhcRows& p, int64_t t0, int64_t t1, int64_t begin, int64_t end, float* sums,
                                       int64_t pitch, bool add, bool first, MhcTile after, Before&& before) {
  constexpr int64_t kRows = kRowsOfTile<COLUMNS>, kSlots = mhc_slots(COLUMNS);
  constexpr bool kNarrow = COLUMNS <= kNarrowColumns;
  alignas(64) float partial[kRows * kSlots] = {};
  const int64_t per_stream = mhc_pieces(1, p.d, COLUMNS);
  auto piece_of = [&](int64_t i, int64_t t) {
    const int64_t s = kNarrow ? i / per_stream : i % HC, c0 = (kNarrow ? i % per_stream : i / HC) * kPiece<COLUMNS>;
    return MhcTile{t, std::min(kRows, t1 - t), s, c0, std::min(kPiece<COLUMNS>, p.d - c0)};
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
  constexpr bool kApart = Norm && Stream;  // the sum waits for its norm outside of y
  T *y = p.y.at<T>(t), *next_y = p.y.at<T>(next);
  alignas(64) T room[kApart ? kMaxWidth : 1];
  T* sum = kApart ? room : y;
  const T* row[HC];
  vf w[HC];
  for (int s = 0; s < HC; ++s) row[s] = p.residual.at<const T>(t, s), w[s] = splat(weights[s]);
  Pair squares{};
  for_pairs(p.d, [&](int64_t c, int n) {
    if constexpr (!Stream) __builtin_prefetch(next_y + c, 1, 2);
    Pair v{};  // so that every product is one of a product and a sum: GCC may fuse either of two products
    for (int s = 0; s < HC; ++s) {
      const Pair x = load_pair<T>(row[s] + c, n);
      v.a += x.a * w[s], v.b += x.b * w[s];
    }
    v = store_pair<Stream && !Norm>(sum + c, v, n);
    if constexpr (Norm) squares.a += v.a * v.a, squares.b += v.b * v.b;
  });
  if constexpr (Norm) {
    const float factor = inverse_rms(hsum(squares.a + squares.b), p.d, p.rms_eps);
    auto scale = [&](auto* weight) {
      for_pairs(p.d, [&](int64_t c, int n) {
        const Pair v = load_pair<T>(sum + c, n), w = load_pair<T>(weight + c, n);
        store_pair<Stream>(y + c, Pair{v.a * factor * w.a, v.b * factor * w.b}, n);
      });
    };
    if (p.norm_weight.dtype == kF32) scale(p.norm_weight.at<const float>());
    else scale(p.norm_weight.at<const bf16>());
  }
}

// Weights and stream sums of tokens [t0, t1), whose sums begin at `partial`.
template <class T, int HC, int COLUMNS, class Coefficients>
__attribute__((noinline)) void join(const MhcRows& p, int64_t t0, int64_t t1, const float* partial, int64_t pieces,
                 Coefficients&& coefficients) {
  const bool streams = streamable<T>(p.y, 2 * W);
  for (int64_t t = t0; t < t1; t += W, partial += W * pieces * mhc_slots(COLUMNS)) {
    const int count = static_cast<int>(std::min<int64_t>(W, t1 - t));
    vf m[COLUMNS], weights[HC];
    normed_columns<HC, COLUMNS>(p, partial, pieces, count, m);
    coefficients(t, count, m, weights);
    for (int lane = 0; lane < count; ++lane) {
      float w[HC];
      for (int s = 0; s < HC; ++s) w[s] = weights[s][lane];
      const int64_t token = t + lane, next = std::min(token + 1, t1 - 1);
      auto run = [&](auto norm) {
        if (streams) join_streams<T, HC, decltype(norm)::value, true>(p, token, w, next);
        else join_streams<T, HC, decltype(norm)::value, false>(p, token, w, next);
      };
      p.norm_weight ? run(std::true_type{}) : run(std::false_type{});
    }
  }
  if (streams) end_of_stream();
}

// coefficients(t, count, m, weights) turns the columns of `count` tokens from t (one a lane) into weights[HC], and writes
// what else depends on them. Mixes: before() fills all streams of its channels, so their pieces go together.
template <class T, int HC, int COLUMNS, bool Mixes, class Before, class Coefficients>
inline void mhc_project_and_join(const MhcRows& p, float* workspace, Before&& before, Coefficients&& coefficients) {
  constexpr int64_t kSlots = mhc_slots(COLUMNS);
  const int64_t pieces = mhc_pieces(HC, p.d, COLUMNS);
  const int64_t threads = g_host->num_threads();
  if (p.T >= kOwnTokens<COLUMNS> * threads) {
    constexpr int64_t kRows = kRowsOfTile<COLUMNS>;
    const int64_t tiles = (p.T + kRows - 1) / kRows, share = (tiles + 2 * threads - 1) / (2 * threads);
    parallel(tiles, std::clamp<int64_t>(share, 2, kOwnShare), [&](int64_t begin, int64_t end) {
      const int64_t first = begin * kRows, last = std::min(end * kRows, p.T);
      for (int64_t t0 = first, t1; t0 < last; t0 = t1) {
        t1 = std::min(t0 + kOwnBlock<COLUMNS>, last);
        alignas(64) float sums[kOwnBlock<COLUMNS> * kSlots] = {};
        project<T, HC, COLUMNS>(p, t0, t1, 0, pieces, sums, kSlots, true, t0 == first,
                                {t1, std::min(kRows, last - t1), 0, 0, std::min(kPiece<COLUMNS>, p.d)}, before);
        join<T, HC, COLUMNS>(p, t0, t1, sums, 1, coefficients);
      }
    });
    return;
  }
  constexpr int64_t kUnit = Mixes ? HC : 1;
  for (int64_t t0 = 0; t0 < p.T; t0 += kBlockTokens) {
    const int64_t t1 = std::min(t0 + kBlockTokens, p.T);
    // Bytes of fn, and of rows or flops / 16, whichever are more.
    const int64_t work = kUnit * std::min(p.d, kPiece<COLUMNS>) *
                         (4 * COLUMNS + (t1 - t0) * std::max<int64_t>(sizeof(T), COLUMNS / 4));
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
