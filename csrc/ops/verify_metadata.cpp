// SPDX-License-Identifier: Apache-2.0
#include <algorithm>

#include "../op.h"

namespace dsv4 {

using Args = dsv4_verify_metadata_args;
using Params = VerifyMetadataParams;

static const Field kFields[] = {
    DSV4_IN(positions),       DSV4_IN(live_seq_lens), DSV4_IN(c4_table), DSV4_IN(c128_table), DSV4_OUT(c4_positions),
    DSV4_OUT(c128_positions), DSV4_OUT(start_pos),    DSV4_OUT(seqused), DSV4_OUT(c4_loc),    DSV4_OUT(c128_loc),
    DSV4_INT(num_draft_tokens), DSV4_INT(c4_page),    DSV4_INT(c128_page)};

static bool fill(Checker& c, const Args& a, Params& p) {
  Dim T("T"), B("B"), c4_width("c4 pages"), c128_width("c128 pages");
  p.positions = c.in("positions", a.positions, {kI64}, {T});
  p.live_seq_lens = c.in("live_seq_lens", a.live_seq_lens, {kI32, kI64}, {B});
  p.c4_table = c.in("c4_table", a.c4_table, {kI32, kI64}, {B, c4_width});
  p.c128_table = c.in("c128_table", a.c128_table, {kI32, kI64}, {B, c128_width});
  c.expect(a.num_draft_tokens >= 1, "num_draft_tokens", "at least 1", a.num_draft_tokens);
  c.expect_from(0, "c4_page", a.c4_page);
  c.expect_from(0, "c128_page", a.c128_page);
  c.expect(T % a.num_draft_tokens == 0 && T / a.num_draft_tokens == B, "positions",
           [&] { return "B*n = " + std::to_string(B) + "*" + std::to_string(a.num_draft_tokens) + " rows"; }, T.value);
  Dim N4("N4", std::max<int64_t>(1, std::min<int64_t>(T, T / 4 + B)));
  Dim N128("N128", std::max<int64_t>(1, std::min<int64_t>(T, T / 128 + B)));
  p.c4_positions = c.out("c4_positions", a.c4_positions, {kI64}, {N4});
  p.c128_positions = c.out("c128_positions", a.c128_positions, {kI64}, {N128});
  p.start_pos = c.out("start_pos", a.start_pos, {kI32}, {B});
  p.seqused = c.out("seqused", a.seqused, {kI32}, {B});
  p.c4_loc = c.out("c4_loc", a.c4_loc, {kI64}, {N4});
  p.c128_loc = c.out("c128_loc", a.c128_loc, {kI64}, {N128});
  c.finish();
  p.B = B, p.n = a.num_draft_tokens, p.c4_page = a.c4_page, p.c128_page = a.c128_page;
  return true;  // an empty batch still has one padding element a ratio to write
}

DSV4_DEFINE_OP(verify_metadata)

}  // namespace dsv4
