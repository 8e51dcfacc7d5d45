// SPDX-License-Identifier: Apache-2.0
// The second launch of mhc_pre, mhc_post_pre and mhc_head. From the partial sums of mhc_project.cuh: the columns
// m = (fn . x) / rms(x); then, in blocks of their own that run side by side,
//   a block a token: its weights, y = sum_i w[i] * x[i] rounded to the stream dtype, and the norm if there is one;
//   a block for every eight tokens: post, and comb by Sinkhorn in the registers of one thread a token.
// The rows are loaded before the partial sums are waited for. Sums over coarse slices are taken eight at a time, in
// order, then over the eights in order, whatever the number of threads or tokens.
#pragma once
#include "mhc_project.cuh"

namespace dsv4::cuda::mhc {

constexpr int kGroup = 8;          // coarse slices that are summed first
constexpr int kTokens = 8;         // of a block of coefficients
constexpr int kEach = 2;           // vectors of eight channels that a thread keeps in registers
constexpr int kMaxThreads = 512;

struct Finish {
  const float* partial;            // [tokens of this launch, slices, slot]
  int slices, groups;
  bool fine;                       // the slices are fine ones: two make a coarse one
  int64_t first, tokens, d, blocks;  // `blocks` of coefficients, then one block a token
  const void *residual, *norm;     // norm: nullptr for none
  int64_t residual_t, residual_i;
  const float *base, *scale;
  void* y;
  float *post, *comb;
  int64_t y_t, post_t, comb_t, comb_i;
  float rms_eps, hc_eps;
  int iters;
  bool vector, norm_bf16, norm_vector;
};

DSV4_DEVICE float sigmoid(float x) { return 1.f / (1.f + expf(-x)); }
DSV4_DEVICE float inverse_rms(float squares, int64_t n, float eps) {
  return 1.f / sqrtf(squares / static_cast<float>(n) + eps);
}

// The sum of group `group` of a token's slices, from the first slice's slot plus the column.
template <int SLOT>
DSV4_DEVICE float group_sum(const float* p, int group, const Finish& v) {
  const int per = v.fine ? 2 : 1, begin = group * kGroup * per;
  p += static_cast<int64_t>(begin) * SLOT;
  float part[kGroup];
#pragma unroll
  for (int i = 0; i < kGroup; ++i) {
    const int slice = begin + i * per;
    const float a = slice < v.slices ? p[i * per * SLOT] : 0.f;
    const float b = v.fine && slice + 1 < v.slices ? p[(i * per + 1) * SLOT] : 0.f;
    part[i] = a + b;
  }
  float sum = part[0];
#pragma unroll
  for (int i = 1; i < kGroup; ++i) sum += part[i];
  return sum;
}

// c: the logits, then comb. Softmax over the second index is the first row step; the last step is a column step.
template <int HC>
DSV4_DEVICE void sinkhorn(float (&c)[HC][HC], float eps, int iters) {
#pragma unroll
  for (int i = 0; i < HC; ++i) {
    float top = c[i][0], sum = 0;
#pragma unroll
    for (int j = 1; j < HC; ++j) top = fmaxf(top, c[i][j]);
#pragma unroll
    for (int j = 0; j < HC; ++j) sum += c[i][j] = expf(c[i][j] - top);
#pragma unroll
    for (int j = 0; j < HC; ++j) c[i][j] = c[i][j] / sum + eps;
  }
  for (int n = 0; n < iters; ++n) {
#pragma unroll
    for (int i = 0; i < HC; ++i) {
      if (n == 0) break;
      float sum = eps;
#pragma unroll
      for (int j = 0; j < HC; ++j) sum += c[i][j];
      const float r = 1.f / sum;
#pragma unroll
      for (int j = 0; j < HC; ++j) c[i][j] *= r;
    }
#pragma unroll
    for (int j = 0; j < HC; ++j) {
      float sum = eps;
#pragma unroll
      for (int i = 0; i < HC; ++i) sum += c[i][j];
      const float r = 1.f / sum;
#pragma unroll
      for (int i = 0; i < HC; ++i) c[i][j] *= r;
    }
  }
}

// post and comb of kTokens tokens. smem: [token][group][slot], [token][slot], [token][post, comb]
template <int HC>
DSV4_DEVICE void coefficients(float* smem, const Finish& v, int64_t token0) {
  constexpr int kColumns = (2 + HC) * HC, kSlot = kSlotOf<kColumns>, kOut = HC + HC * HC;
  const int tokens = static_cast<int>(min(static_cast<int64_t>(kTokens), v.tokens - token0));
  float *totals = smem + kTokens * v.groups * kSlot, *out = totals + kTokens * kSlot;
  for (int i = threadIdx.x; i < tokens * v.groups * kSlot; i += blockDim.x) {
    const int c = i % kSlot, group = i / kSlot % v.groups, token = i / kSlot / v.groups;
    if (c <= kColumns)
      smem[i] = group_sum<kSlot>(v.partial + (token0 + token) * v.slices * kSlot + c, group, v);
  }
  __syncthreads();
  for (int i = threadIdx.x; i < tokens * kSlot; i += blockDim.x) {
    if (i % kSlot > kColumns) continue;
    const float* p = smem + i / kSlot * v.groups * kSlot + i % kSlot;
    float sum = 0;
    for (int group = 0; group < v.groups; ++group) sum += p[group * kSlot];
    totals[i] = sum;
  }
  __syncthreads();
  if (threadIdx.x >= kWarp) return;
  if (static_cast<int>(threadIdx.x) < tokens) {
    const float* m = totals + threadIdx.x * kSlot + 1;  // not yet divided by rms(x)
    const float q = inverse_rms(m[-1], HC * v.d, v.rms_eps);
    float* mine = out + threadIdx.x * kOut;
    float c[HC][HC];
#pragma unroll
    for (int i = 0; i < HC; ++i) {
      mine[i] = 2.f * sigmoid(m[HC + i] * q * v.scale[1] + v.base[HC + i]);
#pragma unroll
      for (int j = 0; j < HC; ++j) {
        const int column = 2 * HC + i * HC + j;
        c[i][j] = m[column] * q * v.scale[2] + v.base[column];
      }
    }
    sinkhorn<HC>(c, v.hc_eps, v.iters);
#pragma unroll
    for (int i = 0; i < HC * HC; ++i) mine[HC + i] = c[i / HC][i % HC];
  }
  __syncwarp();
  for (int i = threadIdx.x; i < tokens * HC; i += kWarp)
    v.post[(v.first + token0 + i / HC) * v.post_t + i % HC] = out[i / HC * kOut + i % HC];
  for (int i = threadIdx.x; i < tokens * HC * HC; i += kWarp) {
    const int e = i % (HC * HC);
    v.comb[(v.first + token0 + i / (HC * HC)) * v.comb_t + e / HC * v.comb_i + e % HC] = out[i / (HC * HC) * kOut + HC + e];
  }
}

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

// y of one token. smem: [group][8], weights [4], a sum of each warp. Channels past those that fit the registers
// (d > 8192) are read here for the first time, and their y is read back from memory for the norm.
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
  join_token<T, HC, kSlotOf<HEAD ? HC : (2 + HC) * HC>>(smem, v, blockIdx.x - v.blocks);
}

}  // namespace dsv4::cuda::mhc
