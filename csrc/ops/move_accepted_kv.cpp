// SPDX-License-Identifier: Apache-2.0
#include "../op.h"

namespace dsv4 {

using Args = dsv4_move_accepted_kv_args;
using Params = MoveAcceptedKvParams;

static const Field kFields[] = {DSV4_OUT(kv_pages), DSV4_IN(src_slots), DSV4_IN(dst_slots)};

static bool fill(Checker& c, const Args& a, Params& p) {
  Dim pages("pages"), page("page"), D("D"), M("M");
  p.kv_pages = c.out("kv_pages", a.kv_pages, kStreams, {pages, page, D});
  p.src_slots = c.in("src_slots", a.src_slots, {kI64}, {M});
  p.dst_slots = c.in("dst_slots", a.dst_slots, {kI64}, {M});
  c.finish();
  p.pages = pages, p.page = page, p.D = D, p.M = M;
  return M > 0 && D > 0;
}

DSV4_DEFINE_OP_WITH_WORKSPACE(move_accepted_kv)

}  // namespace dsv4
