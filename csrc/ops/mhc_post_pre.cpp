// SPDX-License-Identifier: Apache-2.0
#include "mhc_common.h"

namespace dsv4 {

using Args = dsv4_mhc_post_pre_args;
using Params = MhcPostPreParams;

static const Field kFields[] = {DSV4_IN(y), DSV4_IN(residual), DSV4_IN(post), DSV4_IN(comb), DSV4_IN(fn),
                                DSV4_IN(base), DSV4_IN(scale), DSV4_OPTIONAL_IN(norm_weight),
                                DSV4_OUT(residual_out), DSV4_OUT(y_out), DSV4_OUT(post_out), DSV4_OUT(comb_out),
                                DSV4_DOUBLE(rms_eps), DSV4_DOUBLE(hc_eps), DSV4_INT(sinkhorn_iters)};

static bool fill(Checker& c, const Args& a, Params& p) {
  Dim T("T"), hc("hc"), d("d");
  p.residual = c.in("residual", a.residual, kStreams, {T, hc, d});
  expect_streams(c, "residual", hc, d);
  p.y = c.in("y", a.y, {p.residual.dtype}, {T, d});
  p.post = c.in("post", a.post, {kF32}, {T, hc});
  p.comb = c.in("comb", a.comb, {kF32}, {T, hc, hc});
  fill_site(c, a, p, hc, d);
  p.residual_out = c.out("residual_out", a.residual_out, {p.residual.dtype}, {T, hc, d}, &p.residual);
  p.y_out = c.out("y_out", a.y_out, {p.residual.dtype}, {T, d});
  p.post_out = c.out("post_out", a.post_out, {kF32}, {T, hc});
  p.comb_out = c.out("comb_out", a.comb_out, {kF32}, {T, hc, hc});
  c.finish();
  p.T = T, p.hc = hc, p.d = d;
  return T > 0;
}

DSV4_DEFINE_OP_WITH_WORKSPACE(mhc_post_pre)

}  // namespace dsv4
