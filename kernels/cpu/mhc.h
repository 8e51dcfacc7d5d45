// SPDX-License-Identifier: Apache-2.0
// What mhc_pre, mhc_post_pre and mhc_head share: the projection of a residual row on a few columns, and the weighted
// sum of its streams.
//
// A row of hc*d values is cut into pieces of kPiece values (the same channels of all streams), whose partial sums go
// to the workspace: [token][piece][slot], one slot a column and a last one for the sum of squares. The partition
// depends on hc and d alone, so neither the thread count nor the number of tokens changes a bit of the result, and one
// token still spreads over the threads. Tokens go in blocks that stay in the cache until their streams are summed.
#pragma once
#include <algorithm>

#include "gemm.h"
#include "kernel.h"
#include "rmsnorm.h"

namespace dsv4::cpu {

constexpr int64_t kPiece = 1024;
constexpr int64_t kGroupTokens = 4 * kTileRows;     // tokens of a work item of the projection
constexpr int64_t kBlockTokens = 2 * kGroupTokens;  // tokens between two barriers

constexpr int mhc_slots(int columns) { return (columns + 1 + 15) / 16 * 16; }
inline int64_t mhc_pieces(int64_t hc, int64_t d) { return (d * hc + kPiece - 1) / kPiece; }
inline uint64_t mhc_workspace(int64_t T, int64_t hc, int64_t d, int columns) {
  return std::min(T, kBlockTokens) * mhc_pieces(hc, d) * mhc_slots(columns) * sizeof(float);
}

struct MhcRows {
  TensorView residual, source, fn, base, scale, norm_weight, y;  // source: the residual that comes from memory
  int64_t T, hc, d;
  double rms_eps, hc_eps;
};
template <class Params>
inline MhcRows mhc_rows(const Params& p, const TensorView& residual, const TensorView& y) {
  return {residual, p.residual, p.fn, p.base, p.scale, p.norm_weight, y, p.T, p.hc, p.d, p.rms_eps, p.hc_eps};
}

// Four rows of fn at channels [c0, c0 + n) of all streams, one after the other.
template <int HC>
struct StreamSource {
  static constexpr bool kEnters = false;
  const float* w[4];
  int64_t n, skip;  // skip: from the end of a stream's channels to the next one's
  int64_t place(int64_t k) const {
    int64_t at = k;
    for (int s = 1; s < HC; ++s) at += k >= s * n ? skip : 0;
    return at;
  }
  vf get(int row, int64_t k) const { return load(w[row] + place(k)); }
  vf get_n(int row, int64_t k, int count) const { return load_n(w[row] + k, count); }
  StreamSource<1> stream(int s) const {
    const int64_t at = s * (n + skip);
    return {{w[0] + at, w[1] + at, w[2] + at, w[3] + at}, n, 0};
  }
};

struct MhcTile {
  int64_t t, count, c0;
};
// Runs of n channels are too short for the processor to foresee the next one.
template <class T, int HC>
inline void fetch(const MhcRows& p, int64_t t, int64_t c0, int64_t n) {
  for (int s = 0; s < HC; ++s) {
    const char* row = reinterpret_cast<const char*>(p.source.at<const T>(t, s) + c0);
    for (int64_t i = 0; i < n * static_cast<int64_t>(sizeof(T)); i += 64) __builtin_prefetch(row + i, 0, 2);
  }
}

// Partial sums of `count` <= kTileRows tokens from t, over channels [c0, c0 + n) of all streams. The tile is widened once
// for all columns; its rows lie a cache line more than a power of two apart. ahead: how far behind every four rows of fn
// those lie that are fetched meanwhile (0: none).
template <class T, int HC, int COLUMNS>
inline void project_tile(const MhcRows& p, int64_t t, int64_t count, int64_t c0, int64_t n, float* partial, int64_t pitch,
                         const int64_t* ahead, MhcTile next) {
  constexpr int64_t kRow = kPiece + 16;
  alignas(64) float x[kTileRows * kRow];
  for (int64_t m = 0; m < count; ++m) {
    const T* from[HC];  // in locals: after a store of a vector GCC would read the view again
    for (int s = 0; s < HC; ++s) from[s] = p.residual.at<const T>(t + m, s) + c0;
    float* to = x + m * kRow;
    vf squares[HC] = {};
    for_vectors(n, [&](int64_t c, int width) {
      for (int s = 0; s < HC; ++s) {
        const vf v = load_some(from[s] + c, width);
        store_some(to + s * n + c, v, width);
        squares[s] += v * v;
      }
    });
    for (int s = 1; s < HC; ++s) squares[0] += squares[s];
    partial[m * pitch + COLUMNS] = hsum(squares[0]);
  }
  for (int first = 0; first < COLUMNS; first += 4) {
    vf sums[kTileRows * 4];  // GCC would clear them by a slow instruction
    for (int64_t m = first / 4; m < next.count; m += (COLUMNS + 3) / 4) fetch<T, HC>(p, next.t + m, next.c0, n);
    StreamSource<HC> w{{}, n, p.d - n};
    for (int i = 0; i < 4; ++i) w.w[i] = p.fn.at<const float>(std::min(first + i, COLUMNS - 1)) + c0;
    if (n % W == 0) {
      dots_rows<FloatLanes, 4>(x, kRow, count, w, HC * n, sums, ahead[first / 4], true);
    } else {  // no vector may lie in two streams
      for (int s = 0; s < HC; ++s) dots_rows<FloatLanes, 4>(x + s * n, kRow, count, w.stream(s), n, sums, 0, s == 0);
    }
    for (int64_t m = 0; m < count; ++m) {
      float four[4];
      hsum4(sums + m * 4, four);
      for (int i = 0; i < 4 && first + i < COLUMNS; ++i) partial[m * pitch + first + i] = four[i];
    }
  }
}

// The same for few columns (mhc_head): a value is widened where it is used, for the columns and the sum of squares
// together. n: a multiple of W. The next tile's rows are fetched meanwhile, a line a step.
template <class T, int HC, int COLUMNS, int M>
inline void project_narrow(const MhcRows& p, int64_t t, int64_t c0, int64_t n, float* partial, int64_t pitch,
                           int64_t ahead_fn, MhcTile next) {
  vf sums[M][COLUMNS + 1];
  for (int m = 0; m < M; ++m)
    for (int i = 0; i <= COLUMNS; ++i) sums[m][i] = vf{};
  for (int s = 0; s < HC; ++s) {
    const T *x[M], *ahead[M];
    const float* w[COLUMNS];
    for (int m = 0; m < M; ++m) {
      x[m] = p.residual.at<const T>(t + m, s) + c0;
      ahead[m] = m < next.count ? p.source.at<const T>(next.t + m, s) + next.c0 : x[m];
    }
    for (int i = 0; i < COLUMNS; ++i) w[i] = p.fn.at<const float>(i) + s * p.d + c0;
    for (int64_t c = 0; c < n; c += W) {
      vf b[COLUMNS];
      for (int i = 0; i < COLUMNS; ++i) b[i] = load(w[i] + c);
      if (ahead_fn)
        for (int i = 0; i < COLUMNS; ++i) __builtin_prefetch(w[i] + c + ahead_fn, 0, 2);
      for (int m = 0; m < M; ++m) {
        __builtin_prefetch(ahead[m] + c, 0, 2);
        const vf v = load(x[m] + c);
        for (int i = 0; i < COLUMNS; ++i) sums[m][i] += v * b[i];
        sums[m][COLUMNS] += v * v;
      }
    }
  }
  for (int m = 0; m < M; ++m)
    for (int i = 0; i <= COLUMNS; ++i) partial[m * pitch + i] = hsum(sums[m][i]);
}
constexpr int kNarrowColumns = 4;
constexpr int kNarrowRows = kTileRows > 4 ? 4 : 2;  // their sums and the weights fill the register file

// Which rows of fn come while tile `tile` of `tiles` of a piece is multiplied, four rows a step: in the first piece of a
// range the next four rows; else, spread over the tiles, those of the next piece, `to_next` channels on (0: none).
template <int FOURS>
inline void fetch_plan(int64_t tile, int64_t tiles, bool first_piece, int64_t to_next, int64_t row, int64_t* ahead) {
  const bool here = tile == 0 && (first_piece || tiles == 1);
  const int64_t before = first_piece ? 1 : 0, spread = std::max<int64_t>(tiles - before, 1);
  for (int four = 0; four < FOURS; ++four) {
    const int64_t step = (tile - before) * FOURS + four;
    ahead[four] = 0;
    if (here) ahead[four] = four + 1 < FOURS ? 4 * row : to_next ? to_next - 4 * four * row : 0;
    else if (to_next && step % spread == 0) ahead[four] = to_next + (step / spread - four) * 4 * row;
  }
}

// Phase 1 of tokens [t0, t1). before(t, c0, n) may fill channels of the residual of token t first.
template <class T, int HC, int COLUMNS, class Before>
inline void project(const MhcRows& p, int64_t t0, int64_t t1, float* workspace, Before&& before) {
  constexpr int64_t kChannels = kPiece / HC;
  const int64_t pieces = mhc_pieces(HC, p.d), groups = (t1 - t0 + kGroupTokens - 1) / kGroupTokens;
  const int64_t pitch = pieces * mhc_slots(COLUMNS);
  const int64_t tokens = std::min(t1 - t0, kGroupTokens), width = std::min(p.d, kChannels);
  const int64_t work = COLUMNS * HC * width * (4 + tokens / 4);
  constexpr int kFours = (COLUMNS + 3) / 4;
  constexpr bool kNarrow = COLUMNS <= kNarrowColumns;
  constexpr int64_t kRows = kNarrow ? kNarrowRows : kTileRows;
  parallel(pieces * groups, grain_for(work), [&](int64_t begin, int64_t end) {
    for (int64_t i = begin; i < end; ++i) {
      const int64_t piece = i / groups, c0 = piece * kChannels, n = std::min(kChannels, p.d - c0);
      const int64_t first = t0 + i % groups * kGroupTokens, last = std::min(first + kGroupTokens, t1);
      for (int64_t t = first; t < last; t += kRows) {
        const int64_t count = std::min<int64_t>(kRows, last - t);
        for (int64_t u = t; u < t + count; ++u) before(u, c0, n);
        MhcTile next{t + count, std::min<int64_t>(kRows, last - t - count), c0};
        if (next.count == 0 && i + 1 < end) {  // the first tile of the next item
          const int64_t group = (i + 1) % groups;
          next.t = t0 + group * kGroupTokens, next.count = std::min<int64_t>(kRows, t1 - next.t);
          next.c0 = std::min((i + 1) / groups * kChannels, p.d - n);
        }
        float* partial = workspace + (t - t0) * pitch + piece * mhc_slots(COLUMNS);
        if constexpr (kNarrow) {
          if (n % W == 0) {
            const int64_t ahead = t == first && i + 1 < end ? n : 0;
            for (int64_t m = 0; m < count;) {  // a full tile, or one token at a time
              const bool full = count == kRows;
              if (full) project_narrow<T, HC, COLUMNS, kRows>(p, t, c0, n, partial, pitch, ahead, next);
              else project_narrow<T, HC, COLUMNS, 1>(p, t + m, c0, n, partial + m * pitch, pitch, ahead, next);
              m += full ? kRows : 1;
            }
            continue;
          }
        }
        int64_t ahead[kFours];
        fetch_plan<kFours>((t - first) / kRows, (last - first + kRows - 1) / kRows, i == begin,
                           i % groups == groups - 1 && i + 1 < end ? n : 0, p.fn.stride[0], ahead);
        project_tile<T, HC, COLUMNS>(p, t, count, c0, n, partial, pitch, ahead, next);
      }
    }
  });
}

// m = (fn . x) / rms(x) of `count` <= W tokens, one token a lane. partial: of the first of them.
template <int HC, int COLUMNS>
inline void normed_columns(const MhcRows& p, const float* partial, int count, vf* m) {
  const int64_t pieces = mhc_pieces(HC, p.d);
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
template <class T, int HC>
inline void join_streams(const MhcRows& p, int64_t t, const float* weights, int64_t next) {
  T *y = p.y.at<T>(t), *next_y = p.y.at<T>(next);
  const bool norm = static_cast<bool>(p.norm_weight);
  const T* row[HC];
  for (int s = 0; s < HC; ++s) row[s] = p.residual.at<const T>(t, s);
  vf squares{};
  for_vectors(p.d, [&](int64_t c, int n) {
    __builtin_prefetch(next_y + c, 1, 2);
    vf v = load_some(row[0] + c, n) * weights[0];
    for (int s = 1; s < HC; ++s) v += load_some(row[s] + c, n) * weights[s];
    store_some(y + c, v, n);
    v = rounded<T>(v);
    squares += v * v;
  });
  if (norm) scale_row<T>(y, p.norm_weight, inverse_rms(hsum(squares), p.d, p.rms_eps), p.d, y);
}

// Both phases. coefficients(t, count, m, weights) turns the columns of `count` tokens from t (one a lane) into
// weights[HC], and writes what else depends on them.
template <class T, int HC, int COLUMNS, class Before, class Coefficients>
inline void mhc_project_and_join(const MhcRows& p, float* workspace, Before&& before, Coefficients&& coefficients) {
  const int64_t pitch = mhc_pieces(HC, p.d) * mhc_slots(COLUMNS);
  for (int64_t t0 = 0; t0 < p.T; t0 += kBlockTokens) {
    const int64_t t1 = std::min(t0 + kBlockTokens, p.T);
    project<T, HC, COLUMNS>(p, t0, t1, workspace, before);
    const int64_t row_bytes = (HC + 3) * p.d * sizeof(T) + 4096;
    parallel(t1 - t0, grain_for(row_bytes), [&](int64_t begin, int64_t end) {
      for (int64_t i = begin; i < end; i += W) {
        const int count = static_cast<int>(std::min<int64_t>(W, end - i));
        vf m[COLUMNS], weights[HC];
        normed_columns<HC, COLUMNS>(p, workspace + i * pitch, count, m);
        coefficients(t0 + i, count, m, weights);
        for (int lane = 0; lane < count; ++lane) {
          float w[HC];
          for (int s = 0; s < HC; ++s) w[s] = weights[s][lane];
          join_streams<T, HC>(p, t0 + i + lane, w, t0 + std::min(i + lane + 1, end - 1));
        }
      }
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
