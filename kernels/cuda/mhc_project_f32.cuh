// SPDX-License-Identifier: Apache-2.0
// mhc_project.cuh for fp32 streams: the exact, untuned path. Plain fp32 multiply-adds from shared memory,
// always in fine slices; the partial sums have the same layout.
#pragma once
#include "mhc_project.cuh"

namespace dsv4::cuda::mhc {

template <int HC, int COLUMNS>
struct PlainShape {
  static constexpr int kThreads = 128;                     // token = thread / 8, part = thread % 8
  static constexpr int kChannels = kFine * kUnit;          // eight for each part
  static constexpr int kWidth = HC * kChannels;
  static constexpr int kPitch = kWidth + 4;                // eight rows apart: other banks
  static constexpr int kEach = (COLUMNS + 7) / 8;          // columns of a thread
  static constexpr size_t kSmem = ((COLUMNS + kTile) * kPitch + kTile * 8) * sizeof(float);
};

// The streams of a thread's eight channels; with MIX those of the new residual, which it writes.
template <int HC, bool MIX>
DSV4_DEVICE void streams_of(float (&x)[HC][8], const Rows& v, int64_t t, int64_t channel) {
  const float* row = static_cast<const float*>(v.residual) + t * v.residual_t + channel;
  if constexpr (MIX) {
    float in[8];
    load8_any(in, static_cast<const float*>(v.y) + t * v.y_t + channel, v.vector);
    mix_open<HC>(x, v.post + t * v.post_t, in);
#pragma unroll
    for (int j = 0; j < HC; ++j) {
      load8_any(in, row + j * v.residual_i, v.vector);
      mix_add<HC>(x, v.comb + t * v.comb_t + j * v.comb_j, in);
    }
    float* out = static_cast<float*>(v.out) + t * v.out_t + channel;
#pragma unroll
    for (int i = 0; i < HC; ++i) store8_any(out + i * v.out_i, x[i], v.vector);
  } else {
#pragma unroll
    for (int s = 0; s < HC; ++s) load8_any(x[s], row + s * v.residual_i, v.vector);
  }
}

// Block (slice, y): tokens 16y, 16(y + gridDim.y), ... of the launch.
template <int HC, int COLUMNS, bool MIX>
__global__ void __launch_bounds__(128) mhc_project_f32(Rows v) {
  using S = PlainShape<HC, COLUMNS>;
  constexpr int kSlot = kSlotOf<COLUMNS>;
  DYN_SMEM(float, fn);                          // [COLUMNS][pitch]
  float* rows = fn + COLUMNS * S::kPitch;       // [kTile][pitch]
  float* all_squares = rows + kTile * S::kPitch;  // [kTile][8]
  const int token = threadIdx.x / 8, part = threadIdx.x % 8;
  const int64_t c0 = static_cast<int64_t>(blockIdx.x) * S::kChannels, channel = c0 + part * 8;

  for (int i = threadIdx.x; i < COLUMNS * HC * 8; i += S::kThreads) {
    float w[8] = {};
    const int c = i % 8 * 8, stream = i / 8 % HC, column = i / (8 * HC);
    if (c0 + c < v.d) load8_any(w, v.fn + column * v.fn_row + stream * v.d + c0 + c, v.fn_vector);
    store8(fn + column * S::kPitch + stream * S::kChannels + c, w);
  }
  const int64_t stride = static_cast<int64_t>(gridDim.y) * kTile;
  for (int64_t t0 = static_cast<int64_t>(blockIdx.y) * kTile; t0 < v.tokens; t0 += stride) {
    const bool there = t0 + token < v.tokens;
    float x[HC][8] = {}, squares = 0;
    if (there && channel < v.d) streams_of<HC, MIX>(x, v, v.first + t0 + token, channel);
#pragma unroll
    for (int s = 0; s < HC; ++s) {
      store8(rows + token * S::kPitch + s * S::kChannels + part * 8, x[s]);
#pragma unroll
      for (int c = 0; c < 8; ++c) squares = fmaf(x[s][c], x[s][c], squares);
    }
    all_squares[threadIdx.x] = squares;
    __syncthreads();
    if (there) {
      float4 acc[S::kEach] = {};
      const float* row = rows + token * S::kPitch;
      for (int k = 0; k < S::kWidth; k += 4) {
        const float4 a = *reinterpret_cast<const float4*>(row + k);
#pragma unroll
        for (int n = 0; n < S::kEach; ++n) {
          if (8 * n + part >= COLUMNS) break;
          const float4 b = *reinterpret_cast<const float4*>(fn + (8 * n + part) * S::kPitch + k);
          acc[n].x = fmaf(a.x, b.x, acc[n].x), acc[n].y = fmaf(a.y, b.y, acc[n].y);
          acc[n].z = fmaf(a.z, b.z, acc[n].z), acc[n].w = fmaf(a.w, b.w, acc[n].w);
        }
      }
      float* partial = v.partial + ((t0 + token) * gridDim.x + blockIdx.x) * kSlot;
#pragma unroll
      for (int n = 0; n < S::kEach; ++n)
        if (8 * n + part < COLUMNS) partial[1 + 8 * n + part] = (acc[n].x + acc[n].y) + (acc[n].z + acc[n].w);
      if (part == 0) {
        float sum = 0;
        for (int i = 0; i < 8; ++i) sum += all_squares[token * 8 + i];
        partial[0] = sum;
      }
    }
    __syncthreads();
  }
}

}  // namespace dsv4::cuda::mhc
