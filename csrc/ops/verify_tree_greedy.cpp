// SPDX-License-Identifier: Apache-2.0
#include "../op.h"

namespace dsv4 {

using Args = dsv4_verify_tree_greedy_args;
using Params = VerifyTreeGreedyParams;

static const Field kFields[] = {
    DSV4_IN(candidates),     DSV4_IN(retrieve_index), DSV4_IN(next_token),    DSV4_IN(next_sibling),
    DSV4_IN(target_predict), DSV4_OUT(predicts),      DSV4_OUT(accept_index), DSV4_OUT(accept_token_num),
    DSV4_INT(num_steps)};

static bool fill(Checker& c, const Args& a, Params& p) {
  Dim B("B"), n("n");
  p.candidates = c.in("candidates", a.candidates, {kI64}, {B, n});
  c.expect(n >= 1 && n <= kMaxTreeNodes, "candidates", "1 to 256 nodes", n.value);
  c.expect_from(0, "num_steps", a.num_steps);
  p.retrieve_index = c.in("retrieve_index", a.retrieve_index, {kI64}, {B, n});
  p.next_token = c.in("next_token", a.next_token, {kI64}, {B, n});
  p.next_sibling = c.in("next_sibling", a.next_sibling, {kI64}, {B, n});
  p.target_predict = c.in("target_predict", a.target_predict, {kI64}, {B, n});
  p.predicts = c.out("predicts", a.predicts, {kI32}, {B * n});
  p.accept_index = c.out("accept_index", a.accept_index, {kI32}, {B, a.num_steps + 1});
  p.accept_token_num = c.out("accept_token_num", a.accept_token_num, {kI32}, {B});
  c.finish();
  p.B = B, p.n = n, p.num_steps = a.num_steps;
  return B > 0;
}

DSV4_DEFINE_OP(verify_tree_greedy)

}  // namespace dsv4
