// SPDX-License-Identifier: Apache-2.0
// The coefficients that mhc_pre and mhc_post_pre write, from the partial sums of mhc_project.cuh: eight
// tokens a block, Sinkhorn in the registers of one thread a token. Sums over coarse slices are taken eight at
// a time, in order, then over the eights in order, whatever the number of threads or tokens.
#pragma once
#include "mhc_project.cuh"

namespace dsv4::cuda::mhc {

constexpr int kGroup = 8;          // coarse slices that are summed first
constexpr int kTokens = 8;         // of a block of coefficients

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

// c: the logits, then comb. Softmax over the second index is the first row step; the last step is a column
// step.
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

// post, then comb, of a token whose sums of squares and columns are `total`.
template <int HC>
DSV4_DEVICE void coefficients_of(float* out, const float* total, const Finish& v) {
  const float* m = total + 1;  // not yet divided by rms(x)
  const float q = inverse_rms(total[0], HC * v.d, v.rms_eps);
  float c[HC][HC];
#pragma unroll
  for (int i = 0; i < HC; ++i) {
    out[i] = 2.f * sigmoid(m[HC + i] * q * v.scale[1] + v.base[HC + i]);
#pragma unroll
    for (int j = 0; j < HC; ++j) {
      const int column = 2 * HC + i * HC + j;
      c[i][j] = m[column] * q * v.scale[2] + v.base[column];
    }
  }
  sinkhorn<HC>(c, v.hc_eps, v.iters);
#pragma unroll
  for (int i = 0; i < HC * HC; ++i) out[HC + i] = c[i / HC][i % HC];
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
  if (static_cast<int>(threadIdx.x) < tokens)
    coefficients_of<HC>(out + threadIdx.x * kOut, totals + threadIdx.x * kSlot, v);
  __syncwarp();
  for (int i = threadIdx.x; i < tokens * HC; i += kWarp)
    v.post[(v.first + token0 + i / HC) * v.post_t + i % HC] = out[i / HC * kOut + i % HC];
  for (int i = threadIdx.x; i < tokens * HC * HC; i += kWarp) {
    const int e = i % (HC * HC);
    float* row = v.comb + (v.first + token0 + i / (HC * HC)) * v.comb_t;
    row[e / HC * v.comb_i + e % HC] = out[i / (HC * HC) * kOut + HC + e];
  }
}

}  // namespace dsv4::cuda::mhc
