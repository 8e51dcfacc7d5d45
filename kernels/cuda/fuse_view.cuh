// SPDX-License-Identifier: Apache-2.0
// What the kernels of nextn_fuse_hidden share: their argument, the rows and their norms, and number formats.
#pragma once
#include "kernel.cuh"

namespace dsv4::cuda {

// One of the two projections: embeds with e_proj, hidden with h_proj.
struct FuseSide {
  const void* x;     // token t, stream i at t * x_t + i * d; embeds has one stream
  const void* norm;  // [d]
  const void* weight;
  const void* scale;  // E8M0 bytes [d/128][d/128], or floats [d], or null
  int64_t x_t, weight_n, scale_n;  // strides in elements
  bool x_vector, norm_f32, norm_vector;
};

struct FuseView {
  FuseSide side[2];
  void* out;
  int64_t out_t, out_i;
  int64_t T;
  float* inverse_rms;  // [T] of embeds, then [T * hc] of hidden
  unsigned* tickets;   // one for every column of blocks that share their outputs; zero between launches
  float* partials;
  int d, hc_log2;
  int depth;  // of a part of k: it follows from d
  float eps;
  Dtype weight;
  bool out_vector;
};

// Row `row` of a side: a token of embeds, or a stream of a token of hidden.
template <class X>
DSV4_DEVICE const X* fuse_row(const FuseView& v, int side, int64_t row) {
  const FuseSide& s = v.side[side];
  const int log2 = side ? v.hc_log2 : 0;
  return static_cast<const X*>(s.x) + (row >> log2) * s.x_t + (row & ((1 << log2) - 1)) * v.d;
}

// The sum of squares of one part of a row by one warp, in every lane. Every kernel takes a row's from these sums, in
// the order of the parts, so that bits do not depend on which one did.
template <class X>
DSV4_DEVICE float fuse_squares(const X* part, int length, bool vector) {
  float sum = 0;
#pragma unroll 4
  for (int k = threadIdx.x % kWarp * 8; k < length; k += kWarp * 8) {
    float value[8];
    load8_any(value, part + k, vector);
#pragma unroll
    for (int i = 0; i < 8; ++i) sum = fmaf(value[i], value[i], sum);
  }
  return warp_sum(sum);
}
DSV4_DEVICE float fuse_inverse_rms(const FuseView& v, float squares) {
  return 1.f / sqrtf(squares / static_cast<float>(v.d) + v.eps);
}
template <class X>
DSV4_DEVICE float fuse_inverse_rms(const FuseView& v, int side, int64_t row) {
  float sum = 0;
  for (int k = 0; k < v.d; k += v.depth)
    sum += fuse_squares(fuse_row<X>(v, side, row) + k, min(v.depth, v.d - k), v.side[side].x_vector);
  return fuse_inverse_rms(v, sum);
}

// Eight weights of a norm.
DSV4_DEVICE void load_norm(float (&w)[8], const FuseSide& s, int k) {
  if (s.norm_f32) load8_any(w, static_cast<const float*>(s.norm) + k, s.norm_vector);
  else load8_any(w, static_cast<const bf16*>(s.norm) + k, s.norm_vector);
}

// 2^(byte - 127); 0 is 2^-127, which is subnormal, and 255 is NaN.
DSV4_DEVICE float e8m0(uint32_t byte) {
  return __uint_as_float(byte == 255 ? 0x7fc00000u : byte ? byte << 23 : 0x00400000u);
}

DSV4_DEVICE float e4m3(uint32_t byte) {
  // Its exponent and mantissa are read as those of a float, whose bias is 120 more: subnormals come out right
  // too.
  const float magnitude = __uint_as_float((byte & 0x7f) << 20) * 0x1p120f;
  const uint32_t sign = (byte & 0x80) << 24;
  return __uint_as_float((byte & 0x7f) == 0x7f ? 0x7fc00000u : __float_as_uint(magnitude) | sign);
}

// What the sums of a stage of weights of a byte are multiplied by: channel's, and channel + 8's.
template <Dtype kWeight>
DSV4_DEVICE void fuse_scales(float (&scale)[2], const FuseView& v, int side, int channel, int k) {
  const FuseSide& s = v.side[side];
  if (kWeight == kI8) {
    const float* scales = static_cast<const float*>(s.scale);
    scale[0] = channel < v.d ? scales[channel] : 0.f;
    scale[1] = channel + 8 < v.d ? scales[channel + 8] : 0.f;
  } else {
    const int64_t block = channel < v.d ? channel / 128 * s.scale_n + k / 128 : 0;
    scale[0] = scale[1] = e8m0(static_cast<const uint8_t*>(s.scale)[block]);
  }
}

// The inverse rms of every row, a warp each, for kernels whose blocks would otherwise all do so; zeroes the
// tickets.
constexpr int kRmsThreads = 256;
template <class X>
__global__ void __launch_bounds__(kRmsThreads) fuse_rms_kernel(FuseView v, int tickets) {
  if (blockIdx.x == 0)
    for (int i = threadIdx.x; i < tickets; i += kRmsThreads) v.tickets[i] = 0;
  const int64_t row = static_cast<int64_t>(blockIdx.x) * (kRmsThreads / kWarp) + threadIdx.x / kWarp;
  if (row >= v.T + (v.T << v.hc_log2)) return;
  const int side = row >= v.T;
  const float q = fuse_inverse_rms<X>(v, side, side ? row - v.T : row);
  if (threadIdx.x % kWarp == 0) v.inverse_rms[row] = q;
}

}  // namespace dsv4::cuda
