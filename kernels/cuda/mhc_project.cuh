// SPDX-License-Identifier: Apache-2.0
// The first of the two launches of mhc_pre, mhc_post_pre and mhc_head: fn . x and the sum of squares of a
// residual row x of hc*d values, as partial sums over slices of its channels. Here bf16 streams, on tensor
// cores; mhc_project_f32.cuh holds the plain form for fp32 streams. With MIX, x is first formed from the
// sub-layer that ends, and written.
//
// A warp takes 32 channels of all hc streams (a unit) of 16 tokens, so that a thread holds all streams of its
// channels and can mix them in registers; its 16-byte loads are the operands of the product as they are. Two
// units make a fine slice, four a coarse one; a block holds a slice of fn in shared memory and walks over
// tokens with it, the loads of the next tokens in flight while it sums. Sums are always taken as (u0 + u1) +
// (u2 + u3), then over coarse slices in the order of mhc_finish.cuh. Whether the blocks are fine (few tokens:
// more blocks) or coarse (many: fewer partial sums) therefore changes no bit, and neither does the number of
// tokens.
#pragma once
#include "mhc_fragments.cuh"

namespace dsv4::cuda::mhc {

template <int HC>
struct ProjectLoad {  // what a thread reads of its two tokens (lane / 4, and 8 further)
  Raw8<bf16> x[2][HC], y[2];
};

// Those before `end`; the others are zeros.
template <int HC, bool MIX>
DSV4_DEVICE void load_tokens(ProjectLoad<HC>& in, const Rows& v, int64_t token, int64_t end, int64_t channel) {
#pragma unroll
  for (int n = 0; n < 2; ++n) {
    const bool there = token + 8 * n < end && channel < v.d;
    const int64_t t = v.first + token + 8 * n;
    const bf16* row = static_cast<const bf16*>(v.residual) + t * v.residual_t + channel;
#pragma unroll
    for (int s = 0; s < HC; ++s) {
      in.x[n][s].v = make_uint4(0, 0, 0, 0);
      if (there) load_raw(in.x[n][s], row + s * v.residual_i, v.vector);
    }
    if constexpr (MIX) {
      in.y[n].v = make_uint4(0, 0, 0, 0);
      if (there) load_raw(in.y[n], static_cast<const bf16*>(v.y) + t * v.y_t + channel, v.vector);
    }
  }
}

// The coefficients of the mix of the block's tokens from `token`, [token][post, comb].
template <int HC>
DSV4_DEVICE void stage_mix(float* coefficients, const Rows& v, int64_t token) {
  constexpr int kEach = HC + HC * HC;
  for (int i = threadIdx.x; i < kTiles * kTile * kEach; i += blockDim.x) {
    const int64_t t = v.first + token + i / kEach;
    const int e = i % kEach, c = e - HC;
    if (t >= v.first + v.tokens) break;
    coefficients[i] = e < HC ? v.post[t * v.post_t + e] : v.comb[t * v.comb_t + c / HC * v.comb_j + c % HC];
  }
}

// Forms the new streams of one token's eight channels in x, and writes them.
template <int HC>
DSV4_DEVICE void mix_token(Raw8<bf16> (&x)[HC], const Raw8<bf16>& y, const float* coefficients, bf16* out,
                           const Rows& v) {
  float sum[HC][8], in[8];
  unpack(in, y);
  mix_open<HC>(sum, coefficients, in);
#pragma unroll
  for (int j = 0; j < HC; ++j) {
    unpack(in, x[j]);
    mix_add<HC>(sum, coefficients + HC + j * HC, in);
  }
#pragma unroll
  for (int i = 0; i < HC; ++i) {
    pack(x[i], sum[i]);
    store_raw(out + i * v.out_i, x[i], v.vector);
  }
}

// With MIX, forms and writes the new streams of a thread's two tokens, of the up to `left` from `token`: they are then
// what `in` holds. Then the sums of squares of its channels. `mix` are the coefficients of the tile's tokens.
template <int HC, bool MIX>
DSV4_DEVICE void open_tile(ProjectLoad<HC>& in, float (&squares)[2], const Rows& v, const float* mix, int64_t token,
                           int64_t left, int64_t channel) {
  const int g = threadIdx.x % kWarp / 4;
#pragma unroll
  for (int n = 0; n < 2; ++n) {
    if constexpr (MIX) {
      if (g + 8 * n < left && channel < v.d)
        mix_token<HC>(in.x[n], in.y[n], mix + (8 * n + g) * (HC + HC * HC),
                      static_cast<bf16*>(v.out) + (v.first + token + 8 * n + g) * v.out_t + channel, v);
    }
#pragma unroll
    for (int s = 0; s < HC; ++s) {
      float x[8];
      unpack(x, in.x[n][s]);
#pragma unroll
      for (int c = 0; c < 8; ++c) squares[n] = fmaf(x[c], x[c], squares[n]);
    }
  }
}

// A thread's sum of column 8 `group` + lane / 4 of token 8n + 2 (lane % 4) + j: in D, rows g and g + 8 are two halves.
template <int GROUPS, int TILES>
DSV4_DEVICE float column_sum(const float (&acc)[2][TILES][4], int n, int group, int j) {
  float part[3];
#pragma unroll
  for (int p = 0; p < 3; ++p) {
    const int half = p * GROUPS + group;
    part[p] = acc[n][half / 2][half % 2 * 2 + j];
  }
  return part[0] + (part[1] + part[2]);
}

// One warp's part of a tile: its unit's sums of the up to `left` tokens from `token`, into `sums` [token][pitch].
// `fragments` are the unit's.
template <int HC, int COLUMNS, int UNITS, bool MIX>
DSV4_DEVICE void project_tile(ProjectLoad<HC>& in, const Rows& v, const uint2* fragments, const float* mix,
                              float* sums, int64_t token, int64_t left, int64_t channel) {
  using S = ProjectShape<HC, COLUMNS, UNITS>;
  const int lane = threadIdx.x % kWarp, g = lane / 4, q = lane % 4;
  float squares[2] = {};
  float acc[2][(S::kHalves + 1) / 2][4] = {};
  if (left > 0) {
    open_tile<HC, MIX>(in, squares, v, mix, token, left, channel);
    if (left > 8) multiply<HC, S::kHalves, 2>(acc, fragments, lane, in.x);
    else multiply<HC, S::kHalves, 1>(acc, fragments, lane, in.x);
  }
#pragma unroll
  for (int n = 0; n < 2; ++n) {
    sums[(8 * n + g) * S::kPitch + S::kGroups * 8 + q] = squares[n];
#pragma unroll
    for (int group = 0; group < S::kGroups; ++group)
#pragma unroll
      for (int j = 0; j < 2; ++j)
        sums[(8 * n + 2 * q + j) * S::kPitch + group * 8 + g] = column_sum<S::kGroups>(acc, n, group, j);
  }
}

// A slice's sum of column c - 1, or of the squares, from those of its units; `row` is the token's in the first.
template <int COLUMNS, int UNITS, int PITCH>
DSV4_DEVICE float slice_sum(const float* row, int c) {
  constexpr int kSquares = PITCH - 4;
  float of_unit[UNITS];
#pragma unroll
  for (int u = 0; u < UNITS; ++u, row += kTile * PITCH)
    of_unit[u] = c == 0         ? (row[kSquares] + row[kSquares + 1]) + (row[kSquares + 2] + row[kSquares + 3])
                 : c <= COLUMNS ? row[c - 1]
                                : 0.f;
  float sum = of_unit[0] + of_unit[1];
  if constexpr (UNITS == kCoarse) sum += of_unit[2] + of_unit[3];
  return sum;
}

// Writes the slice's partial sums of one tile from the sums of its units, [unit][token][pitch].
template <int COLUMNS, int UNITS, int PITCH>
DSV4_DEVICE void store_partial(const Rows& v, const float* sums, int64_t token0, int thread) {
  constexpr int kSlot = kSlotOf<COLUMNS>;
  for (int i = thread; i < kTile * kSlot; i += UNITS * kWarp) {
    const int64_t token = token0 + i / kSlot;
    if (token >= v.tokens) break;
    v.partial[(token * gridDim.x + blockIdx.x) * kSlot + i % kSlot] =
        slice_sum<COLUMNS, UNITS, PITCH>(sums + i / kSlot * PITCH, i % kSlot);
  }
}

// Block (slice, y): tokens 32y, 32(y + gridDim.y), ... of the launch.
template <int HC, int COLUMNS, int UNITS, bool MIX>
__global__ void __launch_bounds__(UNITS * kTiles * kWarp, UNITS == kCoarse ? 2 : 3) mhc_project_bf16(Rows v) {
  using S = ProjectShape<HC, COLUMNS, UNITS>;
  DYN_SMEM(uint2, fragments);
  float* all_sums = reinterpret_cast<float*>(fragments + S::kFragments);
  float* all_mix = all_sums + 2 * S::kSums;
  const int lane = threadIdx.x % kWarp, g = lane / 4, q = lane % 4;
  const int unit = threadIdx.x / kWarp % UNITS, tile = threadIdx.x / kWarp / UNITS;
  const int64_t c0 = static_cast<int64_t>(blockIdx.x) * UNITS * kUnit, channel = c0 + unit * kUnit + q * 8;
  const int64_t stride = static_cast<int64_t>(gridDim.y) * kTiles * kTile;
  int64_t block_token = static_cast<int64_t>(blockIdx.y) * kTiles * kTile;

  ProjectLoad<HC> in;
  load_tokens<HC, MIX>(in, v, block_token + tile * kTile + g, v.tokens, channel);
  stage_fn<HC, COLUMNS, UNITS>(fragments, v, c0);
  if constexpr (MIX) stage_mix<HC>(all_mix, v, block_token);
  __syncthreads();
  fragments += unit * S::kSteps * S::kHalves * kWarp;

  for (int turn = 0; block_token < v.tokens; block_token += stride, turn ^= 1) {  // uniform in the block
    const int64_t token0 = block_token + tile * kTile, left = v.tokens - token0;
    float* sums = all_sums + turn * S::kSums + tile * UNITS * kTile * S::kPitch;
    const float* mix = all_mix + turn * S::kMix + tile * kTile * S::kCoefficients;
    project_tile<HC, COLUMNS, UNITS, MIX>(in, v, fragments, mix, sums + unit * kTile * S::kPitch, token0, left,
                                          channel);
    load_tokens<HC, MIX>(in, v, token0 + stride + g, v.tokens, channel);  // in flight until the next turn
    if constexpr (MIX) stage_mix<HC>(all_mix + (turn ^ 1) * S::kMix, v, block_token + stride);
    __syncthreads();
    store_partial<COLUMNS, UNITS, S::kPitch>(v, sums, token0, threadIdx.x % (UNITS * kWarp));
  }
}

}  // namespace dsv4::cuda::mhc
