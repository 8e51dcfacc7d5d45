// SPDX-License-Identifier: Apache-2.0
// Eight neighbouring channels as they stand in memory, and the closing mix of mhc_post and mhc_post_pre on them:
//   out[i] = post[i] * y + sum_j comb[j,i] * residual[j]
// Both ops add in this order, so that the fused op gives the bits of the two single ones.
#pragma once
#include "kernel.cuh"

namespace dsv4::cuda::mhc {

// Loaded as they are, so that many loads are in flight before the first is unpacked.
template <class T>
struct Raw8;
template <>
struct Raw8<bf16> {
  uint4 v;
};
template <>
struct Raw8<float> {
  float4 low, high;
};
DSV4_DEVICE void load_raw(Raw8<bf16>& r, const bf16* p, bool vector) {
  if (vector) {
    r.v = *reinterpret_cast<const uint4*>(p);
    return;
  }
  uint32_t pair[4];
#pragma unroll
  for (int i = 0; i < 4; ++i)
    pair[i] = __bfloat16_as_ushort(p[2 * i]) | static_cast<uint32_t>(__bfloat16_as_ushort(p[2 * i + 1])) << 16;
  r.v = make_uint4(pair[0], pair[1], pair[2], pair[3]);
}
DSV4_DEVICE void load_raw(Raw8<float>& r, const float* p, bool vector) {
  if (vector) {
    r.low = *reinterpret_cast<const float4*>(p);
    r.high = *reinterpret_cast<const float4*>(p + 4);
    return;
  }
  r.low = make_float4(p[0], p[1], p[2], p[3]);
  r.high = make_float4(p[4], p[5], p[6], p[7]);
}
DSV4_DEVICE void store_raw(bf16* p, const Raw8<bf16>& r, bool vector) {
  if (vector) {
    store_global16(p, r.v);
    return;
  }
  const uint32_t pair[4] = {r.v.x, r.v.y, r.v.z, r.v.w};
#pragma unroll
  for (int i = 0; i < 8; ++i) p[i] = __ushort_as_bfloat16(static_cast<unsigned short>(pair[i / 2] >> i % 2 * 16));
}
DSV4_DEVICE void store_raw(float* p, const Raw8<float>& r, bool vector) {
  if (vector) {
    *reinterpret_cast<float4*>(p) = r.low;
    *reinterpret_cast<float4*>(p + 4) = r.high;
    return;
  }
  p[0] = r.low.x, p[1] = r.low.y, p[2] = r.low.z, p[3] = r.low.w;
  p[4] = r.high.x, p[5] = r.high.y, p[6] = r.high.z, p[7] = r.high.w;
}
DSV4_DEVICE void unpack(float (&x)[8], const Raw8<bf16>& r) { unpack8(x, r.v); }
DSV4_DEVICE void unpack(float (&x)[8], const Raw8<float>& r) {
  x[0] = r.low.x, x[1] = r.low.y, x[2] = r.low.z, x[3] = r.low.w;
  x[4] = r.high.x, x[5] = r.high.y, x[6] = r.high.z, x[7] = r.high.w;
}
// Rounded to T.
DSV4_DEVICE void pack(Raw8<bf16>& r, const float (&x)[8]) {
  r.v = make_uint4(pack_bf16(x[0], x[1]), pack_bf16(x[2], x[3]), pack_bf16(x[4], x[5]), pack_bf16(x[6], x[7]));
}
DSV4_DEVICE void pack(Raw8<float>& r, const float (&x)[8]) {
  r.low = make_float4(x[0], x[1], x[2], x[3]);
  r.high = make_float4(x[4], x[5], x[6], x[7]);
}

template <int HC>
DSV4_DEVICE void mix_open(float (&out)[HC][8], const float* post, const float (&y)[8]) {
#pragma unroll
  for (int i = 0; i < HC; ++i)
#pragma unroll
    for (int c = 0; c < 8; ++c) out[i][c] = post[i] * y[c];
}

// Adds stream j; `comb` is row j of the coefficients.
template <int HC>
DSV4_DEVICE void mix_add(float (&out)[HC][8], const float* comb, const float (&residual)[8]) {
#pragma unroll
  for (int i = 0; i < HC; ++i)
#pragma unroll
    for (int c = 0; c < 8; ++c) out[i][c] = fmaf(comb[i], residual[c], out[i][c]);
}

}  // namespace dsv4::cuda::mhc
