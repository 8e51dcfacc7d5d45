/* SPDX-License-Identifier: Apache-2.0
 *
 * Slots of paged KV pools. P = page_size tokens a page; slot = page*P + offset; a request's token at position
 * p lies in page table[b, p / P] at offset p % P.
 */
#ifndef DSV4SPEC_PAGING_H_
#define DSV4SPEC_PAGING_H_

#include "types.h"

#ifdef __cplusplus
extern "C" {
#endif

/* alloc_extend: slots of positions prefix[b] .. seq[b]-1 of every request, packed in request order. A request
 * first fills its old partial page (last_slot+1, ..), then takes whole new pages from the front of
 * free_pages, in request order.
 *   new pages of b = ceil(seq/P) - ceil(prefix/P);  num_new_pages = their sum: the caller drops that many
 *   from free_pages.
 * last_slots[b] is the slot of position prefix-1; it is read only where the old page is partly full (prefix %
 * P != 0), and then (last_slot + 1) % P = prefix % P. seq_lens[b] <= 0 is padding: nothing of it is read, it
 * gets no slot. Entries of slots past the last request's are -1.
 * Too few free pages, or extend_num_tokens below the sum of seq - prefix: nothing is written but status = 1
 * (else 0). Without `status` the CPU backend refuses the call. The CPU backend also refuses prefix < 0, seq < prefix,
 * a last slot that breaks the rule and a free page < 0 or of 2^31 or more; other backends take such a request for
 * padding and write -1 for the slots of such a last slot or page. */
typedef struct dsv4_alloc_extend_args {
  uint64_t struct_size;
  const DLTensor* prefix_lens;   /* [B] i32 | i64 */
  const DLTensor* seq_lens;      /* [B] i32 | i64; final length, <= 0: padding */
  const DLTensor* last_slots;    /* [B] i64; -1 for an empty prefix */
  const DLTensor* free_pages;    /* [F] i32 | i64, page ids */
  const DLTensor* slots;         /* [extend_num_tokens] i64; written */
  const DLTensor* num_new_pages; /* [1] i32; written */
  const DLTensor* status;        /* [1] i32 or NULL; written */
  int64_t extend_num_tokens;     /* >= 0 */
  int64_t page_size;             /* >= 1, P */
} dsv4_alloc_extend_args;
DSV4_API dsv4_status dsv4_alloc_extend(const dsv4_alloc_extend_args* args, dsv4_stream stream);

/* assign_draft_slots: where the draft steps of each request store their KV; steps fastest.
 *   topk 1: slots[b, i] is the slot of position s + i, s = live_seq_lens[b].
 *   topk k: branch c is a run of whole pages of its own. With q = ceil((s % P + num_steps) / P) pages a
 *     branch, step i of branch c has the slot of position (s/P + c*q)*P + s%P + i. So branch 0 continues the
 *     request's own partial page, and the first s%P places of a later branch's first page are left for a copy
 *     of that page's committed tokens.
 *     (P = 1: position s + c*num_steps + i.)
 * A table entry < 0, or a position beyond the table: slot -1 (never dereferenced); so too for an entry of 2^31 or
 * more, which the CPU backend refuses. Padding (s <= 0): all -1.
 * The whole output is written. */
typedef struct dsv4_assign_draft_slots_args {
  uint64_t struct_size;
  const DLTensor* block_table;   /* [B, *] i32 | i64; -1 = no page */
  const DLTensor* live_seq_lens; /* [B] i32 | i64; <= 0: padding */
  const DLTensor* slots;         /* [B, topk*num_steps] i64; written */
  int64_t topk;                  /* >= 1 */
  int64_t num_steps;             /* >= 0 */
  int64_t page_size;             /* >= 1, P */
} dsv4_assign_draft_slots_args;
DSV4_API dsv4_status dsv4_assign_draft_slots(const dsv4_assign_draft_slots_args* args, dsv4_stream stream);

/* move_accepted_kv: kv[dst_slots[m]] = kv[src_slots[m]] for all m at once: every source is read before any
 * write, so sources and destinations may overlap. A pair with -1 on either side is skipped. Destinations must
 * be distinct (on the CPU the last of equal ones wins). The CPU backend refuses slots outside -1 ..
 * pages*page-1 before it writes; other backends skip them. */
typedef struct dsv4_move_accepted_kv_args {
  uint64_t struct_size;
  const DLTensor* kv_pages;  /* [pages, page, D] f32 | bf16 | f16; changed in place */
  const DLTensor* src_slots; /* [M] i64 */
  const DLTensor* dst_slots; /* [M] i64 */
  void* workspace;           /* M*D elements of the pool's dtype on the CPU; on devices see _workspace_size */
  uint64_t workspace_size;
} dsv4_move_accepted_kv_args;
DSV4_API dsv4_status dsv4_move_accepted_kv(const dsv4_move_accepted_kv_args* args, dsv4_stream stream);
DSV4_API dsv4_status dsv4_move_accepted_kv_workspace_size(const dsv4_move_accepted_kv_args* args, uint64_t* bytes);

#ifdef __cplusplus
}
#endif
#endif /* DSV4SPEC_PAGING_H_ */
