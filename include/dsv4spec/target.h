/* SPDX-License-Identifier: Apache-2.0
 *
 * The Target's own ops: compressor, indexer, joint window + compressed attention, experts.
 *
 * Shared terms. Rows of a call are packed request-major: request b owns the rows query_start_loc[b] ..
 * query_start_loc[b+1]-1, n_b of them. s_b = seq_lens[b] - n_b is its committed length; its j-th row stands at
 * position s_b + j. A request with seq_lens[b] = 0 is padding whatever its row count: nothing of it is read or
 * written. So are the rows from query_start_loc[B] on. Lengths and tables are int32 or int64. ratio r: entry w of a
 * request is made of the group of positions r*w .. r*w + r-1 and is visible to positions p >= r*(w+1)-1, that is
 * while w < (p+1)/r (integer division).
 * Tables of compressed entries: entry w lies in page table[b, w / page] at offset w % page; a page of -1 is not
 * allocated, its entries are neither read nor visible.
 * A row's result depends on that row and what it sees alone: it is bit-equal in every batch, on every thread count.
 */
#ifndef DSV4SPEC_TARGET_H_
#define DSV4SPEC_TARGET_H_

#include "types.h"

#ifdef __cplusplus
extern "C" {
#endif

/* compress_kv: makes the compressed entries that this call completes, then keeps its rows for later calls.
 *   score[t] = gate[t] + ape[p_t % r]
 *   entry w  = RoPE(RMSNorm(sum_i a_i * kv_i) * norm_weight)     a = softmax of the scores over i, per channel
 * coff = 1: i runs over the r positions of group w. coff = 2 (overlap): i runs over 2r candidates, columns [0, D)
 * of the positions of group w-1, then columns [D, 2D) of those of group w; before position 0: kv 0, score -inf.
 * Rows of this call come from kv/gate, older ones from `state`, which is read BEFORE this call's rows replace
 * anything in it (so a rejected window needs no rollback as long as ring >= n + coff*r - 2 for every window n that
 * may be rejected). Then the last min(n_b, ring) rows of each request go to state[rows[b], p % ring]: kv in the
 * first coff*D columns, score (ape already added) in the rest. A cleared state is kv 0, score -inf.
 * Entries are numbered over the call in request order (for request b: w = s_b/r .. seq_lens[b]/r - 1); number m is
 * rotated at positions[m] (the group start r*w) and stored to slot locs[m] = page*page_size + offset of `pages`.
 * locs[m] = -1, and every m past the last entry: nothing is written. Entries past M are dropped.
 * fp32 arithmetic, one rounding to the dtype of pages. */
typedef struct dsv4_compress_kv_args {
  uint64_t struct_size;
  const DLTensor* kv;              /* [T, coff*D]  f32 */
  const DLTensor* gate;            /* [T, coff*D]  f32 */
  const DLTensor* ape;             /* [r, coff*D]  f32 */
  const DLTensor* norm_weight;     /* [D]  f32 | bf16; D a multiple of 8 up to 512 */
  const DLTensor* cos_sin;         /* [max_pos, R]  f32: R/2 cos, R/2 sin; interleaved pairs of the last R dims */
  const DLTensor* state;           /* [S, ring, 2*coff*D]  f32; written; ring >= coff*r */
  const DLTensor* rows;            /* [B]  i64: the request's row of state */
  const DLTensor* query_start_loc; /* [B+1]  i32 | i64; from 0 to at most T */
  const DLTensor* seq_lens;        /* [B]  i32 | i64 */
  const DLTensor* positions;       /* [M]  i64 */
  const DLTensor* locs;            /* [M]  i64 */
  const DLTensor* pages;           /* [P, page, D]  f32 | bf16; written */
  int64_t ratio;                   /* >= 2, r; kv has coff*D columns with coff 1 or 2 */
  double eps;                      /* > 0, finite; of the RMSNorm */
} dsv4_compress_kv_args;
DSV4_API dsv4_status dsv4_compress_kv(const dsv4_compress_kv_args* args, dsv4_stream stream);

/* lightning_index: the topk visible entries of highest score
 *   score(t, w) = sum_h weights[t,h] * max(0, RoPE(q[t,h]) . k_w)      fp32
 * A positive factor common to all weights of a row changes nothing and may be left out.
 * Entries come in ascending order of w, then -1 where fewer than topk are visible. Equal scores: the lower entry is
 * chosen first. A NaN score counts as the largest. Rows of padding requests: -1 throughout. */
typedef struct dsv4_lightning_index_args {
  uint64_t struct_size;
  const DLTensor* q;               /* [T, H, D]  f32 | bf16; D a multiple of 8 up to 512 */
  const DLTensor* weights;         /* [T, H]  f32 */
  const DLTensor* index_pages;     /* [P, page, D]  as q */
  const DLTensor* table;           /* [B, pages]  i32 | i64 */
  const DLTensor* query_start_loc; /* [B+1]  i32 | i64 */
  const DLTensor* seq_lens;        /* [B]  i32 | i64 */
  const DLTensor* cos_sin;         /* [max_pos, R]  f32: rotate the last R dims of q at p; NULL: q is rotated already */
  const DLTensor* out;             /* [T, topk]  i32; written */
  int64_t ratio;                   /* >= 2 */
  void* workspace;
  uint64_t workspace_size; /* of dsv4_lightning_index_workspace_size */
} dsv4_lightning_index_args;
DSV4_API dsv4_status dsv4_lightning_index(const dsv4_lightning_index_args* args, dsv4_stream stream);
DSV4_API dsv4_status dsv4_lightning_index_workspace_size(const dsv4_lightning_index_args* args, uint64_t* bytes);

/* sparse_paged_attention: one softmax over the window, the compressed entries and the sink.
 * Row at position p sees window keys max(0, p-window+1) .. p (block_table pages of -1: not seen), and of the
 * compressed entries w < (p+1)/ratio all of them (indices NULL) or those named in its row of `indices` (negative or
 * not visible: skipped; each entry at most once). Keys are the values too.
 *   out = sum_k e^(scale*q.k) * k / (sum_k e^(scale*q.k) + e^sink)      per head, fp32
 * The sink is not scaled. No key visible: 0. cos_sin given: the last R dims of `out` are rotated back (-sin) at p.
 * ratio 0 and 1 both mean "no compressed part": c_pages, c_table and indices are NULL then. Rows of padding
 * requests: 0 if zero_padding, else left alone. */
typedef struct dsv4_sparse_paged_attention_args {
  uint64_t struct_size;
  const DLTensor* q;               /* [T, H, D]  f32 | bf16, rotated; D a multiple of 16 from 32 to 512 */
  const DLTensor* kv_pages;        /* [P, page, D]  as q */
  const DLTensor* block_table;     /* [B, pages]  i32 | i64 */
  const DLTensor* c_pages;         /* [Pc, c_page, D]  as q; NULL exactly if ratio is 0 or 1 */
  const DLTensor* c_table;         /* [B, c_pages]  i32 | i64; NULL exactly if ratio is 0 or 1 */
  const DLTensor* query_start_loc; /* [B+1]  i32 | i64 */
  const DLTensor* seq_lens;        /* [B]  i32 | i64 */
  const DLTensor* indices;         /* [T, k]  i32; may be NULL */
  const DLTensor* sink;            /* [H]  f32; may be NULL */
  const DLTensor* cos_sin;         /* [max_pos, R]  f32; may be NULL */
  const DLTensor* out;             /* [T, H, D]  as q; written */
  int64_t window;                  /* >= 1 */
  double scale;                    /* finite */
  int64_t ratio;                   /* >= 0 */
  int64_t zero_padding;            /* 0..1 */
} dsv4_sparse_paged_attention_args;
DSV4_API dsv4_status dsv4_sparse_paged_attention(const dsv4_sparse_paged_attention_args* args, dsv4_stream stream);

/* moe_experts: routed and shared experts of one MoE layer.
 *   f(x; A, B) = B (silu(min(g, limit)) * clamp(u, -limit, limit))      [g; u] = A x, gate rows first
 *   out[t] = sum_i topk_weights[t,i] * f(x[t]; w13[e], w2[e]) + f(x[t]; shared_w13, shared_w2)   e = topk_ids[t,i]
 * fp32 accumulation, one rounding to the dtype of x. An id of -1 skips its expert; weights of experts that no row
 * chose are not read. */
typedef struct dsv4_moe_experts_args {
  uint64_t struct_size;
  const DLTensor* x;            /* [T, d]  f32 | bf16 */
  const DLTensor* topk_ids;     /* [T, k]  i32 | i64 */
  const DLTensor* topk_weights; /* [T, k]  f32 */
  const DLTensor* w13;          /* [E, 2*inter, d]  as x, or bf16 */
  const DLTensor* w2;           /* [E, d, inter]  as w13 */
  const DLTensor* shared_w13;   /* [2*shared_inter, d]  as w13; NULL together with shared_w2 */
  const DLTensor* shared_w2;    /* [d, shared_inter]  as w13 */
  const DLTensor* out;          /* [T, d]  as x; written */
  double limit;                 /* > 0; infinity: no clamp */
  void* workspace;
  uint64_t workspace_size; /* of dsv4_moe_experts_workspace_size */
} dsv4_moe_experts_args;
DSV4_API dsv4_status dsv4_moe_experts(const dsv4_moe_experts_args* args, dsv4_stream stream);
DSV4_API dsv4_status dsv4_moe_experts_workspace_size(const dsv4_moe_experts_args* args, uint64_t* bytes);

#ifdef __cplusplus
}
#endif
#endif /* DSV4SPEC_TARGET_H_ */
