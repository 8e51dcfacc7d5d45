// SPDX-License-Identifier: Apache-2.0
#include <cmath>

#include "../op.h"

namespace dsv4 {

using Args = dsv4_swa_paged_attention_args;
using Params = SwaPagedAttentionParams;

static const Field kFields[] = {
    DSV4_IN(q),        DSV4_IN(kv_pages),      DSV4_IN(block_table),        DSV4_IN(query_start_loc),
    DSV4_IN(seq_lens), DSV4_OPTIONAL_IN(sink), DSV4_OPTIONAL_IN(tree_mask), DSV4_OPTIONAL_IN(cos_sin),
    DSV4_OUT(out),     DSV4_INT(window),       DSV4_DOUBLE(scale),          DSV4_INT(zero_padding)};

static bool fill(Checker& c, const Args& a, Params& p) {
  Dim T("T"), H("H"), D("D"), P("P"), page("page"), B("B"), maxp("maxp"), n("n"), max_pos("max_pos"), R("R");
  p.q = c.in("q", a.q, kStreams, {T, H, D});
  p.kv_pages = c.in("kv_pages", a.kv_pages, {p.q.dtype}, {P, page, D});
  p.block_table = c.in("block_table", a.block_table, {kI32, kI64}, {B, maxp});
  Dim starts("B+1", B + 1);
  p.query_start_loc = c.in("query_start_loc", a.query_start_loc, {kI32, kI64}, {starts});
  p.seq_lens = c.in("seq_lens", a.seq_lens, {kI32, kI64}, {B});
  p.sink = c.optional_in("sink", a.sink, {kF32}, {H});
  p.tree_mask = c.optional_in("tree_mask", a.tree_mask, {kBool}, {B, n, n});
  p.cos_sin = c.optional_in("cos_sin", a.cos_sin, {kF32}, {max_pos, R});
  p.out = c.out("out", a.out, {p.q.dtype}, {T, H, D});
  c.expect(D >= 32 && D <= 512 && D % 16 == 0, "q", "a head size that is a multiple of 16 from 32 to 512", D);
  c.expect(page > 0 && page % 4 == 0, "kv_pages", "a page size that is a multiple of 4", page);
  if (p.cos_sin)
    c.expect(R >= 2 && R % 2 == 0 && R <= D, "cos_sin", "an even number of columns from 2 to the head size", R);
  c.expect(a.window >= 1, "window", "at least 1", a.window);
  c.expect(std::isfinite(a.scale), "scale", "a finite number", a.scale);
  c.expect(a.zero_padding == 0 || a.zero_padding == 1, "zero_padding", "0 or 1", a.zero_padding);
  c.finish();
  p.T = T, p.H = H, p.D = D, p.P = P, p.page = page, p.B = B, p.maxp = maxp;
  p.n = p.tree_mask ? n.value : 0;
  p.R = p.cos_sin ? R.value : 0;
  p.max_pos = p.cos_sin ? max_pos.value : 0;
  p.window = a.window;
  p.scale = static_cast<float>(a.scale);
  p.zero_padding = a.zero_padding != 0;
  return T > 0 && H > 0;
}

DSV4_DEFINE_OP_WITH_WORKSPACE(swa_paged_attention)

}  // namespace dsv4
