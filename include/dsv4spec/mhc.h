/* SPDX-License-Identifier: Apache-2.0
 *
 * mHC (manifold hyper-connections) and the NextN input fusion.
 * R is the residual stream [T, hc, d], stream-major: element i*d + j of a row is stream i, channel j.
 */
#ifndef DSV4SPEC_MHC_H_
#define DSV4SPEC_MHC_H_

#include "types.h"

#ifdef __cplusplus
extern "C" {
#endif

/* Sizes of every op here unless it says otherwise: T >= 0, hc 1, 2 or 4, d a multiple of 8 from 8 to 32768. The
 * stream dtype is f32, bf16 or (where the backend's kernel takes it) f16; arithmetic is fp32. T = 0 writes nothing.
 * A row's result depends on that row (and the weights) alone, to the bit; NaN and infinity in a row stay in it.
 *
 * rmsnorm(v, w, eps) = v / sqrt(mean(v^2) + eps) * w over d values, fp32, rounded once to the stream dtype. */

/* nextn_fuse_hidden: the input of the NextN (MTP) layer, from the embedding of the next token and the hidden streams.
 *   e = rmsnorm(embeds[t], enorm_weight, eps);   h[i] = rmsnorm(hidden[t, i*d .. i*d+d), hnorm_weight, eps)
 *   out[t,i,n] = sum_k e[k] * We[n,k] + sum_k h[i][k] * Wh[n,k]
 * e and h are rounded to the dtype of embeds before the products; products and sums are fp32; the two sums are added
 * in fp32 and rounded once. Weights, both projections alike:
 *   f32 | bf16     scales NULL
 *   f8 e4m3        W = w[n,k] * 2^(s[n/128, k/128] - 127), s the E8M0 byte: 0 = 2^-127, 255 = NaN
 *   i8             W = w[n,k] * s[n], per output channel (weight only: activations are not quantised)
 * hidden is [T, hc*d]: another width than d, 2d or 4d, or one that disagrees with out, is refused. */
typedef struct dsv4_nextn_fuse_hidden_args {
  uint64_t struct_size;
  const DLTensor* embeds;       /* [T, d]    f32 | bf16 | f16 */
  const DLTensor* hidden;       /* [T, hc*d] as embeds; stream-major */
  const DLTensor* enorm_weight; /* [d]       f32 | bf16 */
  const DLTensor* hnorm_weight; /* [d]       f32 | bf16 */
  const DLTensor* e_proj;       /* [d, d]    f32 | bf16 | f16 | f8 e4m3 | i8; [out, in] */
  const DLTensor* h_proj;       /* [d, d]    as e_proj */
  const DLTensor* e_proj_scale; /* e4m3: [ceil(d/128), ceil(d/128)] e8m0 | u8; i8: [d] f32; else NULL */
  const DLTensor* h_proj_scale; /* as e_proj_scale */
  const DLTensor* out;          /* [T, hc, d] as embeds; written */
  double eps;                   /* [0, 1) */
  void* workspace;
  uint64_t workspace_size;
} dsv4_nextn_fuse_hidden_args;
DSV4_API dsv4_status dsv4_nextn_fuse_hidden(const dsv4_nextn_fuse_hidden_args* args, dsv4_stream stream);
DSV4_API dsv4_status dsv4_nextn_fuse_hidden_workspace_size(const dsv4_nextn_fuse_hidden_args* args, uint64_t* bytes);

/* mhc_pre: opens a sub-layer: its input y, and the coefficients of the closing mix. With x = residual[t] flattened
 * to hc*d values and m = (fn . x) / sqrt(mean(x^2) + rms_eps), split into hc | hc | hc*hc columns:
 *   pre  = sigmoid(m * scale[0] + base) + hc_eps
 *   post = 2 * sigmoid(m * scale[1] + base)
 *   comb = softmax over the second index of (m * scale[2] + base) + hc_eps, row-major [hc, hc]; then Sinkhorn:
 *          divide by (column sums + hc_eps), then sinkhorn_iters - 1 times by (row sums + hc_eps) and again by
 *          (column sums + hc_eps). A column sum runs over the first index; the last step is a column step.
 *   y    = sum_i pre[i] * residual[t,i], rounded to the stream dtype
 * and, if norm_weight is given, y = rmsnorm(y, norm_weight, rms_eps) of that rounded y. */
typedef struct dsv4_mhc_pre_args {
  uint64_t struct_size;
  const DLTensor* residual;    /* [T, hc, d]            f32 | bf16 | f16 */
  const DLTensor* fn;          /* [(2 + hc)*hc, hc*d]   f32 */
  const DLTensor* base;        /* [(2 + hc)*hc]         f32 */
  const DLTensor* scale;       /* [3]                   f32 */
  const DLTensor* norm_weight; /* [d] f32 | bf16, or NULL: no norm */
  const DLTensor* y;           /* [T, d]                as residual; written */
  const DLTensor* post;        /* [T, hc]               f32; written */
  const DLTensor* comb;        /* [T, hc, hc]           f32; written */
  double rms_eps;              /* [0, 1) */
  double hc_eps;               /* [0, 1) */
  int64_t sinkhorn_iters;      /* 1..1000 */
  void* workspace;
  uint64_t workspace_size;
} dsv4_mhc_pre_args;
DSV4_API dsv4_status dsv4_mhc_pre(const dsv4_mhc_pre_args* args, dsv4_stream stream);
DSV4_API dsv4_status dsv4_mhc_pre_workspace_size(const dsv4_mhc_pre_args* args, uint64_t* bytes);

/* mhc_post: closes a sub-layer.
 *   out[t,i,:] = post[t,i] * y[t,:] + sum_j comb[t,j,i] * residual[t,j,:]     (first index of comb is summed)
 * fp32 arithmetic, one rounding to the stream dtype. Any d >= 0. */
typedef struct dsv4_mhc_post_args {
  uint64_t struct_size;
  const DLTensor* y;        /* [T, d]      f32 | bf16 | f16 */
  const DLTensor* residual; /* [T, hc, d]  as y */
  const DLTensor* post;     /* [T, hc]     f32 */
  const DLTensor* comb;     /* [T, hc, hc] f32 */
  const DLTensor* out;      /* [T, hc, d]  as y; written; may be `residual` itself */
} dsv4_mhc_post_args;
DSV4_API dsv4_status dsv4_mhc_post(const dsv4_mhc_post_args* args, dsv4_stream stream);

/* mhc_post_pre: the boundary of two sub-layers in one pass: mhc_post of the one that ends, then mhc_pre of the one
 * that starts, on residual_out as rounded to the stream dtype. */
typedef struct dsv4_mhc_post_pre_args {
  uint64_t struct_size;
  const DLTensor* y;            /* [T, d]              f32 | bf16 | f16; output of the sub-layer that ends */
  const DLTensor* residual;     /* [T, hc, d]          as y */
  const DLTensor* post;         /* [T, hc]             f32 */
  const DLTensor* comb;         /* [T, hc, hc]         f32 */
  const DLTensor* fn;           /* [(2 + hc)*hc, hc*d] f32; this and the next three of the sub-layer that starts */
  const DLTensor* base;         /* [(2 + hc)*hc]       f32 */
  const DLTensor* scale;        /* [3]                 f32 */
  const DLTensor* norm_weight;  /* [d] f32 | bf16, or NULL: no norm */
  const DLTensor* residual_out; /* [T, hc, d]          as y; written; may be `residual` itself */
  const DLTensor* y_out;        /* [T, d]              as y; written */
  const DLTensor* post_out;     /* [T, hc]             f32; written */
  const DLTensor* comb_out;     /* [T, hc, hc]         f32; written */
  double rms_eps;               /* [0, 1) */
  double hc_eps;                /* [0, 1) */
  int64_t sinkhorn_iters;       /* 1..1000 */
  void* workspace;
  uint64_t workspace_size;
} dsv4_mhc_post_pre_args;
DSV4_API dsv4_status dsv4_mhc_post_pre(const dsv4_mhc_post_pre_args* args, dsv4_stream stream);
DSV4_API dsv4_status dsv4_mhc_post_pre_workspace_size(const dsv4_mhc_post_pre_args* args, uint64_t* bytes);

/* mhc_head: joins the streams after the last layer (no post, comb or Sinkhorn), m as in mhc_pre:
 *   w = sigmoid(m * scale[0] + base) + hc_eps;   y = sum_i w[i] * residual[t,i], rounded to the stream dtype
 * and, if norm_weight is given, y = rmsnorm(y, norm_weight, rms_eps) of that rounded y. */
typedef struct dsv4_mhc_head_args {
  uint64_t struct_size;
  const DLTensor* residual;    /* [T, hc, d]  f32 | bf16 | f16 */
  const DLTensor* fn;          /* [hc, hc*d]  f32 */
  const DLTensor* base;        /* [hc]        f32 */
  const DLTensor* scale;       /* [1]         f32 */
  const DLTensor* norm_weight; /* [d] f32 | bf16, or NULL: no norm */
  const DLTensor* y;           /* [T, d]      as residual; written */
  double rms_eps;              /* [0, 1) */
  double hc_eps;               /* [0, 1) */
  void* workspace;
  uint64_t workspace_size;
} dsv4_mhc_head_args;
DSV4_API dsv4_status dsv4_mhc_head(const dsv4_mhc_head_args* args, dsv4_stream stream);
DSV4_API dsv4_status dsv4_mhc_head_workspace_size(const dsv4_mhc_head_args* args, uint64_t* bytes);

#ifdef __cplusplus
}
#endif
#endif /* DSV4SPEC_MHC_H_ */
