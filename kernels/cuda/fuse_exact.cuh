// SPDX-License-Identifier: Apache-2.0
// nextn_fuse_hidden in fp32, any weights and any strides: the exact path, not tuned. A block owns 64 channels
// x 32 stream rows and walks through k of e_proj, then of h_proj, 32 at a time; a token's e product is made
// once a stream. Sums of 32 products are added to the total in order, whatever the tile.
#pragma once
#include "fuse_view.cuh"

namespace dsv4::cuda {

constexpr int kExactThreads = 256, kExactChannels = 64, kExactRows = 32, kExactDepth = 32;
constexpr int kExactPitch = kExactChannels + 4;

DSV4_DEVICE float fuse_weight(const FuseView& v, const FuseSide& s, int channel, int k) {
  const int64_t at = channel * s.weight_n + k;
  if (v.weight == kF32) return static_cast<const float*>(s.weight)[at];
  if (v.weight == kBF16) return to_float(static_cast<const bf16*>(s.weight)[at]);
  if (v.weight == kI8)
    return static_cast<const int8_t*>(s.weight)[at] * static_cast<const float*>(s.scale)[channel];
  const uint32_t exponent = static_cast<const uint8_t*>(s.scale)[channel / 128 * s.scale_n + k / 128];
  return e4m3(static_cast<const uint8_t*>(s.weight)[at]) * e8m0(exponent);
}

template <class X>
__global__ void __launch_bounds__(kExactThreads) fuse_exact_kernel(FuseView v) {
  alignas(16) __shared__ float weights[kExactDepth][kExactPitch];
  __shared__ float rows[kExactDepth][kExactRows + 1];
  const int64_t row0 = static_cast<int64_t>(blockIdx.x) * kExactRows, row_count = v.T << v.hc_log2;
  const int channel0 = blockIdx.y * kExactChannels;
  const int my_channel = threadIdx.x % 16 * 4, my_row = threadIdx.x / 16 * 2;
  float total[2][4] = {};

  for (int side = 0; side < 2; ++side) {
    const FuseSide& s = v.side[side];
    for (int k0 = 0; k0 < v.d; k0 += kExactDepth) {
      const int j = threadIdx.x % kExactDepth, k = k0 + j;
      for (int c = threadIdx.x / kExactDepth; c < kExactChannels; c += kExactThreads / kExactDepth)
        weights[j][c] = channel0 + c < v.d && k < v.d ? fuse_weight(v, s, channel0 + c, k) : 0.f;
      for (int r = threadIdx.x / kExactDepth; r < kExactRows; r += kExactThreads / kExactDepth) {
        float x = 0;
        if (row0 + r < row_count && k < v.d) {
          const int64_t row = side ? row0 + r : (row0 + r) >> v.hc_log2;
          const float w = s.norm_f32 ? static_cast<const float*>(s.norm)[k]
                                     : to_float(static_cast<const bf16*>(s.norm)[k]);
          x = to_float(fuse_row<X>(v, side, row)[k]) * v.inverse_rms[side ? v.T + row : row] * w;
        }
        rows[j][r] = to_float(from_float<X>(x));
      }
      __syncthreads();
      if (row0 + my_row < row_count) {
        float sum[2][4] = {};
#pragma unroll 8
        for (int i = 0; i < kExactDepth; ++i) {
          const float4 w = *reinterpret_cast<const float4*>(&weights[i][my_channel]);
#pragma unroll
          for (int r = 0; r < 2; ++r) {
            const float x = rows[i][my_row + r];
            sum[r][0] = fmaf(x, w.x, sum[r][0]), sum[r][1] = fmaf(x, w.y, sum[r][1]);
            sum[r][2] = fmaf(x, w.z, sum[r][2]), sum[r][3] = fmaf(x, w.w, sum[r][3]);
          }
        }
#pragma unroll
        for (int r = 0; r < 2; ++r)
#pragma unroll
          for (int c = 0; c < 4; ++c) total[r][c] += sum[r][c];
      }
      __syncthreads();
    }
  }
#pragma unroll
  for (int r = 0; r < 2; ++r) {
    const int64_t row = row0 + my_row + r;
    if (row >= row_count) break;
    X* out = static_cast<X*>(v.out) + (row >> v.hc_log2) * v.out_t + (row & ((1 << v.hc_log2) - 1)) * v.out_i;
#pragma unroll
    for (int c = 0; c < 4; ++c)
      if (channel0 + my_channel + c < v.d) out[channel0 + my_channel + c] = from_float<X>(total[r][c]);
  }
}

}  // namespace dsv4::cuda
