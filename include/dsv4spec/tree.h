/* SPDX-License-Identifier: Apache-2.0
 *
 * Draft trees. B requests, n nodes each (n = num_draft_tokens <= 256): node 0 is the root (the bonus token),
 * node i is the i-th chosen draft. k = topk. Draft candidates are numbered flat: step 0 gives 0..k-1;
 * candidate (a, c) of step i >= 1 (child c of kept candidate a) is k + k*k*(i-1) + a*k + c.
 */
#ifndef DSV4SPEC_TREE_H_
#define DSV4SPEC_TREE_H_

#include "types.h"

#ifdef __cplusplus
extern "C" {
#endif

/* select_draft_topk: one step of the draft beam.
 *   step 0 (M = B): all k candidates stay. scores_out = topk_p, parents = -1, 0, .., k-1,
 *     hidden_rows[b*k + c] = b.
 *   step i >= 1 (M = B*k): cand_scores[b,a,c] = scores[b,a] * topk_p[b*k + a, c] (one fp32 product); the k
 *     largest of the k*k survive, largest first; chosen index q = a*k + c gives parents = q + k*k*(i-1) + k
 *     and hidden_rows = b*k + a.
 * Equal scores: the lower index first. NaN counts as -inf in the order (its value stays NaN in the outputs).
 * The outputs must not overlap the inputs. */
typedef struct dsv4_select_draft_topk_args {
  uint64_t struct_size;
  const DLTensor* topk_p;      /* [M, k] f32 */
  const DLTensor* topk_index;  /* [M, k] i64, token ids */
  const DLTensor* scores;      /* [B, k] f32; NULL at step 0 */
  const DLTensor* input_ids;   /* [B*k] i64; written */
  const DLTensor* scores_out;  /* [B, k] f32; written */
  const DLTensor* parents;     /* step 0: [B, k+1], after: [B, k]; i64; written */
  const DLTensor* hidden_rows; /* [B*k] i64, rows of the last draft hidden state; written */
  const DLTensor* cand_scores; /* step 0: [B, 1, k], after: [B, k, k]; f32; written */
  const DLTensor* cand_tokens; /* step 0: [B, k], after: [B, k*k]; i64; written */
  int64_t step;                /* >= 0 */
} dsv4_select_draft_topk_args;
DSV4_API dsv4_status dsv4_select_draft_topk(const dsv4_select_draft_topk_args* args, dsv4_stream stream);

#define DSV4_TREE_MASK_FULL 0
#define DSV4_TREE_MASK_QLEN 1
#define DSV4_TREE_MASK_QLEN_BITS 2

/* build_tree: links, positions and mask of the chosen nodes; the bonus token becomes node 0.
 *   parent of node i: g = selected_index[i-1] / k. g = 0: the root; else the lowest node j, 1 <= j < i, for
 *     which selected_index[j-1] = parent_list[g].
 *   tokens[b] = bonus, drafts..   positions[b*n + i] = live[b] + depth(i)   retrieve_index[b,i] = b*n + i
 *   next_token[b,i] = lowest-numbered child, next_sibling[b,i] = next higher child of the same parent; -1 = none
 *   mask row i = node i and its ancestors.
 * A node for which that rule finds no parent (not selected, selected_index outside 0 .. k*width-1) is
 * reported, not walked: it gets no link to it, its mask row is root + itself, its depth 0. status[b] = 1 for
 * such a tree, else 0 (padding: 0). Without `status`, the CPU backend refuses the call, naming the request;
 * other backends go on.
 * Mask modes:
 *   FULL       bool, flat, >= n*sum(s) + n*n*B elements: request b starts at n*n*b + n*(s of earlier
 *              requests); each of its n rows is s prefix columns (written 1), then n tree columns. Too small:
 *              refused on the CPU; other backends never write past its end.
 *   QLEN       bool [B, n, n]
 *   QLEN_BITS  [B, n], n <= 32: bit c of row i = row i sees node c. u8 for n <= 8, u16 for n <= 16, else u32.
 * A padding request (live <= 0) is not read and its output rows are not written. */
typedef struct dsv4_build_tree_args {
  uint64_t struct_size;
  const DLTensor* bonus_tokens;   /* [B] i64 */
  const DLTensor* parent_list;    /* [B, k*(num_steps-1)+1] i64; [B, 0] or [B, 1] for num_steps <= 1 */
  const DLTensor* selected_index; /* [B, n-1] i64, flat candidate numbers, ascending */
  const DLTensor* draft_tokens;   /* [B, n-1] i64 */
  const DLTensor* live_seq_lens;  /* [B] i32 | i64; committed length s, <= 0: padding */
  const DLTensor* tokens;         /* [B, n] i64; written */
  const DLTensor* positions;      /* [B*n] i64; written */
  const DLTensor* retrieve_index; /* [B, n] i64; written */
  const DLTensor* next_token;     /* [B, n] i64; written */
  const DLTensor* next_sibling;   /* [B, n] i64; written */
  const DLTensor* tree_mask;      /* by mask_mode; contiguous; written */
  const DLTensor* status;         /* [B] i32 or NULL; written */
  int64_t topk;                   /* 1..256 */
  int64_t num_steps;              /* 0..256 */
  int64_t num_draft_tokens;       /* 1..min(256, 1 + k + (num_steps-1)*k*k), n; 1 for num_steps 0 */
  int64_t mask_mode;              /* DSV4_TREE_MASK_* */
} dsv4_build_tree_args;
DSV4_API dsv4_status dsv4_build_tree(const dsv4_build_tree_args* args, dsv4_stream stream);

/* verify_tree_greedy: from the root, at most num_steps times, go to the first child (in sibling order) whose
 * token is the target's argmax at the current node.
 *   predicts[retrieve_index[b,i]] = target_predict[b,i] for every visited node i (the last one's is the new
 *   bonus token), -1 for the others; accept_index[b] = retrieve_index of the visited nodes, then -1;
 *   accept_token_num[b] = accepted drafts (visited nodes - 1).
 * A negative candidate is never accepted. Links are -1 (none) or 1 .. n-1, each node is linked to at most
 * once, and retrieve_index[b,i] lies in b*n .. b*n+n-1: the CPU backend refuses anything else before it
 * writes; other backends end the walk at such a link, look at n-1 children at most, and give no predict to a
 * row outside the request. A row with next_token[b,0] = 0 is padding (what build_tree leaves of a padding
 * request in zeroed memory): not read further, its outputs are not written. */
typedef struct dsv4_verify_tree_greedy_args {
  uint64_t struct_size;
  const DLTensor* candidates;       /* [B, n] i64, token ids, n <= 256 */
  const DLTensor* retrieve_index;   /* [B, n] i64 */
  const DLTensor* next_token;       /* [B, n] i64 */
  const DLTensor* next_sibling;     /* [B, n] i64 */
  const DLTensor* target_predict;   /* [B, n] i64, argmax of the target at each node; below 2^31 */
  const DLTensor* predicts;         /* [B*n] i32; written */
  const DLTensor* accept_index;     /* [B, num_steps+1] i32; written */
  const DLTensor* accept_token_num; /* [B] i32; written */
  int64_t num_steps;                /* >= 0 */
} dsv4_verify_tree_greedy_args;
DSV4_API dsv4_status dsv4_verify_tree_greedy(const dsv4_verify_tree_greedy_args* args, dsv4_stream stream);

/* verify_tree_sampling: as verify_tree_greedy, with children accepted at random so that the output follows
 * the target's distribution. At the current node c, over its children in sibling order, with P =
 * target_probs[b, c]:
 *   p = P[token], then P[token] = 0 once the child is rejected;  acc += p;
 *   accept iff p > 0 and (coins[b,c] < acc / max(threshold_acc, 1e-9) or p >= threshold_single).
 * Accepting sets acc = 0 and goes on from the child with its own coin. At the last node the token is drawn
 * from P (rejected children removed): the first id whose prefix sum exceeds final_coins[b] * sum(P); none
 * (rounding): the last id with P > 0; no such id: V-1. Thresholds 1 are exact; below 1 they trade exactness
 * for length. target_probs is not changed.
 * A candidate outside 0 .. V-1 has p = 0. NaN probabilities count as 0. Padding, links and outputs as there. */
typedef struct dsv4_verify_tree_sampling_args {
  uint64_t struct_size;
  const DLTensor* candidates;       /* [B, n] i64, n <= 256 */
  const DLTensor* retrieve_index;   /* [B, n] i64 */
  const DLTensor* next_token;       /* [B, n] i64 */
  const DLTensor* next_sibling;     /* [B, n] i64 */
  const DLTensor* target_probs;     /* [B, n, V] f32 */
  const DLTensor* coins;            /* [B, n] f32 in [0, 1) */
  const DLTensor* final_coins;      /* [B] f32 in [0, 1) */
  const DLTensor* predicts;         /* [B*n] i32; written */
  const DLTensor* accept_index;     /* [B, num_steps+1] i32; written */
  const DLTensor* accept_token_num; /* [B] i32; written */
  int64_t num_steps;                /* >= 0 */
  double threshold_single;          /* 0..1 */
  double threshold_acc;             /* 0..1 */
} dsv4_verify_tree_sampling_args;
DSV4_API dsv4_status dsv4_verify_tree_sampling(const dsv4_verify_tree_sampling_args* args, dsv4_stream stream);

#ifdef __cplusplus
}
#endif
#endif /* DSV4SPEC_TREE_H_ */
