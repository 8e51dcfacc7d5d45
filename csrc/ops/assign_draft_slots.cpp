// SPDX-License-Identifier: Apache-2.0
#include "../op.h"

namespace dsv4 {

using Args = dsv4_assign_draft_slots_args;
using Params = AssignDraftSlotsParams;

static const Field kFields[] = {DSV4_IN(block_table), DSV4_IN(live_seq_lens), DSV4_OUT(slots),
                                DSV4_INT(topk),       DSV4_INT(num_steps),    DSV4_INT(page_size)};

static bool fill(Checker& c, const Args& a, Params& p) {
  Dim B("B"), width("pages");
  p.block_table = c.in("block_table", a.block_table, {kI32, kI64}, {B, width});
  p.live_seq_lens = c.in("live_seq_lens", a.live_seq_lens, {kI32, kI64}, {B});
  c.expect_from(1, "topk", a.topk);
  c.expect_from(0, "num_steps", a.num_steps);
  c.expect_from(1, "page_size", a.page_size);
  p.slots = c.out("slots", a.slots, {kI64}, {B, a.topk * a.num_steps});
  c.finish();
  p.B = B, p.topk = a.topk, p.num_steps = a.num_steps, p.page_size = a.page_size;
  return B > 0 && a.num_steps > 0;
}

DSV4_DEFINE_OP(assign_draft_slots)

}  // namespace dsv4
