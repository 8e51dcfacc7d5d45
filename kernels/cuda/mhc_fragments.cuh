// SPDX-License-Identifier: Apache-2.0
// The tensor-core product of mhc_project.cuh: fn, cut into bf16 parts, as A fragments in shared memory, times
// bf16 rows.
//
// fn is fp32 and stays so: it is cut into three bf16 whose sum is exact, each product with a bf16 x is exact
// in fp32, and accumulation is fp32, over 2*hc steps of 16 before an ordinary fp32 add. Two parts would drop
// the last bits of fn's 24, some 2^-17 of a weight, which the bound of the tests (4 ulps of fp32) does not
// allow; the third costs no memory traffic. The columns of fn lie on the M side of the tiles, eight tokens on
// the N side: eight or fewer tokens then cost half of sixteen.
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
  const void* y;                 // these only with MIX: the inputs of the mix, and where its result goes
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
  static constexpr int kMix = kTiles * kTile * kCoefficients;          // float, twice, with MIX
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

// A lane's fragments of a column's four values: high, middle, low.
DSV4_DEVICE void cut_four(const float (&w)[4], uint2 (&fragment)[3]) {
  uint32_t part[4][3];
#pragma unroll
  for (int c = 0; c < 4; ++c) cut_in_three(w[c], part[c]);
#pragma unroll
  for (int p = 0; p < 3; ++p)
    fragment[p] = make_uint2(part[0][p] >> 16 | part[1][p], part[2][p] >> 16 | part[3][p]);
}

// Where a lane's fragment of a step lies. The two steps of a stream are stored together, by one half warp: the odd one
// takes the other eight of sixteen places, and both then meet all banks once.
DSV4_DEVICE int place(int lane, int step) { return lane ^ step % 2 * 8; }

// The block's slice of fn as A fragments: [unit][step][half][lane]. In the two steps of a stream, lane % 4 =
// q owns channels 8q .. 8q + 7 of the unit, so that a thread's x of one 16-byte load is its B fragment as it
// is. A task is four channels of a column, those of one step. With few tokens, all loads of a thread are in
// flight before it cuts the first; coarse slices have fewer registers and more tokens to amortise this.
template <int HC, int COLUMNS, int UNITS>
DSV4_DEVICE void stage_fn(uint2* fragments, const Rows& v, int64_t c0) {
  using S = ProjectShape<HC, COLUMNS, UNITS>;
  constexpr int kOfStream = S::kGroups * 8 * 8, kTasks = UNITS * HC * kOfStream;
  constexpr int kTurns = (kTasks + S::kThreads - 1) / S::kThreads, kMost = UNITS == kFine ? 12 : 6;
  constexpr int kAtOnce = kTurns < kMost ? kTurns : kMost;
#pragma unroll 1
  for (int first = threadIdx.x; first < kTasks; first += kAtOnce * S::kThreads) {
    float w[kAtOnce][4];
#pragma unroll
    for (int n = 0; n < kAtOnce; ++n) {
      const int task = first + n * S::kThreads, column = task / 8 % (S::kGroups * 8);
      const int stream = task / kOfStream % HC, unit = task / (kOfStream * HC);
      const int64_t channel = c0 + unit * kUnit + task % 8 * 4;
      const float* p = v.fn + column * v.fn_row + stream * v.d + channel;
      const bool there = task < kTasks && column < COLUMNS && channel < v.d;
      if (there && v.fn_vector) {
        const float4 x = *reinterpret_cast<const float4*>(p);
        w[n][0] = x.x, w[n][1] = x.y, w[n][2] = x.z, w[n][3] = x.w;
      } else {
#pragma unroll
        for (int c = 0; c < 4; ++c) w[n][c] = there ? p[c] : 0.f;
      }
    }
#pragma unroll
    for (int n = 0; n < kAtOnce; ++n) {
      const int task = first + n * S::kThreads, column = task / 8 % (S::kGroups * 8);
      const int stream = task / kOfStream % HC, unit = task / (kOfStream * HC);
      if (task >= kTasks) break;
      uint2 fragment[3];
      cut_four(w[n], fragment);
      const int step = 2 * stream + task % 2, lane = place(column % 8 * 4 + task % 8 / 2, step);
      uint2* at = fragments + ((unit * S::kSteps + step) * S::kHalves + column / 8) * kWarp + lane;
#pragma unroll
      for (int p = 0; p < 3; ++p) at[p * S::kGroups * kWarp] = fragment[p];
    }
  }
}

// acc[n][m] += fn of the unit times the x of N groups of eight tokens.
template <int HC, int HALVES, int N>
DSV4_DEVICE void multiply(float (&acc)[2][(HALVES + 1) / 2][4], const uint2* fragments, int lane,
                          const Raw8<bf16> (&x)[2][HC]) {
#pragma unroll
  for (int step = 0; step < 2 * HC; ++step) {
    const int s = step / 2;
    const uint2* mine = fragments + step * HALVES * kWarp + place(lane, step);
    uint32_t b[2][2];
#pragma unroll
    for (int n = 0; n < N; ++n) {
      b[n][0] = step % 2 ? x[n][s].v.z : x[n][s].v.x;
      b[n][1] = step % 2 ? x[n][s].v.w : x[n][s].v.y;
    }
#pragma unroll
    for (int m = 0; m < (HALVES + 1) / 2; ++m) {
      const uint2 upper = mine[2 * m * kWarp];
      const uint2 lower = 2 * m + 1 < HALVES ? mine[(2 * m + 1) * kWarp] : make_uint2(0, 0);
      const uint32_t a[4] = {upper.x, lower.x, upper.y, lower.y};
#pragma unroll
      for (int n = 0; n < N; ++n) mma_bf16(acc[n][m], a, b[n]);
    }
  }
}

}  // namespace dsv4::cuda::mhc
