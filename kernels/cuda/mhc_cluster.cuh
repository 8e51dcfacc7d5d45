// SPDX-License-Identifier: Apache-2.0
// mhc_pre, mhc_post_pre and mhc_head in one launch, on clusters of blocks (sm_90 and newer): bf16, four streams, d up
// to 4096. The two launches of mhc_project.cuh and mhc_finish.cuh are for the rest.
//
// The blocks of a cluster share the channels of a tile of tokens, two coarse slices each, and keep their part of fn
// in shared memory. A thread holds all streams of its channels in registers from the product up to y: a row is
// read once, and no sum leaves the cluster. Of a token, some block adds the slices' sums out of the others' shared
// memory; it gives the weights of y, and the norm goes the same way once more. Post and comb of a block's tokens
// wait until they fill a warp. Sums have the order of the two launches, bit for bit, and the norm one that d
// fixes: neither the size of the tile nor that of the cluster changes a bit.
#pragma once
#include "cluster.cuh"
#include "mhc_finish.cuh"

namespace dsv4::cuda::mhc {

constexpr int kOfBlock = 2;          // coarse slices of a block
constexpr int kMostTokens = 32;      // of a tile
constexpr unsigned kMostBlocks = 16;  // of a cluster
constexpr int kMostChannels = kMostBlocks * kOfBlock * kCoarse * kUnit;
constexpr int kSubtiles = kMostTokens / kTile;
constexpr int kMostGroups = kMostBlocks * kOfBlock / kGroup;

// Shared memory of a block, in floats after the fragments of fn. Its size does not depend on the call.
template <int HC, int COLUMNS>
struct ClusterShape : ProjectShape<HC, COLUMNS, kCoarse> {
  using S = ProjectShape<HC, COLUMNS, kCoarse>;
  static constexpr int kThreads = kOfBlock * kCoarse * kWarp;
  static constexpr int kSlot = kSlotOf<COLUMNS>;
  static constexpr int kTokenPitch = COLUMNS + 1;                       // odd: a warp's tokens meet all banks
  static constexpr int kOut = HC + HC * HC;
  static constexpr int kUnitSums = kCoarse * kTile * S::kPitch;         // of a slice and a subtile
  static constexpr int kSums = kSubtiles * kOfBlock * kUnitSums;
  static constexpr int kPartial = kOfBlock * kMostTokens * kSlot;       // [slice][token][slot]
  static constexpr int kWeights = kMostTokens * HC;                     // [token of this block][stream]
  static constexpr int kScratch = kMostTokens * kMostGroups * kSlot;    // [token][group][slot]
  static constexpr int kTotals = kMostTokens * kTokenPitch;             // of tokens whose coefficients wait
  static constexpr int kCoefficients = kMostTokens * (kOut + 1);
  static constexpr int kSquares = kOfBlock * (kCoarse + 1) * kMostTokens;  // of y: [unit][token], [slice][token]
  static constexpr size_t kSmem = kOfBlock * S::kFragments * sizeof(uint2) + kMostTokens * sizeof(int64_t) +
      (kSums + kPartial + kWeights + kScratch + kTotals + kCoefficients + kSquares + S::kMix) * sizeof(float);
};

// The sum of the cluster's slices of group `group`, in order: of what stands at `mine` in a block's first slice, and
// `slice_size` further in its second.
DSV4_DEVICE float group_of_cluster(const float* mine, int slice_size, int group, int slices) {
  float part[kGroup];
#pragma unroll
  for (int i = 0; i < kGroup; ++i) {
    const int slice = group * kGroup + i;
    part[i] = slice < slices ? cluster_load(mine + slice % kOfBlock * slice_size, slice / kOfBlock) : 0.f;
  }
  float sum = part[0];
#pragma unroll
  for (int i = 1; i < kGroup; ++i) sum += part[i];
  return sum;
}
DSV4_DEVICE float in_order(const float* groups, int stride, int count) {
  float sum = 0;
  for (int group = 0; group < count; ++group) sum += groups[group * stride];
  return sum;
}

// post and comb of the `count` tokens that wait, by the first warp.
template <int HC, int COLUMNS>
DSV4_DEVICE void write_coefficients(float* out, const float* totals, const int64_t* tokens, int count,
                                    const Finish& v) {
  using S = ClusterShape<HC, COLUMNS>;
  const int lane = threadIdx.x;
  if (lane < count) coefficients_of<HC>(out + lane * (S::kOut + 1), totals + lane * S::kTokenPitch, v);
  __syncwarp();
  for (int i = lane; i < count * S::kOut; i += kWarp) {
    const int token = i / S::kOut, e = i % S::kOut, c = e - HC;
    const float value = out[token * (S::kOut + 1) + e];
    if (e < HC) v.post[tokens[token] * v.post_t + e] = value;
    else v.comb[tokens[token] * v.comb_t + c / HC * v.comb_i + c % HC] = value;
  }
  __syncwarp();
}

// Cluster i: tokens `tile` i, `tile` (i + clusters), ... of the call; `tile` is 8, 16 or 32.
template <int HC, int COLUMNS, bool MIX>
__global__ void __launch_bounds__(ClusterShape<HC, COLUMNS>::kThreads, 1) mhc_cluster(Rows v, Finish e, int tile) {
#if DSV4_CLUSTERS
  using S = ClusterShape<HC, COLUMNS>;
  constexpr bool kHead = COLUMNS == HC;
  DYN_SMEM(uint2, fragments);
  int64_t* waiting = reinterpret_cast<int64_t*>(fragments + kOfBlock * S::S::kFragments);  // tokens of `totals`
  float* all_sums = reinterpret_cast<float*>(waiting + kMostTokens);
  float* partial = all_sums + S::kSums;
  float* weights = partial + S::kPartial;
  float* scratch = weights + S::kWeights;
  float* totals = scratch + S::kScratch;
  float* out = totals + S::kTotals;
  float* unit_squares = out + S::kCoefficients;
  float* slice_squares = unit_squares + kOfBlock * kCoarse * kMostTokens;
  float* mix = unit_squares + S::kSquares;

  const int rank = static_cast<int>(cluster_rank()), blocks = static_cast<int>(cluster_size());
  const int warp = threadIdx.x / kWarp, lane = threadIdx.x % kWarp, g = lane / 4, q = lane % 4;
  const int slice = warp / kCoarse, unit = warp % kCoarse;
  const int64_t c0 = static_cast<int64_t>(rank) * kOfBlock * kCoarse * kUnit, channel = c0 + warp * kUnit + q * 8;
  const int64_t stride = static_cast<int64_t>(gridDim.x / blocks) * tile;
  int64_t token0 = static_cast<int64_t>(blockIdx.x / blocks) * tile;
  int waits = 0;  // tokens of this block whose totals wait; the same in all threads
  bf16* y_out = static_cast<bf16*>(e.y);

  ProjectLoad<HC> in[kSubtiles], next[kSubtiles];
  const auto load_tile = [&](int64_t first) {
    const int64_t end = min(v.tokens, first + tile);
#pragma unroll
    for (int sub = 0; sub < kSubtiles; ++sub)
      load_tokens<HC, MIX>(next[sub], v, first + sub * kTile + g, end, channel);
  };
  load_tile(token0);
#pragma unroll 1
  for (int s = 0; s < kOfBlock; ++s)
    stage_fn<HC, COLUMNS, kCoarse>(fragments + s * S::S::kFragments, v, c0 + s * kCoarse * kUnit);
  if constexpr (MIX) stage_mix<HC>(mix, v, token0);
  __syncthreads();
  const uint2* mine = fragments + warp * S::kSteps * S::kHalves * kWarp;

  for (; token0 < v.tokens; token0 += stride) {  // uniform in the cluster
    const int count = static_cast<int>(min(static_cast<int64_t>(tile), v.tokens - token0));
#pragma unroll
    for (int sub = 0; sub < kSubtiles; ++sub) {
      in[sub] = next[sub];
      if (sub * kTile < count)
        project_tile<HC, COLUMNS, kCoarse, MIX>(
            in[sub], v, mine, mix + sub * kTile * S::S::kCoefficients,
            all_sums + (sub * kOfBlock + slice) * S::kUnitSums + unit * kTile * S::kPitch, token0 + sub * kTile,
            count - sub * kTile, channel);
    }
    load_tile(token0 + stride);  // in flight until the next turn
    __syncthreads();
    for (int i = threadIdx.x; i < kOfBlock * count * S::kSlot; i += S::kThreads) {
      const int c = i % S::kSlot, token = i / S::kSlot % count, s = i / S::kSlot / count;
      const float* row = all_sums + (token / kTile * kOfBlock + s) * S::kUnitSums + token % kTile * S::kPitch;
      partial[(s * kMostTokens + token) * S::kSlot + c] = slice_sum<COLUMNS, kCoarse, S::kPitch>(row, c);
    }
    cluster_sync();

    // Token i is that of block i % blocks: it adds the slices, and finds the weights of y.
    const int owned = rank < count ? (count - rank + blocks - 1) / blocks : 0;
    for (int i = threadIdx.x; i < owned * e.groups * S::kSlot; i += S::kThreads) {
      const int c = i % S::kSlot, group = i / S::kSlot % e.groups, token = i / S::kSlot / e.groups * blocks + rank;
      if (c <= COLUMNS)
        scratch[i] = group_of_cluster(partial + token * S::kSlot + c, kMostTokens * S::kSlot, group, e.slices);
    }
    __syncthreads();
    for (int i = threadIdx.x; i < owned * S::kSlot; i += S::kThreads) {
      const int c = i % S::kSlot, token = i / S::kSlot;
      const float* sums = scratch + token * e.groups * S::kSlot;
      if (c >= 1 && c <= HC) {
        const float r = inverse_rms(in_order(sums, S::kSlot, e.groups), HC * v.d, e.rms_eps);
        const float logit = in_order(sums + c, S::kSlot, e.groups) * r * e.scale[0] + e.base[c - 1];
        weights[token * HC + c - 1] = sigmoid(logit) + e.hc_eps;
      }
      if constexpr (!kHead) {
        if (c <= COLUMNS) totals[(waits + token) * S::kTokenPitch + c] = in_order(sums + c, S::kSlot, e.groups);
        if (c == 0) waiting[waits + token] = token0 + token * blocks + rank;
      }
    }
    waits += owned;
    cluster_sync();

    Raw8<bf16> y[kSubtiles][2];
#pragma unroll
    for (int sub = 0; sub < kSubtiles; ++sub)
#pragma unroll
      for (int n = 0; n < 2; ++n) {
        const int token = sub * kTile + 8 * n + g;
        float squares = 0;
        if (token < count && channel < v.d) {
          const float4 w =
              cluster_load(reinterpret_cast<const float4*>(weights) + token / blocks, token % blocks);
          const float of_stream[4] = {w.x, w.y, w.z, w.w};
          Streams<bf16, HC> x;
#pragma unroll
          for (int s = 0; s < HC; ++s) x.x[s] = in[sub].x[n][s];
          join<bf16, HC>(y[sub][n], x, of_stream, squares);
        }
        if (e.norm) {
          squares += __shfl_xor_sync(kAllLanes, squares, 1);
          squares += __shfl_xor_sync(kAllLanes, squares, 2);
          if (q == 0) unit_squares[warp * kMostTokens + token] = squares;
        }
      }
    if constexpr (MIX) stage_mix<HC>(mix, v, token0 + stride);
    if (e.norm) {
      __syncthreads();
      for (int i = threadIdx.x; i < kOfBlock * kMostTokens; i += S::kThreads) {
        const float* of = unit_squares + i / kMostTokens * kCoarse * kMostTokens + i % kMostTokens;
        slice_squares[i] = (of[0] + of[kMostTokens]) + (of[2 * kMostTokens] + of[3 * kMostTokens]);
      }
      cluster_sync();
      for (int i = threadIdx.x; i < count * e.groups; i += S::kThreads)
        scratch[i] = group_of_cluster(slice_squares + i / e.groups, kMostTokens, i % e.groups, e.slices);
    }
    __syncthreads();  // `mix` too
#pragma unroll
    for (int sub = 0; sub < kSubtiles; ++sub)
#pragma unroll
      for (int n = 0; n < 2; ++n) {
        const int token = sub * kTile + 8 * n + g;
        if (token >= count || channel >= v.d) continue;
        if (e.norm) {
          const float r = inverse_rms(in_order(scratch + token * e.groups, 1, e.groups), v.d, e.rms_eps);
          scale_channels(y[sub][n], r, channel, e);
        }
        store_raw(y_out + (token0 + token) * e.y_t + channel, y[sub][n], e.vector);
      }
    if constexpr (!kHead) {  // before the next tile's might not fit
      if (waits + (tile + blocks - 1) / blocks > kMostTokens || token0 + stride >= v.tokens) {
        if (warp == 0) write_coefficients<HC, COLUMNS>(out, totals, waiting, waits, e);
        waits = 0;
      }
    }
  }
  cluster_sync();  // others may still read what this block has
#else
  __trap();
#endif
}

}  // namespace dsv4::cuda::mhc
