/* SPDX-License-Identifier: Apache-2.0
 *
 * Sliding-window attention with one shared K = V vector per token (DeepSeek-V4's window-only layers and NextN).
 *
 * Head size D: a multiple of 16 from 32 to 512. cos_sin [max_pos, R]: fp32, columns [0, R/2) cos, [R/2, R) sin;
 * R is even, 2 <= R <= D. Rotated dims are the trailing R of a head, pairs (2i, 2i+1):
 *   (a, b) at position p becomes (a cos - b sin, a sin + b cos) with entry i of row p; the inverse has -sin.
 * All arithmetic is fp32 with one rounding to the output dtype, with one exception: for bf16 and f16, a backend may
 * round softmax weights to that dtype if it divides by the sum of the rounded ones (its matrix units do). A row's
 * result depends on that row alone: it is bit-equal in every batch, on every thread count.
 */
#ifndef DSV4SPEC_ATTENTION_H_
#define DSV4SPEC_ATTENTION_H_

#include "types.h"

#ifdef __cplusplus
extern "C" {
#endif

/* q_norm_rope: per-head RMS without weight, then RoPE.
 *   out[t,h,:] = rope(q[t,h,:] / sqrt(mean(q[t,h,:]^2) + eps), positions[t])
 * Position -1 is padding: the row is not read; zero_padding says what happens to its output.
 * Any other position outside [0, max_pos) is refused by the CPU; devices treat it as -1. */
typedef struct dsv4_q_norm_rope_args {
  uint64_t struct_size;
  const DLTensor* q;         /* [T, H, D]    f32 | bf16 | f16; may be a slice of a fused projection */
  const DLTensor* cos_sin;   /* [max_pos, R] f32 */
  const DLTensor* positions; /* [T]          i64 */
  const DLTensor* out;       /* [T, H, D]    as q; written; may be `q` itself */
  double eps;                /* >= 0, finite */
  int64_t zero_padding;      /* 1: padding rows of out are zeroed, 0: left as they are */
} dsv4_q_norm_rope_args;
DSV4_API dsv4_status dsv4_q_norm_rope(const dsv4_q_norm_rope_args* args, dsv4_stream stream);

/* swa_store_kv: weighted RMS, then RoPE, then the store into the paged cache.
 *   kv_pages[slot / page, slot % page, :] = rope(kv[t,:] / sqrt(mean(kv[t,:]^2) + eps) * weight, positions[t])
 * Slot -1 is padding: neither the row nor its position is read, nothing is written. Slots of one call are distinct
 * (else it is open which row is kept). The CPU refuses, before any write, a slot outside [-1, P*page) and a
 * position outside [0, max_pos) of a stored row; devices skip such rows. */
typedef struct dsv4_swa_store_kv_args {
  uint64_t struct_size;
  const DLTensor* kv;             /* [T, D]        f32 | bf16 | f16; may be a slice of a fused projection */
  const DLTensor* kv_norm_weight; /* [D]           f32 | bf16 */
  const DLTensor* cos_sin;        /* [max_pos, R]  f32 */
  const DLTensor* positions;      /* [T]           i64 */
  const DLTensor* slots;          /* [T]           i64 */
  const DLTensor* kv_pages;       /* [P, page, D]  as kv (no conversion on the way); written; page: multiple of 4 */
  double eps;                     /* >= 0, finite */
} dsv4_swa_store_kv_args;
DSV4_API dsv4_status dsv4_swa_store_kv(const dsv4_swa_store_kv_args* args, dsv4_stream stream);

/* swa_paged_attention: decode, verify, extend and prefill over the paged window cache.
 * Request b owns query rows query_start_loc[b] .. query_start_loc[b+1]-1, `rows` of them; seq_lens[b] counts its
 * keys, the query rows' own included (they are in the cache already). s = seq_lens[b] - rows.
 *   Row j is at p_j = s + j and sees keys max(0, p_j-window+1) .. p_j.
 *   With tree_mask every request has n rows and row j is at p_j = s + popcount(mask row j) - 1; node i's key lies at
 *   logical position s + i. Row j sees keys max(0, p_j-window+1) .. s-1 and the nodes i with mask[b,j,i] and
 *   p_j - p_i < window.
 *   x_k = scale * q . K_k,  out = sum_k exp(x_k) K_k / (exp(sink) + sum_k exp(x_k))
 * The sink logit (per head, not scaled) joins the denominator only: -inf switches it off, +inf gives output 0.
 * No visible key: output 0. With cos_sin the inverse RoPE at p_j is applied to the output before it is rounded.
 * The key at logical position x is kv_pages[block_table[b, x / page], x % page]. Only table entries of visible keys
 * (with a tree: of all nodes too) are read, so entries below the window may be -1, and cost does not depend on the
 * context length.
 * Padding: requests with seq_lens 0, whatever their rows, and rows from query_start_loc[B] on. Nothing of them is
 * read; zero_padding says what happens to their output. NaN in keys or rows that a row does not see never reach it.
 * Devices take a score that is not finite as NaN: infinity in a query, or in a key that it sees, makes its head NaN.
 * The CPU takes any number of rows a request (the common guarantee of all backends is 1..64) and refuses, before
 * any write: query_start_loc that does not rise from 0 to at most T, seq_lens < rows, a needed page outside
 * [0, P) or beyond the table, a position beyond cos_sin. Devices treat a key without a page as not
 * visible, a request with seq_lens < rows as padding, and a position beyond cos_sin as its last. */
typedef struct dsv4_swa_paged_attention_args {
  uint64_t struct_size;
  const DLTensor* q;               /* [T, H, D]    f32 | bf16 | f16 */
  const DLTensor* kv_pages;        /* [P, page, D] as q; page: multiple of 4 */
  const DLTensor* block_table;     /* [B, maxp]    i32 | i64 */
  const DLTensor* query_start_loc; /* [B + 1]      i32 | i64 */
  const DLTensor* seq_lens;        /* [B]          i32 | i64 */
  const DLTensor* sink;            /* [H]          f32; NULL: none */
  const DLTensor* tree_mask;       /* [B, n, n]    bool; NULL: rows follow each other */
  const DLTensor* cos_sin;         /* [max_pos, R] f32; NULL: no inverse RoPE */
  const DLTensor* out;             /* [T, H, D]    as q; written */
  int64_t window;                  /* >= 1, the query's own key included */
  double scale;                    /* finite */
  int64_t zero_padding;            /* 1: padding rows of out are zeroed, 0: left as they are */
  void* workspace;
  uint64_t workspace_size;
} dsv4_swa_paged_attention_args;
DSV4_API dsv4_status dsv4_swa_paged_attention(const dsv4_swa_paged_attention_args* args, dsv4_stream stream);
DSV4_API dsv4_status dsv4_swa_paged_attention_workspace_size(const dsv4_swa_paged_attention_args* args, uint64_t* bytes);

#ifdef __cplusplus
}
#endif
#endif /* DSV4SPEC_ATTENTION_H_ */
