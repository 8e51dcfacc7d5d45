// SPDX-License-Identifier: Apache-2.0
#include "mhc_common.h"

namespace dsv4 {

using Args = dsv4_mhc_head_args;
using Params = MhcHeadParams;

static const Field kFields[] = {DSV4_IN(residual), DSV4_IN(fn), DSV4_IN(base), DSV4_IN(scale),
                                DSV4_OPTIONAL_IN(norm_weight), DSV4_OUT(y), DSV4_DOUBLE(rms_eps),
                                DSV4_DOUBLE(hc_eps)};

static bool fill(Checker& c, const Args& a, Params& p) {
  Dim T("T"), hc("hc"), d("d");
  p.residual = c.in("residual", a.residual, kStreams, {T, hc, d});
  expect_streams(c, "residual", hc, d);
  Dim wide("hc*d", hc * d);
  p.fn = c.in("fn", a.fn, {kF32}, {hc, wide});
  p.base = c.in("base", a.base, {kF32}, {hc});
  p.scale = c.in("scale", a.scale, {kF32}, {1});
  p.norm_weight = c.optional_in("norm_weight", a.norm_weight, {kF32, kBF16}, {d});
  p.y = c.out("y", a.y, {p.residual.dtype}, {T, d});
  expect_eps(c, "rms_eps", a.rms_eps);
  expect_eps(c, "hc_eps", a.hc_eps);
  c.finish();
  p.T = T, p.hc = hc, p.d = d;
  p.rms_eps = a.rms_eps, p.hc_eps = a.hc_eps;
  return T > 0;
}

DSV4_DEFINE_OP_WITH_WORKSPACE(mhc_head)

}  // namespace dsv4
