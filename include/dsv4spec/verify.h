/* SPDX-License-Identifier: Apache-2.0
 *
 * Metadata of a verify window: B requests of n rows each, request-major, T = B*n. Row (b, j) stands at length
 * live[b] + j + 1 once its token is counted. live[b] is the committed KV length s; live[b] <= 0 is padding.
 *
 * Shared rule. Row (b, j) EMITS a compressed entry of ratio r iff live[b] > 0 and (live[b] + j + 1) % r == 0,
 * and its VALUE is positions[b*n + j] + 1 - r, the position of the group's first token. The choice goes by
 * lengths, the value by positions; the two differ for trees. Entries are packed in request-major order; 0 is
 * a legal value, so a 0 does not mean "nothing". r = 0 or 1 means "no compressed part": nothing is emitted.
 */
#ifndef DSV4SPEC_VERIFY_H_
#define DSV4SPEC_VERIFY_H_

#include "types.h"

#ifdef __cplusplus
extern "C" {
#endif

/* verify_positions_padding: the packed values for one ratio, padded with 0 to N = max(1, min(T, T/r + B))
 * (T/0 = 0).
 * The whole output is written. Rows of padding requests are not read. T must be B*n. */
typedef struct dsv4_verify_positions_padding_args {
  uint64_t struct_size;
  const DLTensor* positions;     /* [T] i64 */
  const DLTensor* live_seq_lens; /* [B] i32 | i64; committed length s, <= 0: padding */
  const DLTensor* out;           /* [N] i64; written */
  int64_t num_draft_tokens;      /* >= 1, n: rows of each request */
  int64_t ratio;                 /* >= 0, r */
} dsv4_verify_positions_padding_args;
DSV4_API dsv4_status dsv4_verify_positions_padding(const dsv4_verify_positions_padding_args* args,
                                                   dsv4_stream stream);

/* verify_metadata: everything a fused compressor needs in a verify step, in one launch.
 *   cR_positions   as verify_positions_padding with R = 4 and 128
 *   cR_loc         parallel to cR_positions: destination of the emitted entry, -1 where nothing is emitted.
 *                  Row (b, j) completes group w = (live[b] + j) / R (by length); it goes to
 *                  cR_table[b, w / cR_page] * cR_page + w % cR_page
 *   start_pos[b] = max(live[b], 0);  seqused[b] = n if live[b] > 0 else 0
 * All outputs are written whole. A group whose table entry is no page id (negative, 2^31 or more) or lies
 * beyond the table: the CPU backend refuses the call; other backends write -1. cR_page = 0 says that the
 * Target has no such pool: nothing of ratio R is emitted and the table is not read. */
typedef struct dsv4_verify_metadata_args {
  uint64_t struct_size;
  const DLTensor* positions;      /* [T] i64 */
  const DLTensor* live_seq_lens;  /* [B] i32 | i64; <= 0: padding */
  const DLTensor* c4_table;       /* [B, *] i32 | i64: page of entries w*c4_page .. of each request, -1 = none */
  const DLTensor* c128_table;     /* [B, *] i32 | i64 */
  const DLTensor* c4_positions;   /* [max(1, min(T, T/4 + B))] i64; written */
  const DLTensor* c128_positions; /* [max(1, min(T, T/128 + B))] i64; written */
  const DLTensor* start_pos;      /* [B] i32; written */
  const DLTensor* seqused;        /* [B] i32; written */
  const DLTensor* c4_loc;         /* as c4_positions; written */
  const DLTensor* c128_loc;       /* as c128_positions; written */
  int64_t num_draft_tokens;       /* >= 1, n */
  int64_t c4_page;                /* >= 0: compressed entries per page; 0: no such pool */
  int64_t c128_page;              /* >= 0: compressed entries per page; 0: no such pool */
} dsv4_verify_metadata_args;
DSV4_API dsv4_status dsv4_verify_metadata(const dsv4_verify_metadata_args* args, dsv4_stream stream);

#ifdef __cplusplus
}
#endif
#endif /* DSV4SPEC_VERIFY_H_ */
