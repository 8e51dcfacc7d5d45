// SPDX-License-Identifier: Apache-2.0
// The second launch of mhc_pre, mhc_post_pre and mhc_head. Blocks of two kinds run side by side: eight
// tokens' post and comb (mhc_sinkhorn.cuh), a chain of some 2 us whatever the number of tokens; and one
// token's weights, its y = sum_i w[i] * x[i] rounded to the stream dtype, and the norm if there is one. These
// load the row before they wait for the partial sums, keep it and y in registers, and read only the five sums
// a slice that they need.
#pragma once
#include "mhc_sinkhorn.cuh"

namespace dsv4::cuda::mhc {

constexpr int kEach = 2;           // vectors of eight channels that a thread keeps in registers
constexpr int kMaxThreads = 512;

template <class T, int HC>
struct Streams {
  Raw8<T> x[HC];
};
template <class T, int HC>
DSV4_DEVICE void load_streams(Streams<T, HC>& in, const T* row, const Finish& v) {
#pragma unroll
  for (int s = 0; s < HC; ++s) load_raw(in.x[s], row + s * v.residual_i, v.vector);
}
// Eight channels of y, rounded; adds their squares.
template <class T, int HC>
DSV4_DEVICE void join(Raw8<T>& y, const Streams<T, HC>& in, const float* weights, float& squares) {
  float sum[8], x[8];
  unpack(sum, in.x[0]);
#pragma unroll
  for (int c = 0; c < 8; ++c) sum[c] *= weights[0];
#pragma unroll
  for (int s = 1; s < HC; ++s) {
    unpack(x, in.x[s]);
#pragma unroll
    for (int c = 0; c < 8; ++c) sum[c] = fmaf(weights[s], x[c], sum[c]);
  }
  pack(y, sum);
  unpack(sum, y);
#pragma unroll
  for (int c = 0; c < 8; ++c) squares = fmaf(sum[c], sum[c], squares);
}
template <class T>
DSV4_DEVICE void scale_channels(Raw8<T>& y, float q, int64_t channel, const Finish& v) {
  float x[8], w[8];
  unpack(x, y);
  if (v.norm_bf16) load8_any(w, static_cast<const bf16*>(v.norm) + channel, v.norm_vector);
  else load8_any(w, static_cast<const float*>(v.norm) + channel, v.norm_vector);
#pragma unroll
  for (int c = 0; c < 8; ++c) x[c] = x[c] * q * w[c];
  pack(y, x);
}

// y of one token. smem: [group][8], weights [4], a sum of each warp. Channels past those that fit the
// registers (d > 8192) are read here for the first time, and their y is read back from memory for the norm.
template <class T, int HC, int SLOT>
DSV4_DEVICE void join_token(float* smem, const Finish& v, int64_t token) {
  float *weights = smem + v.groups * 8, *of_warp = weights + 4;
  const int64_t stride = static_cast<int64_t>(blockDim.x) * 8, channel0 = static_cast<int64_t>(threadIdx.x) * 8;
  const T* row = static_cast<const T*>(v.residual) + (v.first + token) * v.residual_t;
  T* out = static_cast<T*>(v.y) + (v.first + token) * v.y_t;
  Streams<T, HC> in[kEach];
  Raw8<T> y[kEach];
#pragma unroll
  for (int n = 0; n < kEach; ++n)
    if (channel0 + n * stride < v.d) load_streams(in[n], row + channel0 + n * stride, v);

  for (int i = threadIdx.x; i < v.groups * 8; i += blockDim.x)
    if (i % 8 <= HC) smem[i] = group_sum<SLOT>(v.partial + token * v.slices * SLOT + i % 8, i / 8, v);
  __syncthreads();
  if (threadIdx.x < kWarp) {
    float sum = 0;
    if (threadIdx.x <= HC)
      for (int group = 0; group < v.groups; ++group) sum += smem[group * 8 + threadIdx.x];
    const float q = inverse_rms(__shfl_sync(kAllLanes, sum, 0), HC * v.d, v.rms_eps);
    if (threadIdx.x >= 1 && threadIdx.x <= HC)
      weights[threadIdx.x - 1] = sigmoid(sum * q * v.scale[0] + v.base[threadIdx.x - 1]) + v.hc_eps;
  }
  __syncthreads();

  float w[HC], squares = 0;
#pragma unroll
  for (int s = 0; s < HC; ++s) w[s] = weights[s];
#pragma unroll
  for (int n = 0; n < kEach; ++n)
    if (channel0 + n * stride < v.d) join<T, HC>(y[n], in[n], w, squares);
  for (int64_t c = channel0 + kEach * stride; c < v.d; c += stride) {
    Raw8<T> more;
    load_streams(in[0], row + c, v);
    join<T, HC>(more, in[0], w, squares);
    store_raw(out + c, more, v.vector);
  }
  if (v.norm) {
    squares = warp_sum(squares);
    if (threadIdx.x % kWarp == 0) of_warp[threadIdx.x / kWarp] = squares;
    __syncthreads();
    float sum = 0;
    for (unsigned i = 0; i < blockDim.x / kWarp; ++i) sum += of_warp[i];
    const float q = inverse_rms(sum, v.d, v.rms_eps);
#pragma unroll
    for (int n = 0; n < kEach; ++n)
      if (channel0 + n * stride < v.d) scale_channels(y[n], q, channel0 + n * stride, v);
    for (int64_t c = channel0 + kEach * stride; c < v.d; c += stride) {
      Raw8<T> more;
      load_raw(more, out + c, v.vector);
      scale_channels(more, q, c, v);
      store_raw(out + c, more, v.vector);
    }
  }
#pragma unroll
  for (int n = 0; n < kEach; ++n)
    if (channel0 + n * stride < v.d) store_raw(out + channel0 + n * stride, y[n], v.vector);
}

template <class T, int HC, bool HEAD>
__global__ void __launch_bounds__(kMaxThreads) mhc_finish(Finish v) {
  DYN_SMEM(float, smem);
  if constexpr (!HEAD) {
    if (blockIdx.x < v.blocks) return coefficients<HC>(smem, v, static_cast<int64_t>(blockIdx.x) * kTokens);
  }
  // The last tokens first: of a long batch, those are what the first launch left in the L2.
  join_token<T, HC, kSlotOf<HEAD ? HC : (2 + HC) * HC>>(smem, v, v.blocks + v.tokens - 1 - blockIdx.x);
}

}  // namespace dsv4::cuda::mhc
