// SPDX-License-Identifier: Apache-2.0
#include <cmath>

#include "../op.h"

namespace dsv4 {

using Args = dsv4_sparse_paged_attention_args;
using Params = SparsePagedAttentionParams;

static const Field kFields[] = {DSV4_IN(q),
                                DSV4_IN(kv_pages),
                                DSV4_IN(block_table),
                                DSV4_OPTIONAL_IN(c_pages),
                                DSV4_OPTIONAL_IN(c_table),
                                DSV4_IN(query_start_loc),
                                DSV4_IN(seq_lens),
                                DSV4_OPTIONAL_IN(indices),
                                DSV4_OPTIONAL_IN(sink),
                                DSV4_OPTIONAL_IN(cos_sin),
                                DSV4_OUT(out),
                                DSV4_INT(window),
                                DSV4_DOUBLE(scale),
                                DSV4_INT(ratio),
                                DSV4_INT(zero_padding)};

static bool fill(Checker& c, const Args& a, Params& p) {
  Dim T("T"), H("H"), D("D"), P("P"), page("page"), B("B"), pages("pages"), Pc("Pc"), c_page("c_page"),
      c_pages("c_pages"), k("k"), maxpos("max_pos"), R("R");
  c.expect(a.window >= 1, "window", "at least 1", a.window);
  c.expect(std::isfinite(a.scale), "scale", "a finite number", a.scale);
  c.expect_from(0, "ratio", a.ratio);
  c.expect(a.zero_padding == 0 || a.zero_padding == 1, "zero_padding", "0 or 1", a.zero_padding);
  const bool compressed = a.ratio > 1;
  p.q = c.in("q", a.q, {kF32, kBF16}, {T, H, D});
  p.kv_pages = c.in("kv_pages", a.kv_pages, {p.q.dtype}, {P, page, D});
  p.block_table = c.in("block_table", a.block_table, {kI32, kI64}, {B, pages});
  c.expect(D % 16 == 0 && D >= 32 && D <= 512, "q", "a head size that is a multiple of 16 from 32 to 512", D.value);
  const auto rule = [&] {
    return compressed ? "a tensor, as ratio is " + std::to_string(a.ratio)
                      : "None, as ratio " + std::to_string(a.ratio) + " has no compressed part";
  };
  c.expect((a.c_pages != nullptr) == compressed, "c_pages", rule, a.c_pages ? "a tensor" : "None");
  c.expect((a.c_table != nullptr) == compressed, "c_table", rule, a.c_table ? "a tensor" : "None");
  c.expect(compressed || !a.indices, "indices", rule, a.indices ? "a tensor" : "None");
  p.c_pages = c.optional_in("c_pages", a.c_pages, {p.q.dtype}, {Pc, c_page, D});
  p.c_table = c.optional_in("c_table", a.c_table, {kI32, kI64}, {B, c_pages});
  p.query_start_loc = c.in("query_start_loc", a.query_start_loc, {kI32, kI64}, {B + 1});
  p.seq_lens = c.in("seq_lens", a.seq_lens, {kI32, kI64}, {B});
  p.indices = c.optional_in("indices", a.indices, {kI32}, {T, k});
  p.sink = c.optional_in("sink", a.sink, {kF32}, {H});
  p.cos_sin = c.optional_in("cos_sin", a.cos_sin, {kF32}, {maxpos, R});
  if (p.cos_sin)
    c.expect(R % 2 == 0 && R <= D, "cos_sin",
             [&] { return "an even number of columns, at most D=" + std::to_string(D.value); }, R.value);
  p.out = c.out("out", a.out, {p.q.dtype}, {T, H, D});
  c.expect(page >= 1, "kv_pages", "at least 1 row a page", page.value);
  if (compressed) c.expect(c_page >= 1, "c_pages", "at least 1 entry a page", c_page.value);
  c.finish();
  p.T = T, p.B = B, p.H = H, p.D = D, p.R = p.cos_sin ? R.value : 0, p.page = page;
  p.zero_padding = a.zero_padding;
  p.c_page = compressed ? c_page.value : 1, p.window = a.window, p.ratio = a.ratio, p.scale = a.scale;
  return T > 0 && H > 0 && D > 0;
}

DSV4_DEFINE_OP(sparse_paged_attention)

}  // namespace dsv4
