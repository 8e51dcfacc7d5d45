// SPDX-License-Identifier: Apache-2.0
#include <cmath>

#include "../op.h"

namespace dsv4 {

using Args = dsv4_q_norm_rope_args;
using Params = QNormRopeParams;

static const Field kFields[] = {DSV4_IN(q),        DSV4_IN(cos_sin), DSV4_IN(positions),
                                DSV4_OUT(out),     DSV4_DOUBLE(eps), DSV4_INT(zero_padding)};

static bool fill(Checker& c, const Args& a, Params& p) {
  Dim T("T"), H("H"), D("D"), R("R"), max_pos("max_pos");
  p.q = c.in("q", a.q, kStreams, {T, H, D});
  p.cos_sin = c.in("cos_sin", a.cos_sin, {kF32}, {max_pos, R});
  p.positions = c.in("positions", a.positions, {kI64}, {T});
  p.out = c.out("out", a.out, {p.q.dtype}, {T, H, D}, &p.q);
  c.expect(D >= 32 && D <= 512 && D % 16 == 0, "q", "a head size that is a multiple of 16 from 32 to 512", D);
  c.expect(R >= 2 && R % 2 == 0 && R <= D, "cos_sin", "an even number of columns from 2 to the head size", R);
  c.expect(a.eps >= 0 && std::isfinite(a.eps), "eps", "a finite number >= 0", a.eps);
  c.expect(a.zero_padding == 0 || a.zero_padding == 1, "zero_padding", "0 or 1", a.zero_padding);
  c.finish();
  p.T = T, p.H = H, p.D = D, p.R = R, p.max_pos = max_pos;
  p.eps = a.eps;
  p.zero_padding = a.zero_padding != 0;
  return T > 0 && H > 0;
}

DSV4_DEFINE_OP(q_norm_rope)

}  // namespace dsv4
