// SPDX-License-Identifier: Apache-2.0
#include "../op.h"

namespace dsv4 {

using Args = dsv4_lightning_index_args;
using Params = LightningIndexParams;

static const Field kFields[] = {DSV4_IN(q),        DSV4_IN(weights),         DSV4_IN(index_pages),
                                DSV4_IN(table),    DSV4_IN(query_start_loc), DSV4_IN(seq_lens),
                                DSV4_OPTIONAL_IN(cos_sin), DSV4_OUT(out), DSV4_INT(ratio)};

static bool fill(Checker& c, const Args& a, Params& p) {
  Dim T("T"), H("H"), D("D"), P("P"), page("page"), B("B"), pages("pages"), k("topk"), maxpos("max_pos"), R("R");
  c.expect_from(2, "ratio", a.ratio);
  p.q = c.in("q", a.q, {kF32, kBF16}, {T, H, D});
  c.expect(D % 8 == 0 && D >= 8 && D <= 512, "q", "a head size that is a multiple of 8 from 8 to 512", D.value);
  p.weights = c.in("weights", a.weights, {kF32}, {T, H});
  p.index_pages = c.in("index_pages", a.index_pages, {p.q.dtype}, {P, page, D});
  p.table = c.in("table", a.table, {kI32, kI64}, {B, pages});
  p.query_start_loc = c.in("query_start_loc", a.query_start_loc, {kI32, kI64}, {B + 1});
  p.seq_lens = c.in("seq_lens", a.seq_lens, {kI32, kI64}, {B});
  p.cos_sin = c.optional_in("cos_sin", a.cos_sin, {kF32}, {maxpos, R});
  if (p.cos_sin)
    c.expect(R % 2 == 0 && R <= D, "cos_sin",
             [&] { return "an even number of columns, at most D=" + std::to_string(D.value); }, R.value);
  p.out = c.out("out", a.out, {kI32}, {T, k});
  c.expect(page >= 1, "index_pages", "at least 1 entry a page", page.value);
  c.finish();
  p.T = T, p.B = B, p.H = H, p.D = D, p.R = p.cos_sin ? R.value : 0, p.page = page, p.ratio = a.ratio, p.topk = k;
  return T > 0 && k > 0;
}

DSV4_DEFINE_OP_WITH_WORKSPACE(lightning_index)

}  // namespace dsv4
