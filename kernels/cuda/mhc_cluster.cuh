// SPDX-License-Identifier: Apache-2.0
// mhc_pre, mhc_post_pre and mhc_head in one launch, on clusters of blocks (sm_90 and newer): bf16, four streams, d up
// to 8192. The two launches of mhc_project.cuh and mhc_finish.cuh are for the rest.
//
// The blocks of a cluster share the channels of a tile of tokens and keep their part of fn in shared memory: two coarse
// slices each, cut in three (mhc_fragments.cuh); with WIDE four, uncut (mhc_wide.cuh). A thread holds all streams of its
// channels in registers from the product up to y, of two subtiles of 16 tokens or, WIDE, of two units of 16: a row is
// read once, and no sum leaves the cluster. Of a token, some block adds the slices' sums out of the others' shared
// memory; it gives the weights of y, and the norm goes the same way once more. Post and comb of a block's tokens
// wait until they fill a warp. Sums have the order of the two launches, bit for bit, and the norm one that d
// fixes: neither the size of the tile nor that of the cluster changes a bit.
#pragma once
#include "cluster.cuh"
#include "mhc_finish.cuh"
#include "mhc_wide.cuh"

namespace dsv4::cuda::mhc {

constexpr unsigned kMostBlocks = 16;  // of a cluster
constexpr int kSlicesOf(bool wide) { return wide ? 4 : 2; }  // coarse slices of a block
constexpr int kMostChannels(bool wide) { return kMostBlocks * kSlicesOf(wide) * kCoarse * kUnit; }
constexpr int kWaiting = kWarp;       // tokens whose coefficients may wait
constexpr int kHeld = 2;              // subtiles or units of a thread

// Shared memory of a block, in floats after fn. Its size does not depend on the call.
template <int HC, int COLUMNS, bool WIDE>
struct ClusterShape : ProjectShape<HC, COLUMNS, kCoarse> {
  using S = ProjectShape<HC, COLUMNS, kCoarse>;
  static constexpr int kSlices = kSlicesOf(WIDE);
  static constexpr int kWarps = WIDE ? kCoarse / kPair : kCoarse;       // of a slice
  static constexpr int kThreads = kSlices * kWarps * kWarp;
  static constexpr int kMostTokens = (WIDE ? 1 : kHeld) * kTile;        // of a tile
  static constexpr int kMostGroups = kMostBlocks * kSlices / kGroup;
  // Tokens of a tile that are one block's. Wide models make clusters of 16 blocks.
  static constexpr int kMostOwned = WIDE ? kMostTokens / kMostBlocks : kMostTokens;
  static constexpr int kSlot = kSlotOf<COLUMNS>;
  static constexpr int kTokenPitch = COLUMNS + 1;                       // odd: a warp's tokens meet all banks
  static constexpr int kOut = HC + HC * HC;
  static constexpr int kSliceSums = kWarps * kTile * S::kPitch;         // of a slice and a subtile
  static constexpr int kSums = kMostTokens / kTile * kSlices * kSliceSums;
  static constexpr int kPartial = kSlices * kMostTokens * kSlot;        // [slice][token][slot]
  static constexpr int kWeights = kMostTokens * HC;                     // [token of this block][stream]
  // [token of this block][group][slot], and for the norm [token][group]
  static constexpr int kScratch = (kMostOwned * kSlot > kMostTokens ? kMostOwned * kSlot : kMostTokens) * kMostGroups;
  static constexpr int kTotals = kWaiting * kTokenPitch;                // of tokens whose coefficients wait
  static constexpr int kCoefficients = kWaiting * (kOut + 1);
  static constexpr int kSquares = kSlices * (kWarps + 1) * kMostTokens;  // of y: [warp][token], [slice][token]
  static constexpr size_t kFn = WIDE ? kSlices * kWarps * kUncut<HC, COLUMNS> * sizeof(float)
                                     : kSlices * S::kFragments * sizeof(uint2);
  static constexpr size_t kSmem = kFn + kWaiting * sizeof(int64_t) +
      (kSums + kPartial + kWeights + kScratch + kTotals + kCoefficients + kSquares + S::kMix) * sizeof(float);
};

// The sum of the cluster's slices of group `group`, in order: of what stands at `mine` in a block's first slice, and
// `slice_size` further in the next.
template <int SLICES>
DSV4_DEVICE float group_of_cluster(const float* mine, int slice_size, int group, int slices) {
  float part[kGroup];
#pragma unroll
  for (int i = 0; i < kGroup; ++i) {
    const int slice = group * kGroup + i;
    part[i] = slice < slices ? cluster_load(mine + slice % SLICES * slice_size, slice / SLICES) : 0.f;
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
  using S = ClusterShape<HC, COLUMNS, false>;
  const int lane = threadIdx.x;
  if (lane < count) coefficients_of<HC>(out + lane * (S::kOut + 1), totals + lane * S::kTokenPitch, v);
  __syncwarp();
#pragma unroll 1
  for (int i = lane; i < count * S::kOut; i += kWarp) {
    const int token = i / S::kOut, e = i % S::kOut, c = e - HC;
    const float value = out[token * (S::kOut + 1) + e];
    if (e < HC) v.post[tokens[token] * v.post_t + e] = value;
    else v.comb[tokens[token] * v.comb_t + c / HC * v.comb_i + c % HC] = value;
  }
  __syncwarp();
}

// Cluster i: tokens `tile` i, `tile` (i + clusters), ... of the call; `tile` is 8, 16 or 32 (WIDE: at most 16).
template <int HC, int COLUMNS, bool MIX, bool WIDE>
__global__ void __launch_bounds__(ClusterShape<HC, COLUMNS, WIDE>::kThreads, 1) mhc_cluster(Rows v, Finish e, int tile) {
#if DSV4_CLUSTERS
  using S = ClusterShape<HC, COLUMNS, WIDE>;
  constexpr bool kHead = COLUMNS == HC;
  DYN_SMEM(unsigned char, fn);
  int64_t* waiting = reinterpret_cast<int64_t*>(fn + S::kFn);  // tokens of `totals`
  float* all_sums = reinterpret_cast<float*>(waiting + kWaiting);
  float* partial = all_sums + S::kSums;
  float* weights = partial + S::kPartial;
  float* scratch = weights + S::kWeights;
  float* totals = scratch + S::kScratch;
  float* out = totals + S::kTotals;
  float* warp_squares = out + S::kCoefficients;
  float* slice_squares = warp_squares + S::kSlices * S::kWarps * S::kMostTokens;
  float* mix = warp_squares + S::kSquares;

  const int rank = static_cast<int>(cluster_rank()), blocks = static_cast<int>(cluster_size());
  const int warp = threadIdx.x / kWarp, lane = threadIdx.x % kWarp, g = lane / 4, q = lane % 4;
  const int slice = warp / S::kWarps;
  const int64_t c0 = static_cast<int64_t>(rank) * S::kSlices * kCoarse * kUnit;
  const int64_t channel0 = c0 + warp * kUnit * (WIDE ? kPair : 1), channel = channel0 + q * 8;
  // Of what a thread holds: its first token in the tile, and its channels.
  const auto token_of = [](int held) { return WIDE ? 0 : held * kTile; };
  const auto channel_of = [&](int held) { return WIDE ? channel + held * kUnit : channel; };
  const int64_t stride = static_cast<int64_t>(gridDim.x / blocks) * tile;
  int64_t token0 = static_cast<int64_t>(blockIdx.x / blocks) * tile;
  int waits = 0;  // tokens of this block whose totals wait; the same in all threads
  bf16* y_out = static_cast<bf16*>(e.y);

  ProjectLoad<HC> in[kHeld], next[kHeld];  // WIDE has no registers for `next`: `in` is loaded as soon as it is free
  const auto load_tile = [&](ProjectLoad<HC> (&to)[kHeld], int64_t first) {
    const int64_t end = min(v.tokens, first + tile);
#pragma unroll
    for (int held = 0; held < kHeld; ++held)
      load_tokens<HC, MIX>(to[held], v, first + token_of(held) + g, end, channel_of(held));
  };
  load_tile(WIDE ? in : next, token0);
  if constexpr (WIDE) {
    stage_uncut<HC, COLUMNS>(reinterpret_cast<float*>(fn) + warp * kUncut<HC, COLUMNS>, v, channel0);
  } else {
#pragma unroll 1
    for (int s = 0; s < S::kSlices; ++s)
      stage_fn<HC, COLUMNS, kCoarse>(reinterpret_cast<uint2*>(fn) + s * S::S::kFragments, v, c0 + s * kCoarse * kUnit);
  }
  if constexpr (MIX) stage_mix<HC>(mix, v, token0);
  __syncthreads();

  for (; token0 < v.tokens; token0 += stride) {  // uniform in the cluster
    const int count = static_cast<int>(min(static_cast<int64_t>(tile), v.tokens - token0));
    float* sums = all_sums + slice * S::kSliceSums + warp % S::kWarps * kTile * S::kPitch;
    if constexpr (WIDE) {
      project_pair<HC, COLUMNS, MIX>(in, v, reinterpret_cast<const float*>(fn) + warp * kUncut<HC, COLUMNS>, mix, sums,
                                     token0, count, channel);
    } else {
      const uint2* mine = reinterpret_cast<const uint2*>(fn) + warp * S::kSteps * S::kHalves * kWarp;
#pragma unroll
      for (int sub = 0; sub < kHeld; ++sub) {
        in[sub] = next[sub];
        if (sub * kTile < count)
          project_tile<HC, COLUMNS, kCoarse, MIX>(in[sub], v, mine, mix + sub * kTile * S::S::kCoefficients,
                                                  sums + sub * S::kSlices * S::kSliceSums, token0 + sub * kTile,
                                                  count - sub * kTile, channel);
      }
      load_tile(next, token0 + stride);  // in flight until the next turn
    }
    __syncthreads();
    for (int i = threadIdx.x; i < S::kSlices * count * S::kSlot; i += S::kThreads) {
      const int c = i % S::kSlot, token = i / S::kSlot % count, s = i / S::kSlot / count;
      const float* row = all_sums + (token / kTile * S::kSlices + s) * S::kSliceSums + token % kTile * S::kPitch;
      partial[(s * S::kMostTokens + token) * S::kSlot + c] = slice_sum<COLUMNS, S::kWarps, S::kPitch>(row, c);
    }
    cluster_sync();

    // Token i is that of block i % blocks: it adds the slices, and finds the weights of y.
    const int owned = rank < count ? (count - rank + blocks - 1) / blocks : 0;
#pragma unroll 1
    for (int i = threadIdx.x; i < owned * e.groups * S::kSlot; i += S::kThreads) {
      const int c = i % S::kSlot, group = i / S::kSlot % e.groups, token = i / S::kSlot / e.groups * blocks + rank;
      if (c <= COLUMNS)
        scratch[i] = group_of_cluster<S::kSlices>(partial + token * S::kSlot + c, S::kMostTokens * S::kSlot, group,
                                                  e.slices);
    }
    __syncthreads();
#pragma unroll 1
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

    Raw8<bf16> y[kHeld][2];
    float of_first[2] = {};  // WIDE: squares of the warp's first unit
#pragma unroll
    for (int held = 0; held < kHeld; ++held)
#pragma unroll
      for (int n = 0; n < 2; ++n) {
        const int token = token_of(held) + 8 * n + g;
        float squares = 0;
        if (token < count && channel_of(held) < v.d) {
          const float4 w =
              cluster_load(reinterpret_cast<const float4*>(weights) + token / blocks, token % blocks);
          const float of_stream[4] = {w.x, w.y, w.z, w.w};
          Streams<bf16, HC> x;
#pragma unroll
          for (int s = 0; s < HC; ++s) x.x[s] = in[held].x[n][s];
          join<bf16, HC>(y[held][n], x, of_stream, squares);
        }
        if (e.norm) {
          squares += __shfl_xor_sync(kAllLanes, squares, 1);
          squares += __shfl_xor_sync(kAllLanes, squares, 2);
          if (WIDE && held == 0) of_first[n] = squares;
          else if (q == 0) warp_squares[warp * S::kMostTokens + token] = WIDE ? of_first[n] + squares : squares;
        }
      }
    if constexpr (WIDE) load_tile(in, token0 + stride);
    if constexpr (MIX) stage_mix<HC>(mix, v, token0 + stride);
    if (e.norm) {
      __syncthreads();
#pragma unroll 1
      for (int i = threadIdx.x; i < S::kSlices * S::kMostTokens; i += S::kThreads) {
        const float* of = warp_squares + i / S::kMostTokens * S::kWarps * S::kMostTokens + i % S::kMostTokens;
        float sum = of[0] + of[S::kMostTokens];
        if constexpr (!WIDE) sum += of[2 * S::kMostTokens] + of[3 * S::kMostTokens];
        slice_squares[i] = sum;
      }
      cluster_sync();
#pragma unroll 1
      for (int i = threadIdx.x; i < count * e.groups; i += S::kThreads)
        scratch[i] = group_of_cluster<S::kSlices>(slice_squares + i / e.groups, S::kMostTokens, i % e.groups, e.slices);
    }
    __syncthreads();  // `mix` too
#pragma unroll
    for (int held = 0; held < kHeld; ++held)
#pragma unroll
      for (int n = 0; n < 2; ++n) {
        const int token = token_of(held) + 8 * n + g;
        const int64_t at = channel_of(held);
        if (token >= count || at >= v.d) continue;
        if (e.norm) {
          const float r = inverse_rms(in_order(scratch + token * e.groups, 1, e.groups), v.d, e.rms_eps);
          scale_channels(y[held][n], r, at, e);
        }
        store_raw(y_out + (token0 + token) * e.y_t + at, y[held][n], e.vector);
      }
    if constexpr (!kHead) {  // before the next tile's might not fit
      if (waits + (tile + blocks - 1) / blocks > kWaiting || token0 + stride >= v.tokens) {
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
