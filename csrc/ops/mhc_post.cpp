// SPDX-License-Identifier: Apache-2.0
#include "../op.h"

namespace dsv4 {

using Args = dsv4_mhc_post_args;
using Params = MhcPostParams;

static const Field kFields[] = {DSV4_IN(y), DSV4_IN(residual), DSV4_IN(post), DSV4_IN(comb), DSV4_OUT(out)};

static bool fill(Checker& c, const Args& a, Params& p) {
  Dim T("T"), hc("hc"), d("d");
  p.residual = c.in("residual", a.residual, kStreams, {T, hc, d});
  p.y = c.in("y", a.y, {p.residual.dtype}, {T, d});
  p.post = c.in("post", a.post, {kF32}, {T, hc});
  p.comb = c.in("comb", a.comb, {kF32}, {T, hc, hc});
  p.out = c.out("out", a.out, {p.residual.dtype}, {T, hc, d}, &p.residual);
  c.expect(hc == 1 || hc == 2 || hc == 4, "residual", "1, 2 or 4 streams", hc.value);
  c.finish();
  p.T = T, p.hc = hc, p.d = d;
  return T > 0 && d > 0;
}

DSV4_DEFINE_OP(mhc_post)

}  // namespace dsv4
