// SPDX-License-Identifier: Apache-2.0
#include "../op.h"

namespace dsv4 {

using Args = dsv4_select_draft_topk_args;
using Params = SelectDraftTopkParams;

static const Field kFields[] = {
    DSV4_IN(topk_p),       DSV4_IN(topk_index), DSV4_OPTIONAL_IN(scores), DSV4_OUT(input_ids),   DSV4_OUT(scores_out),
    DSV4_OUT(parents),     DSV4_OUT(hidden_rows), DSV4_OUT(cand_scores),  DSV4_OUT(cand_tokens), DSV4_INT(step)};

static bool fill(Checker& c, const Args& a, Params& p) {
  Dim M("M"), k("k"), B("B");
  p.topk_p = c.in("topk_p", a.topk_p, {kF32}, {M, k});
  p.topk_index = c.in("topk_index", a.topk_index, {kI64}, {M, k});
  c.expect_from(0, "step", a.step);
  c.expect(k >= 1 && k <= kMaxTreeNodes, "topk_p", "1 to 256 columns", k.value);
  const bool first = a.step == 0;
  c.expect(first == !a.scores, "scores", first ? "None at step 0" : "a tensor after step 0", a.scores ? "a tensor" : "None");
  p.scores = c.optional_in("scores", a.scores, {kF32}, {B, k});
  if (first) B.value = M;
  c.expect(M == (first ? B : B * k), "topk_p", [&] { return "B*k = " + std::to_string(B * k) + " rows"; }, M.value);
  p.input_ids = c.out("input_ids", a.input_ids, {kI64}, {B * k});
  p.scores_out = c.out("scores_out", a.scores_out, {kF32}, {B, k});
  p.parents = c.out("parents", a.parents, {kI64}, {B, first ? k + 1 : k + 0});
  p.hidden_rows = c.out("hidden_rows", a.hidden_rows, {kI64}, {B * k});
  p.cand_scores = c.out("cand_scores", a.cand_scores, {kF32}, {B, first ? 1 : k + 0, k});
  p.cand_tokens = c.out("cand_tokens", a.cand_tokens, {kI64}, {B, first ? k + 0 : k * k});
  c.finish();
  p.B = B, p.k = k, p.step = a.step;
  return B > 0;
}

DSV4_DEFINE_OP(select_draft_topk)

}  // namespace dsv4
