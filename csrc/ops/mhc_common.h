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

}  // namespace dsv4
