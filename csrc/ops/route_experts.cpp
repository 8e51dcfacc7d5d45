// SPDX-License-Identifier: Apache-2.0
#include <cmath>

#include "../op.h"

namespace dsv4 {

using Args = dsv4_route_experts_args;
using Params = RouteExpertsParams;

static const Field kFields[] = {DSV4_IN(x),           DSV4_IN(gate),        DSV4_OPTIONAL_IN(bias),
                                DSV4_OPTIONAL_IN(table), DSV4_OPTIONAL_IN(ids), DSV4_OUT(topk_ids),
                                DSV4_OUT(topk_weights), DSV4_DOUBLE(scaling)};

static bool fill(Checker& c, const Args& a, Params& p) {
  Dim T("T"), d("d"), E("E"), V("V"), k("k");
  c.expect(a.scaling > 0 && std::isfinite(a.scaling), "scaling", "a finite number > 0", a.scaling);
  p.x = c.in("x", a.x, {kF32, kBF16}, {T, d});
  p.gate = c.in("gate", a.gate, {kF32, kBF16}, {d, E});
  c.expect((a.bias != nullptr) == (a.table == nullptr), "bias", "None exactly if there is a table",
           a.bias ? "a tensor" : "None");
  c.expect((a.ids != nullptr) == (a.table != nullptr), "ids", "None exactly if table is", a.ids ? "a tensor" : "None");
  p.bias = c.optional_in("bias", a.bias, {kF32}, {E});
  p.table = c.optional_in("table", a.table, {kI32, kI64}, {V, k});
  p.ids = c.optional_in("ids", a.ids, {kI32, kI64}, {T});
  p.topk_ids = c.out("topk_ids", a.topk_ids, {kI32}, {T, k});
  c.expect(k <= E, "topk_ids", "at most as many columns as there are experts", k);
  p.topk_weights = c.out("topk_weights", a.topk_weights, {kF32}, {T, k});
  c.finish();
  p.T = T, p.E = E, p.d = d, p.k = k, p.V = p.table ? V : 0;
  p.scaling = a.scaling;
  return T > 0 && k > 0;
}

DSV4_DEFINE_OP_WITH_WORKSPACE(route_experts)

}  // namespace dsv4
