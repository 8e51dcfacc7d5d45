// SPDX-License-Identifier: Apache-2.0
// nextn_fuse_hidden: norm the T embedding rows and the T*hc stream rows into the workspace, then both products and
// their sum, a panel of four output columns a work item.
// A panel's weights are read (and decoded) once for all rows of a block of tokens, so few tokens are bound by reading
// the two [d, d] weights, many by the products. Sums run over k in order, whatever the tiles.
#include <algorithm>

#include "decode.h"
#include "gemm.h"
#include "kernel.h"
#include "rmsnorm.h"

namespace dsv4::cpu {
namespace {

using Params = NextnFuseHiddenParams;
constexpr int N = kTileColumns;
constexpr int64_t kDepth = 2048;    // k values of a decoded tile: a multiple of kScaleBlock
constexpr int64_t kLongDepth = 4096;  // of a tile that is read where it lies
constexpr int64_t kMaxRows = 80;    // rows of x between two barriers: they stay in the second-level cache
static_assert(kDepth % kScaleBlock == 0, "a tile holds whole scale blocks");

// What rows of bf16 become: bf16 where the processor multiplies it, else fp32, so that each is widened once.
#ifdef __AVX512BF16__
using NarrowRow = bf16;
template <class X>
using Lanes = std::conditional_t<std::is_same<X, bf16>::value, Bf16Lanes, FloatLanes>;
template <class X>
using E4m3Lanes = std::conditional_t<std::is_same<X, bf16>::value, Bf16PairLanes, FloatLanes>;
#else
using NarrowRow = float;
template <class X>
using Lanes = FloatLanes;
template <class X>
using E4m3Lanes = FloatLanes;
#endif

int64_t block_tokens(const Params& p) { return std::min(p.T, kMaxRows / (1 + p.hc)); }
// A row of x is followed by a gap, so that rows do not fall on the same cache sets.
int64_t row_pitch(const Params& p) { return (p.d + 31) / 32 * 32 + 32; }

uint64_t workspace_size(const Params& p) {
  const int64_t size = p.embeds.dtype == kBF16 ? sizeof(NarrowRow) : sizeof(float);
  return block_tokens(p) * (1 + p.hc) * row_pitch(p) * size;
}

// Normed rows of tokens [t0, t0 + n): n of embeds, then n*hc of hidden. T is their dtype, X the dtype of products.
template <class T, class X>
void norm_rows(const Params& p, int64_t t0, int64_t n, X* x) {
  const int64_t pitch = row_pitch(p);
  parallel(n * (1 + p.hc), grain_for(p.d * (sizeof(T) + sizeof(X))), [&](int64_t begin, int64_t end) {
    for (int64_t r = begin; r < end; ++r) {
      const bool embed = r < n;
      const T* row = embed ? p.embeds.at<const T>(t0 + r)
                           : p.hidden.at<const T>(t0 + (r - n) / p.hc) + (r - n) % p.hc * p.d;
      const float q = inverse_rms(sum_squares(row, p.d), p.d, p.eps);
      scale_row<T>(row, embed ? p.enorm_weight : p.hnorm_weight, q, p.d, x + r * pitch);
    }
  });
}

// sums[row][N] += x . w over all k, for the N weight rows of `source`.
template <class Lanes, class X, class Source>
void panel_direct(const X* x, int64_t pitch, int64_t rows, int64_t d, vf* sums, const Source& source, int64_t ahead) {
  for (int64_t k = 0; k < d; k += kLongDepth) {
    Source at = source;
    for (auto& w : at.w) w += k;
    const int64_t depth = std::min(kLongDepth, d - k);
    dots_rows<Lanes, N>(x + k, pitch, rows, at, depth, sums, ahead);
  }
}

// A source that keeps what it decodes in a tile [N][kDepth].
template <class Lanes, class Source, class D>
struct Keeping : Source {
  D* tile;
  Keeping(const Source& source, D* to) : Source(source), tile(to) {}
  auto kept(int row, int64_t k, typename Lanes::V v) const {
    Lanes::store(tile + row * kDepth + k, v);
    return v;
  }
  auto get(int row, int64_t k) const { return kept(row, k, Source::get(row, k)); }
  auto get_n(int row, int64_t k, int n) const { return kept(row, k, Source::get_n(row, k, n)); }
};

// The same for quantised weights: decoded for the first register tile of rows, and kept for the others.
template <class Lanes, class X, class Source>
void panel_decoded(const X* x, int64_t pitch, int64_t rows, int64_t d, vf* sums, Source source, int64_t ahead) {
  using D = std::conditional_t<Lanes::kStep == W, float, bf16>;
  using Kept = std::conditional_t<Lanes::kStep == W, FloatLanes, cpu::Lanes<bf16>>;
  constexpr int kFirst = Lanes::kStep > 32 ? 4 : kTileRows;  // pairs of vectors take more registers
  if (rows <= kFirst) return dots_rows<Lanes, N>(x, pitch, rows, source, d, sums, ahead);
  D tile[N][kDepth];
  FloatSource<Kept, D> decoded;
  for (int i = 0; i < N; ++i) decoded.w[i] = tile[i];
  for (int64_t k = 0; k < d; k += kDepth) {
    const int64_t depth = std::min(kDepth, d - k);
    dots_rows<Lanes, N>(x + k, pitch, kFirst, Keeping<Lanes, Source, D>(source, tile[0]), depth, sums, ahead);
    dots_rows<Kept, N>(x + kFirst * pitch + k, pitch, rows - kFirst, decoded, depth, sums + kFirst * N);
    for (auto& w : source.w) w += kDepth;
    if constexpr (Source::kEnters) source.scales += kDepth / kScaleBlock;
  }
}

// Weight rows j .. j+N; the next panel is fetched meanwhile. E4M3 rows of a panel share one row of scales (N divides kScaleBlock).
template <class X>
void panel(const X* x, int64_t pitch, int64_t rows, int64_t d, vf* sums, const TensorView& weight,
           const TensorView& scale, int64_t j) {
  auto fill = [&](auto source) {
    using Value = std::remove_reference_t<decltype(*source.w[0])>;
    for (int i = 0; i < N; ++i) source.w[i] = weight.at<Value>(j + i);
    return source;
  };
  const int64_t ahead = N * weight.stride[0];
  if (weight.dtype == kF32)
    return panel_direct<FloatLanes>(x, pitch, rows, d, sums, fill(FloatSource<FloatLanes, float>{}), ahead);
  if (weight.dtype == kBF16)
    return panel_direct<Lanes<X>>(x, pitch, rows, d, sums, fill(FloatSource<Lanes<X>, bf16>{}), ahead);
  if (weight.dtype == kI8) return panel_decoded<Lanes<X>>(x, pitch, rows, d, sums, fill(I8Source<Lanes<X>>{}), ahead);
  using Narrow = E4m3Lanes<X>;
  E4m3Source<Narrow> source = fill(E4m3Source<Narrow>{});
  source.scales = scale.at<const uint8_t>(j / kScaleBlock);
  const int64_t blocks = (d + kScaleBlock - 1) / kScaleBlock;
  if (Narrow::kStep == W || std::all_of(source.scales, source.scales + blocks, e8m0_is_moderate))
    return panel_decoded<Narrow>(x, pitch, rows, d, sums, source, ahead);
  // Exponents that bf16 products would flush, and NaN.
  E4m3Source<FloatLanes> wide = fill(E4m3Source<FloatLanes>{});
  wide.scales = source.scales;
  panel_decoded<FloatLanes>(x, pitch, rows, d, sums, wide, ahead);
}

// y[row*N + i] = x . weight row j + i.
template <class X>
void panel_products(const X* x, int64_t pitch, int64_t rows, int64_t d, float* y, const TensorView& weight,
                    const TensorView& scale, int64_t j) {
  auto by_short_rows = [&](auto source) {
    using Value = std::remove_const_t<std::remove_reference_t<decltype(*source.w[0])>>;
    for (int i = 0; i < N; ++i) source.w[i] = weight.at<Value>(j + i);
    for (int64_t r = 0; r < rows; r += 4)
      if (!short_rows(x + r * pitch, pitch, std::min<int64_t>(4, rows - r), source, d, y + r * N)) return false;
    return true;
  };
  if (weight.dtype == kF32 && by_short_rows(FloatSource<FloatLanes, float>{})) return;
  if (weight.dtype == kBF16 && by_short_rows(FloatSource<Lanes<X>, bf16>{})) return;
  vf sums[kMaxRows * N];
  std::fill(sums, sums + rows * N, vf{});
  panel(x, pitch, rows, d, sums, weight, scale, j);
  for (int64_t r = 0; r < rows; ++r) hsum4(sums + r * N, y + r * N);
}

template <class T, class X>
void run(const Params& p, X* x) {
  const int64_t pitch = row_pitch(p), step = block_tokens(p);
  const int64_t weight_bytes = p.d * (p.e_proj.dtype == kF32 ? 4 : p.e_proj.dtype == kBF16 ? 2 : 1);
  for (int64_t t0 = 0; t0 < p.T; t0 += step) {
    const int64_t n = std::min(step, p.T - t0), rows = n * (1 + p.hc);
    norm_rows<T>(p, t0, n, x);
    const int64_t work = 2 * N * weight_bytes + rows * N * p.d / 8;
    parallel(p.d / N, grain_for(work), [&](int64_t begin, int64_t end) {
      for (int64_t j = begin * N; j < end * N; j += N) {
        float y[kMaxRows * N], e_scale[N], h_scale[N];
        panel_products(x, pitch, n, p.d, y, p.e_proj, p.e_proj_scale, j);
        panel_products(x + n * pitch, pitch, n * p.hc, p.d, y + n * N, p.h_proj, p.h_proj_scale, j);
        for (int i = 0; i < N; ++i) {
          const bool scaled = p.e_proj.dtype == kI8;
          e_scale[i] = scaled ? *p.e_proj_scale.at<const float>(j + i) : 1.0f;
          h_scale[i] = scaled ? *p.h_proj_scale.at<const float>(j + i) : 1.0f;
        }
        for (int64_t t = 0; t < n; ++t)
          for (int64_t s = 0; s < p.hc; ++s) {
            const float *e = y + t * N, *h = y + (n + t * p.hc + s) * N;
            T* out = p.out.at<T>(t0 + t, s) + j;
            for (int i = 0; i < N; ++i) out[i] = from_float<T>(e[i] * e_scale[i] + h[i] * h_scale[i]);
          }
      }
    });
  }
}

int32_t launch(const Params& p, const Launch& l) {
  if (p.embeds.dtype == kF32) run<float>(p, static_cast<float*>(l.workspace));
  else run<bf16>(p, static_cast<NarrowRow*>(l.workspace));
  return DSV4_OK;
}

}  // namespace
DSV4_CPU_KERNEL_WITH_WORKSPACE(nextn_fuse_hidden, Params, launch, workspace_size)
}  // namespace dsv4::cpu
