/* SPDX-License-Identifier: Apache-2.0
 *
 * Dense products of the model's layers for few rows, with what stands before or behind them.
 */
#ifndef DSV4SPEC_DENSE_H_
#define DSV4SPEC_DENSE_H_

#include "types.h"

#ifdef __cplusplus
extern "C" {
#endif

/* linear: y = x W with W [in, out], block-diagonal in `groups` equal blocks
 *   out[t, g*N + n] = sum_k x'[t, g*K + k] * w[g*K + k, n]
 * x' is x, or with norm_weight its RMSNorm over the whole row, x * norm_weight / sqrt(mean(x^2) + eps), rounded to
 * the dtype of x. fp32 products and sums; a result's bits do not depend on the other rows or columns of the call. One
 * rounding to the dtype of out, which is the wider one of x and w. */
typedef struct dsv4_linear_args {
  uint64_t struct_size;
  const DLTensor* x;           /* [T, G*K]  f32 | bf16 */
  const DLTensor* w;           /* [G*K, N]  f32 | bf16 */
  const DLTensor* norm_weight; /* [G*K]  f32 | bf16; may be NULL */
  const DLTensor* out;         /* [T, G*N]  f32 if x or w is, else bf16; written */
  int64_t groups;              /* >= 1, G */
  double eps;                  /* >= 0, finite; of the RMSNorm */
  void* workspace;
  uint64_t workspace_size; /* of dsv4_linear_workspace_size */
} dsv4_linear_args;
DSV4_API dsv4_status dsv4_linear(const dsv4_linear_args* args, dsv4_stream stream);
DSV4_API dsv4_status dsv4_linear_workspace_size(const dsv4_linear_args* args, uint64_t* bytes);

/* route_experts: the router of one MoE layer
 *   score[t,e] = sqrt(log(1 + exp(sum_i x[t,i] * gate[i,e])))      fp32
 * Row t chooses the k experts of highest score + bias (equal: the lower number first; a NaN counts as the largest; in
 * falling order), or with a hash table those in row ids[t] of it. With S the sum of the chosen scores:
 *   topk_weights[t,i] = score[t, topk_ids[t,i]] * scaling / (S + 1e-20) */
typedef struct dsv4_route_experts_args {
  uint64_t struct_size;
  const DLTensor* x;            /* [T, d]  f32 | bf16 */
  const DLTensor* gate;         /* [d, E]  f32 | bf16 */
  const DLTensor* bias;         /* [E]  f32; NULL exactly if there is a table */
  const DLTensor* table;        /* [V, k]  i32 | i64, experts of each token; NULL together with ids */
  const DLTensor* ids;          /* [T]  i32 | i64, rows of the table */
  const DLTensor* topk_ids;     /* [T, k]  i32; written; k <= E */
  const DLTensor* topk_weights; /* [T, k]  f32; written */
  double scaling;               /* > 0, finite */
  void* workspace;
  uint64_t workspace_size; /* of dsv4_route_experts_workspace_size */
} dsv4_route_experts_args;
DSV4_API dsv4_status dsv4_route_experts(const dsv4_route_experts_args* args, dsv4_stream stream);
DSV4_API dsv4_status dsv4_route_experts_workspace_size(const dsv4_route_experts_args* args, uint64_t* bytes);

#ifdef __cplusplus
}
#endif
#endif /* DSV4SPEC_DENSE_H_ */
