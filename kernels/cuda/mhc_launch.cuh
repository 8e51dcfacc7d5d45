// SPDX-License-Identifier: Apache-2.0
// The host side that mhc_pre, mhc_post_pre and mhc_head share: one launch on clusters where the device has them and
// the call fits them, whatever the number of tokens. Else two launches for up to 4096 tokens, more in turns: the
// partial sums then stay within a bounded workspace.
#pragma once
#include <algorithm>

#include "mhc_cluster.cuh"
#include "mhc_finish.cuh"
#include "mhc_project_f32.cuh"

namespace dsv4::cuda::mhc {

constexpr int64_t kTurn = 4096;       // tokens of a pair of launches
constexpr int64_t kFineTokens = 64;   // up to here blocks take fine slices
constexpr int64_t kBlocks = 264;      // two on each multiprocessor of an H200

// Only hc = 4 comes in coarse slices.
inline bool fine_slices(bool bf16_streams, int64_t tokens, int64_t hc) {
  return !bf16_streams || hc < 4 || tokens <= kFineTokens;
}
inline int64_t slices_of(bool fine, int64_t d) { return ceil_div<int64_t>(d, (fine ? kFine : kCoarse) * kUnit); }

template <class P>
inline uint64_t workspace_bytes(const P& p, int columns) {
  const int64_t tokens = std::min(p.T, kTurn);
  const bool fine = fine_slices(p.residual.dtype == kBF16, tokens, p.hc);
  return static_cast<uint64_t>(tokens) * slices_of(fine, p.d) * slot_size(columns) * sizeof(float);
}

// Blocks along the tokens: as many as have work and as run at once.
inline unsigned token_blocks(int64_t tokens, int64_t each, int64_t slices, int64_t at_once) {
  return static_cast<unsigned>(std::min(ceil_div(tokens, each), std::max<int64_t>(1, at_once / slices)));
}

template <int HC, int COLUMNS, int UNITS, bool MIX>
inline cudaError_t project_bf16(const Rows& v, cudaStream_t stream) {
  using S = ProjectShape<HC, COLUMNS, UNITS>;
  const int64_t slices = slices_of(UNITS == kFine, v.d), at_once = UNITS == kFine ? 2 * kBlocks : kBlocks;
  const dim3 grid(static_cast<unsigned>(slices), token_blocks(v.tokens, kTiles * kTile, slices, at_once));
  return launch(&mhc_project_bf16<HC, COLUMNS, UNITS, MIX>, grid, S::kThreads, S::smem(MIX), stream, v);
}
template <int HC, int COLUMNS, bool MIX>
inline cudaError_t project(const Rows& v, bool bf16_streams, cudaStream_t stream) {
  if (bf16_streams) {
    if constexpr (HC == 4)
      if (!fine_slices(true, v.tokens, HC)) return project_bf16<HC, COLUMNS, kCoarse, MIX>(v, stream);
    return project_bf16<HC, COLUMNS, kFine, MIX>(v, stream);
  }
  using S = PlainShape<HC, COLUMNS>;
  const int64_t slices = slices_of(true, v.d);
  const dim3 grid(static_cast<unsigned>(slices), token_blocks(v.tokens, kTile, slices, 2 * kBlocks));
  return launch(&mhc_project_f32<HC, COLUMNS, MIX>, grid, S::kThreads, S::kSmem, stream, v);
}

template <int HC, bool HEAD>
inline cudaError_t finish(const Finish& v, bool bf16_streams, cudaStream_t stream) {
  constexpr int kSlot = HEAD ? 0 : slot_size((2 + HC) * HC), kOut = HEAD ? 0 : HC + HC * HC;
  const int64_t warps = std::min<int64_t>(kMaxThreads / kWarp, ceil_div<int64_t>(v.d, 8 * kEach * kWarp));
  const int threads = static_cast<int>(warps) * kWarp;
  const int join_floats = v.groups * 8 + 4 + threads / kWarp;
  const int coefficient_floats = kTokens * ((v.groups + 1) * kSlot + kOut);
  auto* kernel = bf16_streams ? &mhc_finish<bf16, HC, HEAD> : &mhc_finish<float, HC, HEAD>;
  return launch(kernel, static_cast<unsigned>(v.blocks + v.tokens), threads,
                std::max(join_floats, coefficient_floats) * sizeof(float), stream, v);
}

// Blocks of a cluster: as many as d has slices for.
inline unsigned cluster_blocks(int64_t d, bool wide) {
  unsigned blocks = 1;
  while (blocks * kSlicesOf(wide) < slices_of(false, d)) blocks *= 2;
  return blocks;
}

// All tokens in one launch; false if the device has no such clusters. Up to 16 tokens are one tile, so that fn is read
// once; more spread over the clusters.
template <int HC, int COLUMNS, bool MIX, bool WIDE>
inline bool run_on_clusters(const Rows& rows, const Finish& ends, cudaStream_t stream, cudaError_t& error) {
  using S = ClusterShape<HC, COLUMNS, WIDE>;
  static KnownClusters known;
  const auto kernel = &mhc_cluster<HC, COLUMNS, MIX, WIDE>;
  const unsigned blocks = cluster_blocks(rows.d, WIDE);
  const int clusters = clusters_at_once(known, reinterpret_cast<const void*>(kernel), blocks, S::kThreads, S::kSmem);
  if (!clusters) return false;
  const int64_t each = std::max(ceil_div<int64_t>(rows.tokens, clusters), std::min<int64_t>(rows.tokens, kTile));
  const int64_t tile = each <= 8 ? 8 : each <= 16 ? 16 : S::kMostTokens;
  const int64_t used = std::min<int64_t>(clusters, ceil_div(rows.tokens, tile));
  error = launch_clusters(kernel, blocks, static_cast<unsigned>(used * blocks), S::kThreads, S::kSmem, stream, rows, ends,
                          static_cast<int>(tile));
  return true;
}

// Both launches `rows` and `ends` are filled but for the tokens, `partial` and the slices.
template <int HC, int COLUMNS, bool MIX>
inline cudaError_t run_in_two(Rows rows, Finish ends, int64_t T, bool bf16_streams, const Launch& l) {
  constexpr bool kHead = COLUMNS == HC;
  rows.partial = static_cast<float*>(l.workspace);
  ends.partial = rows.partial;
  cudaError_t e = cudaSuccess;
  for (int64_t t = 0; t < T && e == cudaSuccess; t += kTurn) {
    rows.first = ends.first = t;
    rows.tokens = ends.tokens = std::min(T - t, kTurn);
    ends.fine = fine_slices(bf16_streams, rows.tokens, HC);
    ends.slices = static_cast<int>(slices_of(ends.fine, rows.d));
    ends.groups = static_cast<int>(ceil_div<int64_t>(slices_of(false, rows.d), kGroup));
    ends.blocks = kHead ? 0 : ceil_div<int64_t>(ends.tokens, kTokens);
    e = project<HC, COLUMNS, MIX>(rows, bf16_streams, stream_of(l));
    if (e == cudaSuccess) e = finish<HC, kHead>(ends, bf16_streams, stream_of(l));
  }
  return e;
}

// All tokens. `rows` and `ends` are filled but for the tokens, `partial` and the slices.
template <int HC, int COLUMNS, bool MIX>
inline cudaError_t run(Rows rows, Finish ends, int64_t T, bool bf16_streams, const Launch& l) {
  if constexpr (HC == 4) {
    if (bf16_streams && T > 0 && rows.d <= kMostChannels(true)) {
      rows.tokens = ends.tokens = T;
      ends.slices = static_cast<int>(slices_of(false, rows.d));
      ends.groups = static_cast<int>(ceil_div<int64_t>(ends.slices, kGroup));
      cudaError_t e = cudaSuccess;
      const bool wide = rows.d > kMostChannels(false);
      if (wide ? run_on_clusters<HC, COLUMNS, MIX, true>(rows, ends, stream_of(l), e)
               : run_on_clusters<HC, COLUMNS, MIX, false>(rows, ends, stream_of(l), e))
        return e;
    }
  }
  return run_in_two<HC, COLUMNS, MIX>(rows, ends, T, bf16_streams, l);
}

// What the three ops have alike. `residual`: the streams that are projected and joined.
template <class P>
inline Rows rows_of(const P& p, const TensorView& residual, size_t size) {
  Rows v{};
  v.residual = residual.data, v.residual_t = residual.stride[0], v.residual_i = residual.stride[1];
  v.fn = p.fn.template at<float>(), v.fn_row = p.fn.stride[0];
  v.d = p.d;
  v.vector = aligned16(residual, size), v.fn_vector = aligned16(p.fn, sizeof(float));
  return v;
}
template <class P>
inline Finish finish_of(const P& p, const TensorView& residual, const TensorView& y, size_t size) {
  Finish v{};
  v.residual = residual.data, v.residual_t = residual.stride[0], v.residual_i = residual.stride[1];
  v.base = p.base.template at<float>(), v.scale = p.scale.template at<float>();
  v.y = y.data, v.y_t = y.stride[0];
  v.d = p.d;
  v.rms_eps = static_cast<float>(p.rms_eps), v.hc_eps = static_cast<float>(p.hc_eps);
  v.vector = aligned16(residual, size) && aligned16(y, size);
  if (p.norm_weight) {
    v.norm = p.norm_weight.data, v.norm_bf16 = p.norm_weight.dtype == kBF16;
    v.norm_vector = aligned16(p.norm_weight, v.norm_bf16 ? sizeof(bf16) : sizeof(float));
  }
  return v;
}
inline void set_coefficients(Finish& v, const TensorView& post, const TensorView& comb, int64_t iters) {
  v.post = post.at<float>(), v.post_t = post.stride[0];
  v.comb = comb.at<float>(), v.comb_t = comb.stride[0], v.comb_i = comb.stride[1];
  v.iters = static_cast<int>(iters);
}
inline size_t stream_size(const TensorView& residual) {
  return residual.dtype == kBF16 ? sizeof(bf16) : sizeof(float);
}

}  // namespace dsv4::cuda::mhc
