// SPDX-License-Identifier: Apache-2.0
#include "../op.h"

namespace dsv4 {

using Args = dsv4_moe_experts_args;
using Params = MoeExpertsParams;

static const Field kFields[] = {DSV4_IN(x),   DSV4_IN(topk_ids), DSV4_IN(topk_weights), DSV4_IN(w13),
                                DSV4_IN(w2),  DSV4_OPTIONAL_IN(shared_w13), DSV4_OPTIONAL_IN(shared_w2),
                                DSV4_OUT(out), DSV4_DOUBLE(limit)};

static bool fill(Checker& c, const Args& a, Params& p) {
  Dim T("T"), d("d"), k("k"), E("E"), inter2("2*inter"), shared2("2*shared_inter");
  c.expect(a.limit > 0, "limit", "a number > 0", a.limit);
  p.x = c.in("x", a.x, {kF32, kBF16}, {T, d});
  p.topk_ids = c.in("topk_ids", a.topk_ids, {kI32, kI64}, {T, k});
  p.topk_weights = c.in("topk_weights", a.topk_weights, {kF32}, {T, k});
  p.w13 = p.x.dtype == kBF16 ? c.in("w13", a.w13, {kBF16}, {E, inter2, d})
                             : c.in("w13", a.w13, {kF32, kBF16}, {E, inter2, d});
  c.expect(inter2 % 2 == 0, "w13", "an even number of rows (gate, then up)", inter2.value);
  p.w2 = c.in("w2", a.w2, {p.w13.dtype}, {E, d, inter2 / 2});
  c.expect((a.shared_w13 != nullptr) == (a.shared_w2 != nullptr), "shared_w2", "None exactly if shared_w13 is",
           a.shared_w2 ? "a tensor" : "None");
  p.shared_w13 = c.optional_in("shared_w13", a.shared_w13, {p.w13.dtype}, {shared2, d});
  if (p.shared_w13) {
    c.expect(shared2 % 2 == 0, "shared_w13", "an even number of rows (gate, then up)", shared2.value);
    p.shared_w2 = c.in("shared_w2", a.shared_w2, {p.w13.dtype}, {d, shared2 / 2});
  }
  p.out = c.out("out", a.out, {p.x.dtype}, {T, d});
  c.finish();
  p.T = T, p.k = k, p.E = E, p.d = d, p.inter = inter2 / 2, p.shared_inter = p.shared_w13 ? shared2 / 2 : 0;
  p.limit = a.limit;
  return T > 0 && d > 0;
}

DSV4_DEFINE_OP_WITH_WORKSPACE(moe_experts)

}  // namespace dsv4
