/* SPDX-License-Identifier: Apache-2.0
 *
 * dsv4spec: kernels for DeepSeek-V4 MTP / NextN speculative decoding. The public C ABI.
 *
 *   dsv4_mhc_post_args args = {0};
 *   args.struct_size = sizeof args;
 *   args.y = &y; ...
 *   if (dsv4_mhc_post(&args, stream) != DSV4_OK) fprintf(stderr, "%s\n", dsv4_last_error());
 *
 * Conventions: types.h. Each family header is the contract of its ops: formula, shapes, dtypes, ties,
 * NaN and empty rules stand above each struct. [w]: the op has a _workspace_size.
 *
 *   mhc.h        nextn_fuse_hidden [w]        input of the NextN layer: two norms, two projections, their sum
 *                mhc_pre [w], mhc_post        open and close a sub-layer of the residual streams
 *                mhc_post_pre [w]             close one and open the next in one pass
 *                mhc_head [w]                 join the streams after the last layer
 *   attention.h  q_norm_rope, swa_store_kv    norm and rotate queries; norm, rotate and store keys in a paged cache
 *                swa_paged_attention [w]      sliding-window attention: decode, verify (chain or tree), prefill
 *   target.h     compress_kv                  compressed entries that a call completes, and the state kept for later
 *                lightning_index [w]          the top-k visible compressed entries of a row
 *                sparse_paged_attention       window, compressed entries and sink in one softmax
 *                moe_experts [w]              routed and shared experts
 *   dense.h      linear [w]                   products of few rows, of normed rows, in groups
 *                route_experts [w]            scores, choice and weights of a MoE layer's router
 *   verify.h     verify_positions_padding     positions of the compressed entries that a verify window completes, padded
 *                verify_metadata              the same for both ratios with slots and lengths, in one launch
 *   tree.h       select_draft_topk            one step of the draft beam
 *                build_tree                   links, positions and mask of the chosen nodes, the bonus token in front
 *                verify_tree_greedy, verify_tree_sampling   the accepted path
 *   paging.h     alloc_extend, assign_draft_slots           slots of new tokens, of draft steps
 *                move_accepted_kv [w]         rows of the accepted path to their places
 */
#ifndef DSV4SPEC_H_
#define DSV4SPEC_H_

#include "types.h"

#include "attention.h"
#include "dense.h"
#include "mhc.h"
#include "paging.h"
#include "target.h"
#include "tree.h"
#include "verify.h"

#endif /* DSV4SPEC_H_ */
