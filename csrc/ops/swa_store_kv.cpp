// SPDX-License-Identifier: Apache-2.0
#include <cmath>

#include "../op.h"

namespace dsv4 {

using Args = dsv4_swa_store_kv_args;
using Params = SwaStoreKvParams;

static const Field kFields[] = {DSV4_IN(kv),    DSV4_IN(kv_norm_weight), DSV4_IN(cos_sin), DSV4_IN(positions),
                                DSV4_IN(slots), DSV4_OUT(kv_pages),      DSV4_DOUBLE(eps)};

static bool fill(Checker& c, const Args& a, Params& p) {
  Dim T("T"), D("D"), R("R"), max_pos("max_pos"), P("P"), page("page");
  p.kv = c.in("kv", a.kv, kStreams, {T, D});
  p.kv_norm_weight = c.in("kv_norm_weight", a.kv_norm_weight, {kF32, kBF16}, {D});
  p.cos_sin = c.in("cos_sin", a.cos_sin, {kF32}, {max_pos, R});
  p.positions = c.in("positions", a.positions, {kI64}, {T});
  p.slots = c.in("slots", a.slots, {kI64}, {T});
  p.kv_pages = c.out("kv_pages", a.kv_pages, {p.kv.dtype}, {P, page, D});
  c.expect(D >= 32 && D <= 512 && D % 16 == 0, "kv", "a head size that is a multiple of 16 from 32 to 512", D);
  c.expect(R >= 2 && R % 2 == 0 && R <= D, "cos_sin", "an even number of columns from 2 to the head size", R);
  c.expect(page > 0 && page % 4 == 0, "kv_pages", "a page size that is a multiple of 4", page);
  c.expect(a.eps >= 0 && std::isfinite(a.eps), "eps", "a finite number >= 0", a.eps);
  c.finish();
  p.T = T, p.D = D, p.R = R, p.max_pos = max_pos, p.P = P, p.page = page;
  p.eps = a.eps;
  return T > 0;
}

DSV4_DEFINE_OP(swa_store_kv)

}  // namespace dsv4
