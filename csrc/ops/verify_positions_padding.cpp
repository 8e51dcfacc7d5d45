// SPDX-License-Identifier: Apache-2.0
#include <algorithm>

#include "../op.h"

namespace dsv4 {

using Args = dsv4_verify_positions_padding_args;
using Params = VerifyPositionsPaddingParams;

static const Field kFields[] = {DSV4_IN(positions), DSV4_IN(live_seq_lens), DSV4_OUT(out),
                                DSV4_INT(num_draft_tokens), DSV4_INT(ratio)};

static bool fill(Checker& c, const Args& a, Params& p) {
  Dim T("T"), B("B");
  p.positions = c.in("positions", a.positions, {kI64}, {T});
  p.live_seq_lens = c.in("live_seq_lens", a.live_seq_lens, {kI32, kI64}, {B});
  c.expect(a.num_draft_tokens >= 1, "num_draft_tokens", "at least 1", a.num_draft_tokens);
  c.expect_from(0, "ratio", a.ratio);
  c.expect(T % a.num_draft_tokens == 0 && T / a.num_draft_tokens == B, "positions",
           [&] { return "B*n = " + std::to_string(B) + "*" + std::to_string(a.num_draft_tokens) + " rows"; }, T.value);
  const int64_t groups = a.ratio > 0 ? T / a.ratio : 0;
  Dim N("N", std::max<int64_t>(1, std::min<int64_t>(T, groups + B)));
  p.out = c.out("out", a.out, {kI64}, {N});
  c.finish();
  p.B = B, p.n = a.num_draft_tokens, p.ratio = a.ratio;
  return true;  // an empty batch still has one padding element to write
}

DSV4_DEFINE_OP(verify_positions_padding)

}  // namespace dsv4
