// SPDX-License-Identifier: Apache-2.0
// The first of the two launches of mhc_pre, mhc_post_pre and mhc_head: fn . x and the sum of squares of a residual row
// x of hc*d values, as partial sums over slices of its channels. bf16 streams on tensor cores; mhc_project_f32.cuh
// holds the plain form for fp32 streams. With Mix, x is first formed from the sub-layer that ends, and written.
//
// Units. A warp takes 32 channels of all hc streams (a unit) of 16 tokens, so that a thread holds all streams of its
// channels and can mix them in registers. Two units make a fine slice, four a coarse one; a block holds a slice of fn
// in shared memory and walks over tokens with it. Sums are always taken as (u0 + u1) + (u2 + u3), then over coarse
// slices in the order of mhc_finish.cuh. Whether the blocks are fine (few tokens: more blocks) or coarse (many: fewer
// partial sums) therefore changes no bit, and neither does the number of tokens.
//
// fn is fp32 and stays so: it is cut into three bf16 whose sum is exact, each product with a bf16 x is exact in fp32,
// and accumulation is fp32, over 8 steps of 16 before an ordinary fp32 add. Two parts would drop the last 6 to 8 of
// fn's 24 bits, which the bound of the tests (4 ulps of fp32) does not allow; the third costs no memory traffic.
// The columns of fn lie on the M side of the tiles.
#pragma once
#include "mhc_mix.cuh"

namespace dsv4::cuda::mhc {

constexpr int kUnit = 32;       // channels of a warp
constexpr int kTile = 16;       // tokens of a warp
constexpr int kTiles = 2;       // tiles of tokens side by side in a block
constexpr int kFine = 2;        // units of a fine slice
constexpr int kCoarse = 4;      // of a coarse one

// A slice's partial sums of one token: the sum of squares, the columns, zeros up to a power of two.
constexpr int slot_size(int columns) { return columns < 8 ? 8 : columns < 16 ? 16 : 32; }
template <int COLUMNS>
constexpr int kSlotOf = slot_size(COLUMNS);

struct Rows {
  const void* residual;          // [T, HC, d]
  const float* fn;               // [columns, HC*d]
  float* partial;                // [tokens of this launch, slices, slot]
  int64_t residual_t, residual_i, fn_row;  // strides in elements
  int64_t first, tokens, d;      // the launch's first token and their number
  bool vector, fn_vector;        // 16-byte accesses are allowed
  const void* y;                 // these only with Mix: the inputs of the mix, and where its result goes
  const float *post, *comb;
  void* out;
  int64_t y_t, post_t, comb_t, comb_j, out_t, out_i;
};

template <int HC, int COLUMNS, int UNITS>
struct ProjectShape {
  static constexpr int kThreads = UNITS * kTiles * kWarp;
  static constexpr int kGroups = (COLUMNS + 7) / 8;        // of eight columns
  static constexpr int kHalves = 3 * kGroups;              // half m16 tiles: the groups' high parts, middle, low
  static constexpr int kSteps = 2 * HC;                    // k16 steps of a unit
  static constexpr int kPitch = kGroups * 8 + 4;           // of a token's sums; the last four: squares, by lane % 4
  static constexpr int kCoefficients = HC + HC * HC;       // of a token's mix
  static constexpr int kFragments = UNITS * kSteps * kHalves * kWarp;  // uint2
  static constexpr int kSums = kTiles * UNITS * kTile * kPitch;        // float, twice
  static constexpr int kMix = kTiles * kTile * kCoefficients;          // float, twice, with Mix
  static constexpr size_t smem(bool mix) {
    return kFragments * sizeof(uint2) + 2 * (kSums + (mix ? kMix : 0)) * sizeof(float);
  }
};

// Three bf16, as the upper halves of floats, whose sum is w: its significand cut into thirds.
DSV4_DEVICE void cut_in_three(float w, uint32_t (&part)[3]) {
  const uint32_t bits = __float_as_uint(w);
  const bool finite = (bits & 0x7f800000u) != 0x7f800000u;
  part[0] = bits & 0xffff0000u;
  if (!finite && (bits & 0xffffu)) part[0] |= 0x00400000u;  // NaN stays NaN
  const float rest = finite ? w - __uint_as_float(part[0]) : 0.f;
  part[1] = __float_as_uint(rest) & 0xffff0000u;
  part[2] = __float_as_uint(rest - __uint_as_float(part[1])) & 0xffff0000u;
}

// The block's slice of fn as A fragments: [unit][step][half][lane]. In the two steps of a stream, lane % 4 = q owns
// channels 8q .. 8q + 7 of the unit, so that a thread's x of one 16-byte load is its B fragment as it is.
template <int HC, int COLUMNS, int UNITS>
DSV4_DEVICE void stage_fn(uint2* fragments, const Rows& v, int64_t c0) {
  using S = ProjectShape<HC, COLUMNS, UNITS>;
  constexpr int kTasks = UNITS * HC * S::kGroups * 8 * 4, kEach = (kTasks + S::kThreads - 1) / S::kThreads;
  float w[kEach][8];
#pragma unroll
  for (int n = 0; n < kEach; ++n) {
    const int task = n * S::kThreads + threadIdx.x, q = task % 4, column = task / 4 % (S::kGroups * 8);
    const int stream = task / (32 * S::kGroups) % HC, unit = task / (32 * S::kGroups * HC);
    const int64_t channel = c0 + unit * kUnit + q * 8;
#pragma unroll
    for (int c = 0; c < 8; ++c) w[n][c] = 0;
    if (task < kTasks && column < COLUMNS && channel < v.d)
      load8_any(w[n], v.fn + column * v.fn_row + stream * v.d + channel, v.fn_vector);
  }
#pragma unroll
  for (int n = 0; n < kEach; ++n) {
    const int task = n * S::kThreads + threadIdx.x, q = task % 4, column = task / 4 % (S::kGroups * 8);
    const int stream = task / (32 * S::kGroups) % HC, unit = task / (32 * S::kGroups * HC);
    if (task >= kTasks) break;
#pragma unroll
    for (int h = 0; h < 2; ++h) {
      uint32_t part[4][3];
#pragma unroll
      for (int c = 0; c < 4; ++c) cut_in_three(w[n][4 * h + c], part[c]);
      uint2* at = fragments + ((unit * S::kSteps + 2 * stream + h) * S::kHalves + column / 8) * kWarp +
                  column % 8 * 4 + q;
#pragma unroll
      for (int p = 0; p < 3; ++p)
        at[p * S::kGroups * kWarp] = make_uint2(part[0][p] >> 16 | part[1][p], part[2][p] >> 16 | part[3][p]);
    }
  }
}

// acc[n][m] += fn of the unit times the x of N groups of eight tokens.
template <int HC, int HALVES, int N>
DSV4_DEVICE void multiply(float (&acc)[2][(HALVES + 1) / 2][4], const uint2* fragments, const Raw8<bf16> (&x)[2][HC]) {
#pragma unroll
  for (int step = 0; step < 2 * HC; ++step) {
    const int s = step / 2;
    uint32_t b[2][2];
#pragma unroll
    for (int n = 0; n < N; ++n) {
      b[n][0] = step % 2 ? x[n][s].v.z : x[n][s].v.x;
      b[n][1] = step % 2 ? x[n][s].v.w : x[n][s].v.y;
    }
#pragma unroll
    for (int m = 0; m < (HALVES + 1) / 2; ++m) {
      const uint2 upper = fragments[(step * HALVES + 2 * m) * kWarp];
      const uint2 lower = 2 * m + 1 < HALVES ? fragments[(step * HALVES + 2 * m + 1) * kWarp] : make_uint2(0, 0);
      const uint32_t a[4] = {upper.x, lower.x, upper.y, lower.y};
#pragma unroll
      for (int n = 0; n < N; ++n) mma_bf16(acc[n][m], a, b[n]);
    }
  }
}

template <int HC>
struct ProjectLoad {  // what a thread reads of its two tokens (lane / 4, and 8 further)
  Raw8<bf16> x[2][HC], y[2];
};

template <int HC, bool MIX>
DSV4_DEVICE void load_tokens(ProjectLoad<HC>& in, const Rows& v, int64_t token, int64_t channel) {
#pragma unroll
  for (int n = 0; n < 2; ++n) {
    const bool there = token + 8 * n < v.tokens && channel < v.d;
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
DSV4_DEVICE void mix_token(Raw8<bf16> (&x)[HC], const Raw8<bf16>& y, const float* coefficients, bf16* out, const Rows& v) {
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

// Writes the slice's partial sums of one tile from the sums of its units, [unit][token][pitch].
template <int COLUMNS, int UNITS, int PITCH>
DSV4_DEVICE void store_partial(const Rows& v, const float* sums, int64_t token0, int thread) {
  constexpr int kSlot = kSlotOf<COLUMNS>, kSquares = PITCH - 4, kUnitSums = kTile * PITCH;
  for (int i = thread; i < kTile * kSlot; i += UNITS * kWarp) {
    const int64_t token = token0 + i / kSlot;
    if (token >= v.tokens) break;
    const int c = i % kSlot;
    const float* row = sums + i / kSlot * PITCH;
    float of_unit[UNITS];
#pragma unroll
    for (int u = 0; u < UNITS; ++u, row += kUnitSums)
      of_unit[u] = c == 0         ? (row[kSquares] + row[kSquares + 1]) + (row[kSquares + 2] + row[kSquares + 3])
                   : c <= COLUMNS ? row[c - 1]
                                  : 0.f;
    float sum = of_unit[0] + of_unit[1];
    if constexpr (UNITS == kCoarse) sum += of_unit[2] + of_unit[3];
    v.partial[(token * gridDim.x + blockIdx.x) * kSlot + c] = sum;
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
  load_tokens<HC, MIX>(in, v, block_token + tile * kTile + g, channel);
  stage_fn<HC, COLUMNS, UNITS>(fragments, v, c0);
  if constexpr (MIX) stage_mix<HC>(all_mix, v, block_token);
  __syncthreads();
  fragments += unit * S::kSteps * S::kHalves * kWarp + lane;

  for (int turn = 0; block_token < v.tokens; block_token += stride, turn ^= 1) {  // uniform in the block
    const int64_t token0 = block_token + tile * kTile, left = v.tokens - token0;
    float* sums = all_sums + turn * S::kSums + tile * UNITS * kTile * S::kPitch;
    float squares[2] = {};
    float acc[2][(S::kHalves + 1) / 2][4] = {};
    if (left > 0) {
#pragma unroll
      for (int n = 0; n < 2; ++n) {
        if constexpr (MIX) {
          if (g + 8 * n < left && channel < v.d)
            mix_token<HC>(in.x[n], in.y[n], all_mix + turn * S::kMix + (tile * kTile + 8 * n + g) * S::kCoefficients,
                          static_cast<bf16*>(v.out) + (v.first + token0 + 8 * n + g) * v.out_t + channel, v);
        }
#pragma unroll
        for (int s = 0; s < HC; ++s) {
          float x[8];
          unpack(x, in.x[n][s]);
#pragma unroll
          for (int c = 0; c < 8; ++c) squares[n] = fmaf(x[c], x[c], squares[n]);
        }
      }
      if (left > 8) multiply<HC, S::kHalves, 2>(acc, fragments, in.x);
      else multiply<HC, S::kHalves, 1>(acc, fragments, in.x);
    }
    load_tokens<HC, MIX>(in, v, token0 + stride + g, channel);  // in flight until the next turn
    float* row = sums + unit * kTile * S::kPitch;
#pragma unroll
    for (int n = 0; n < 2; ++n) {
      row[(8 * n + g) * S::kPitch + S::kGroups * 8 + q] = squares[n];
#pragma unroll
      for (int group = 0; group < S::kGroups; ++group)
#pragma unroll
        for (int j = 0; j < 2; ++j) {  // a thread's D of tokens 2q and 2q + 1: rows g and g + 8, two halves
          float part[3];
#pragma unroll
          for (int p = 0; p < 3; ++p) {
            const int half = p * S::kGroups + group;
            part[p] = acc[n][half / 2][half % 2 * 2 + j];
          }
          row[(8 * n + 2 * q + j) * S::kPitch + group * 8 + g] = part[0] + (part[1] + part[2]);
        }
    }
    if constexpr (MIX) stage_mix<HC>(all_mix + (turn ^ 1) * S::kMix, v, block_token + stride);
    __syncthreads();
    store_partial<COLUMNS, UNITS, S::kPitch>(v, sums, token0, threadIdx.x % (UNITS * kWarp));
  }
}

}  // namespace dsv4::cuda::mhc
