// SPDX-License-Identifier: Apache-2.0
// The product of mhc_cluster.cuh for wide models, d up to 8192: a block holds four coarse slices, and fn as it is.
//
// 192 KB of fn fit a block's shared memory, their three parts do not. Every value of fn is used by one lane of one warp
// alone, which cuts it on its way to the product, once for each tile of tokens. A warp owns two neighbouring units of a
// slice and the copies of their fn, and waits for no other. Its sums are those of the two units, so a slice's are added
// in the same order as elsewhere.
#pragma once
#include "mhc_project.cuh"

namespace dsv4::cuda::mhc {

constexpr int kPair = 2;  // units of a warp

// A pair's fn: [unit][stream][column][channel], four channels at a time turned by one in every other column, so that
// eight lanes of two columns meet all banks.
template <int HC, int COLUMNS>
constexpr int kUncut = kPair * HC * COLUMNS * kUnit;
DSV4_DEVICE int turned_four(int four, int column) { return (four ^ (column & 1)) * 4; }

// Starts the copies of a warp's pair of units from `channel`: a committed group a unit and stream, in order.
template <int HC, int COLUMNS>
DSV4_DEVICE void stage_uncut(float* fn, const Rows& v, int64_t channel) {
  constexpr int kFours = kUnit / 4;
#pragma unroll 1
  for (int group = 0; group < kPair * HC; ++group, fn += COLUMNS * kUnit) {
    const float* from = v.fn + group % HC * v.d + channel + group / HC * kUnit;
#pragma unroll
    for (int i = threadIdx.x % kWarp; i < COLUMNS * kFours; i += kWarp) {
      const int column = i / kFours, four = i % kFours;
      const bool there = channel + group / HC * kUnit + four * 4 < v.d;
      const float* p = there ? from + column * v.fn_row + four * 4 : v.fn;
      float* to = fn + column * kUnit + turned_four(four, column);
      if (v.fn_vector) {
        cp_async16(to, p, there);
      } else {
#pragma unroll
        for (int c = 0; c < 4; ++c) to[c] = there ? p[c] : 0.f;
      }
    }
    cp_async_commit();
  }
}

// Waits for this warp's copies, but for the `later` last groups of them.
DSV4_DEVICE void wait_for_copies(int later) {
  if (later >= 7) cp_async_wait<7>();
  else if (later == 6) cp_async_wait<6>();
  else if (later == 5) cp_async_wait<5>();
  else if (later == 4) cp_async_wait<4>();
  else if (later == 3) cp_async_wait<3>();
  else if (later == 2) cp_async_wait<2>();
  else if (later == 1) cp_async_wait<1>();
  else cp_async_wait<0>();
  __syncwarp();
}

// cut_four of finite values; of others some part is NaN.
DSV4_DEVICE void cut_finite(const float (&w)[4], uint2 (&fragment)[3]) {
  float rest[4] = {w[0], w[1], w[2], w[3]};
#pragma unroll
  for (int p = 0; p < 3; ++p) {
    uint32_t bits[4];
#pragma unroll
    for (int c = 0; c < 4; ++c) bits[c] = __float_as_uint(rest[c]);
    fragment[p] = make_uint2(__byte_perm(bits[0], bits[1], 0x7632), __byte_perm(bits[2], bits[3], 0x7632));
#pragma unroll
    for (int c = 0; c < 4; ++c) rest[c] -= __uint_as_float(bits[c] & 0xffff0000u);
  }
}

// As `multiply`: acc[n][m] += fn of unit `unit` of the pair times the x of one or, with `both`, two groups of eight
// tokens.
template <int HC, int COLUMNS, bool FINITE>
DSV4_DEVICE void multiply_uncut(float (&acc)[2][(ProjectShape<HC, COLUMNS, kCoarse>::kHalves + 1) / 2][4],
                                const float* fn, int unit, const Raw8<bf16> (&x)[2][HC], bool both) {
  using S = ProjectShape<HC, COLUMNS, kCoarse>;
  const int lane = threadIdx.x % kWarp, g = lane / 4, q = lane % 4;
#pragma unroll
  for (int step = 0; step < S::kSteps; ++step) {
    const int s = step / 2;
    if (step % 2 == 0) {
      if (unit == 0) wait_for_copies(kPair * HC - 1 - s);
      else wait_for_copies(HC - 1 - s);
    }
    uint2 half[S::kHalves + 1];
    half[S::kHalves] = make_uint2(0, 0);
#pragma unroll
    for (int group = 0; group < S::kGroups; ++group) {
      const int column = group * 8 + g;
      float w[4] = {};
      if (column < COLUMNS) {
        const float* from = fn + ((unit * HC + s) * COLUMNS + column) * kUnit + turned_four(2 * q + step % 2, column);
        const float4 four = *reinterpret_cast<const float4*>(from);
        w[0] = four.x, w[1] = four.y, w[2] = four.z, w[3] = four.w;
      }
      uint2 fragment[3];
      if (FINITE) cut_finite(w, fragment);
      else cut_four(w, fragment);
#pragma unroll
      for (int p = 0; p < 3; ++p) half[p * S::kGroups + group] = fragment[p];
    }
    uint32_t b[2][2];
#pragma unroll
    for (int n = 0; n < 2; ++n) {
      b[n][0] = step % 2 ? x[n][s].v.z : x[n][s].v.x;
      b[n][1] = step % 2 ? x[n][s].v.w : x[n][s].v.y;
    }
#pragma unroll
    for (int n = 0; n < 2; ++n) {
      if (n == 1 && !both) break;
#pragma unroll
      for (int m = 0; m < (S::kHalves + 1) / 2; ++m)
        mma_bf16(acc[n][m], {half[2 * m].x, half[2 * m + 1].x, half[2 * m].y, half[2 * m + 1].y}, b[n]);
    }
  }
}

// As `project_tile`, for a warp's pair of units: `sums` are those of both, `fn` is the pair's, `channel` the first
// unit's. One loop does both units, what they hold changing places: straight code is fetched for longer than it runs.
template <int HC, int COLUMNS, bool MIX>
DSV4_DEVICE void project_pair(ProjectLoad<HC> (&in)[kPair], const Rows& v, const float* fn, const float* mix, float* sums,
                              int64_t token, int64_t left, int64_t channel) {
  using S = ProjectShape<HC, COLUMNS, kCoarse>;
  const int lane = threadIdx.x % kWarp, g = lane / 4, q = lane % 4;
  float all_squares[2] = {}, columns[2][S::kGroups][2] = {};
#pragma unroll 1
  for (int unit = 0; unit < kPair; ++unit) {
    float squares[2] = {};
    float acc[2][(S::kHalves + 1) / 2][4] = {};
    open_tile<HC, MIX>(in[0], squares, v, mix, token, left, channel + unit * kUnit);
    multiply_uncut<HC, COLUMNS, true>(acc, fn, unit, in[0].x, left > 8);
    float sum[2][S::kGroups][2];
    bool nan = false;
    const auto add_parts = [&] {
#pragma unroll
      for (int n = 0; n < 2; ++n)
#pragma unroll
        for (int group = 0; group < S::kGroups; ++group)
#pragma unroll
          for (int j = 0; j < 2; ++j) {
            sum[n][group][j] = column_sum<S::kGroups>(acc, n, group, j);
            nan = nan || sum[n][group][j] != sum[n][group][j];
          }
    };
    add_parts();
    if (__any_sync(kAllLanes, nan)) {  // it may be an infinite fn that was not cut as such
#pragma unroll
      for (int i = 0; i < 2 * ((S::kHalves + 1) / 2) * 4; ++i) (&acc[0][0][0])[i] = 0;
      multiply_uncut<HC, COLUMNS, false>(acc, fn, unit, in[0].x, left > 8);
      add_parts();
    }
#pragma unroll
    for (int n = 0; n < 2; ++n) {
#pragma unroll
      for (int i = 0; i < HC; ++i) {
        const Raw8<bf16> done = in[0].x[n][i];
        in[0].x[n][i] = in[1].x[n][i], in[1].x[n][i] = done;
      }
      if constexpr (MIX) in[0].y[n] = in[1].y[n];  // the other's has been used
    }
#pragma unroll
    for (int n = 0; n < 2; ++n) {
      squares[n] += __shfl_xor_sync(kAllLanes, squares[n], 1);
      squares[n] += __shfl_xor_sync(kAllLanes, squares[n], 2);
      all_squares[n] = unit ? all_squares[n] + squares[n] : squares[n];
#pragma unroll
      for (int group = 0; group < S::kGroups; ++group)
#pragma unroll
        for (int j = 0; j < 2; ++j)
          columns[n][group][j] = unit ? columns[n][group][j] + sum[n][group][j] : sum[n][group][j];
    }
  }
#pragma unroll
  for (int n = 0; n < 2; ++n) {
    sums[(8 * n + g) * S::kPitch + S::kGroups * 8 + q] = q == 0 ? all_squares[n] : 0.f;
#pragma unroll
    for (int group = 0; group < S::kGroups; ++group)
#pragma unroll
      for (int j = 0; j < 2; ++j) sums[(8 * n + 2 * q + j) * S::kPitch + group * 8 + g] = columns[n][group][j];
  }
}

}  // namespace dsv4::cuda::mhc
