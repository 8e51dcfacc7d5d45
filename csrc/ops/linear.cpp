// SPDX-License-Identifier: Apache-2.0
#include <cmath>

#include "../op.h"

namespace dsv4 {

using Args = dsv4_linear_args;
using Params = LinearParams;

static const Field kFields[] = {DSV4_IN(x),    DSV4_IN(w),       DSV4_OPTIONAL_IN(norm_weight),
                                DSV4_OUT(out), DSV4_INT(groups), DSV4_DOUBLE(eps)};

static bool fill(Checker& c, const Args& a, Params& p) {
  Dim T("T"), in("G*K"), N("N");
  c.expect_from(1, "groups", a.groups);
  c.expect(a.eps >= 0 && std::isfinite(a.eps), "eps", "a finite number >= 0", a.eps);
  p.x = c.in("x", a.x, {kF32, kBF16}, {T, in});
  c.expect(in % a.groups == 0, "x", "a width that groups divides", in);
  p.w = c.in("w", a.w, {kF32, kBF16}, {in, N});
  p.norm_weight = c.optional_in("norm_weight", a.norm_weight, {kF32, kBF16}, {in});
  c.expect(N <= (int64_t{1} << 40) / a.groups, "w", "fewer columns", N);
  const Dtype wide = p.x.dtype == kF32 || p.w.dtype == kF32 ? kF32 : kBF16;
  p.out = c.out("out", a.out, {wide}, {T, a.groups * N});
  c.finish();
  p.T = T, p.G = a.groups, p.N = N, p.K = in / a.groups;
  p.eps = a.eps;
  return T > 0 && N > 0;
}

DSV4_DEFINE_OP_WITH_WORKSPACE(linear)

}  // namespace dsv4
