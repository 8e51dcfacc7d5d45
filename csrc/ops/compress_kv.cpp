// SPDX-License-Identifier: Apache-2.0
#include <cmath>

#include "../op.h"

namespace dsv4 {

using Args = dsv4_compress_kv_args;
using Params = CompressKvParams;

static const Field kFields[] = {
    DSV4_IN(kv),        DSV4_IN(gate), DSV4_IN(ape),  DSV4_IN(norm_weight),     DSV4_IN(cos_sin),
    DSV4_OUT(state),    DSV4_IN(rows), DSV4_IN(query_start_loc), DSV4_IN(seq_lens), DSV4_IN(positions),
    DSV4_IN(locs),      DSV4_OUT(pages), DSV4_INT(ratio), DSV4_DOUBLE(eps)};

static bool fill(Checker& c, const Args& a, Params& p) {
  Dim T("T"), C("coff*D"), r("ratio", a.ratio), D("D"), maxpos("max_pos"), R("R"), S("S"), ring("ring"), B("B"),
      M("M"), P("P"), page("page");
  c.expect_from(2, "ratio", a.ratio);
  c.expect(a.eps > 0 && std::isfinite(a.eps), "eps", "a finite number > 0", a.eps);
  p.kv = c.in("kv", a.kv, {kF32}, {T, C});
  p.gate = c.in("gate", a.gate, {kF32}, {T, C});
  p.ape = c.in("ape", a.ape, {kF32}, {r, C});
  p.norm_weight = c.in("norm_weight", a.norm_weight, {kF32, kBF16}, {D});
  c.expect(D % 8 == 0 && D >= 8 && D <= 512, "norm_weight", "a size that is a multiple of 8 from 8 to 512", D.value);
  c.expect(C == D || C == 2 * D, "kv", [&] { return "D or 2*D columns for D=" + std::to_string(D.value); }, C.value);
  p.cos_sin = c.in("cos_sin", a.cos_sin, {kF32}, {maxpos, R});
  c.expect(R % 2 == 0 && R <= D, "cos_sin",
           [&] { return "an even number of columns, at most D=" + std::to_string(D.value); }, R.value);
  p.state = c.out("state", a.state, {kF32}, {S, ring, 2 * C});
  p.rows = c.in("rows", a.rows, {kI64}, {B});
  p.query_start_loc = c.in("query_start_loc", a.query_start_loc, {kI32, kI64}, {B + 1});
  p.seq_lens = c.in("seq_lens", a.seq_lens, {kI32, kI64}, {B});
  p.positions = c.in("positions", a.positions, {kI64}, {M});
  p.locs = c.in("locs", a.locs, {kI64}, {M});
  p.pages = c.out("pages", a.pages, {kF32, kBF16}, {P, page, D});
  p.T = T, p.B = B, p.M = M, p.D = D, p.R = R, p.ratio = a.ratio, p.coff = D > 0 ? C / D : 1, p.ring = ring;
  p.eps = a.eps;
  c.expect(ring >= p.coff * a.ratio, "state",
           [&] { return "a ring of at least coff*ratio=" + std::to_string(p.coff * a.ratio) + " rows"; }, ring.value);
  c.finish();
  return T > 0 && B > 0 && D > 0;
}

DSV4_DEFINE_OP(compress_kv)

}  // namespace dsv4
