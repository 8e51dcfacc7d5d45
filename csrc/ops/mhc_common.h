// SPDX-License-Identifier: Apache-2.0
// Rules that the mHC ops share.
#pragma once
#include "../op.h"

namespace dsv4 {

inline void expect_streams(const Checker& c, const char* name, int64_t hc, int64_t d) {
  c.expect(hc == 1 || hc == 2 || hc == 4, name, "1, 2 or 4 streams", hc);
  c.expect(d >= 8 && d <= 32768 && d % 8 == 0, name, "a width d that is a multiple of 8 from 8 to 32768", d);
}

inline void expect_eps(const Checker& c, const char* name, double eps) {
  c.expect(eps >= 0 && eps < 1, name, "a value in [0, 1)", eps);  // false for NaN
}

inline void expect_sinkhorn(const Checker& c, int64_t iters) {
  c.expect(iters >= 1 && iters <= 1000, "sinkhorn_iters", "1 to 1000", iters);
}

// The coefficients of the sub-layer that starts, of mhc_pre and mhc_post_pre alike: weights, norm and scalars.
template <class Args, class Params>
void fill_site(Checker& c, const Args& a, Params& p, Dim& hc, Dim& d) {
  Dim columns("(2+hc)*hc", (2 + hc) * hc), wide("hc*d", hc * d);
  p.fn = c.in("fn", a.fn, {kF32}, {columns, wide});
  p.base = c.in("base", a.base, {kF32}, {columns});
  p.scale = c.in("scale", a.scale, {kF32}, {3});
  p.norm_weight = c.optional_in("norm_weight", a.norm_weight, {kF32, kBF16}, {d});
  expect_eps(c, "rms_eps", a.rms_eps);
  expect_eps(c, "hc_eps", a.hc_eps);
  expect_sinkhorn(c, a.sinkhorn_iters);
  p.rms_eps = a.rms_eps, p.hc_eps = a.hc_eps, p.sinkhorn_iters = a.sinkhorn_iters;
}

}  // namespace dsv4
