// SPDX-License-Identifier: Apache-2.0
#include "mhc_common.h"

namespace dsv4 {

using Args = dsv4_mhc_pre_args;
using Params = MhcPreParams;

static const Field kFields[] = {DSV4_IN(residual), DSV4_IN(fn), DSV4_IN(base), DSV4_IN(scale),
                                DSV4_OPTIONAL_IN(norm_weight), DSV4_OUT(y), DSV4_OUT(post), DSV4_OUT(comb),
                                DSV4_DOUBLE(rms_eps), DSV4_DOUBLE(hc_eps), DSV4_INT(sinkhorn_iters)};

static bool fill(Checker& c, const Args& a, Params& p) {
  Dim T("T"), hc("hc"), d("d");
  p.residual = c.in("residual", a.residual, kStreams, {T, hc, d});
  expect_streams(c, "residual", hc, d);
  fill_site(c, a, p, hc, d);
  p.y = c.out("y", a.y, {p.residual.dtype}, {T, d});
  p.post = c.out("post", a.post, {kF32}, {T, hc});
  p.comb = c.out("comb", a.comb, {kF32}, {T, hc, hc});
  c.finish();
  p.T = T, p.hc = hc, p.d = d;
  return T > 0;
}

DSV4_DEFINE_OP_WITH_WORKSPACE(mhc_pre)

}  // namespace dsv4
