// SPDX-License-Identifier: Apache-2.0
#include "../op.h"

namespace dsv4 {

using Args = dsv4_verify_tree_sampling_args;
using Params = VerifyTreeSamplingParams;

static const Field kFields[] = {
    DSV4_IN(candidates),   DSV4_IN(retrieve_index), DSV4_IN(next_token),         DSV4_IN(next_sibling),
    DSV4_IN(target_probs), DSV4_IN(coins),          DSV4_IN(final_coins),        DSV4_OUT(predicts),
    DSV4_OUT(accept_index), DSV4_OUT(accept_token_num), DSV4_INT(num_steps),     DSV4_DOUBLE(threshold_single),
    DSV4_DOUBLE(threshold_acc)};

static bool fill(Checker& c, const Args& a, Params& p) {
  Dim B("B"), n("n"), V("V");
  p.candidates = c.in("candidates", a.candidates, {kI64}, {B, n});
  c.expect(n >= 1 && n <= kMaxTreeNodes, "candidates", "1 to 256 nodes", n.value);
  c.expect_from(0, "num_steps", a.num_steps);
  c.expect(a.threshold_single >= 0 && a.threshold_single <= 1, "threshold_single", "0 to 1", a.threshold_single);
  c.expect(a.threshold_acc >= 0 && a.threshold_acc <= 1, "threshold_acc", "0 to 1", a.threshold_acc);
  p.retrieve_index = c.in("retrieve_index", a.retrieve_index, {kI64}, {B, n});
  p.next_token = c.in("next_token", a.next_token, {kI64}, {B, n});
  p.next_sibling = c.in("next_sibling", a.next_sibling, {kI64}, {B, n});
  p.target_probs = c.in("target_probs", a.target_probs, {kF32}, {B, n, V});
  c.expect(V >= 1, "target_probs", "at least 1 token id", V.value);
  p.coins = c.in("coins", a.coins, {kF32}, {B, n});
  p.final_coins = c.in("final_coins", a.final_coins, {kF32}, {B});
  p.predicts = c.out("predicts", a.predicts, {kI32}, {B * n});
  p.accept_index = c.out("accept_index", a.accept_index, {kI32}, {B, a.num_steps + 1});
  p.accept_token_num = c.out("accept_token_num", a.accept_token_num, {kI32}, {B});
  c.finish();
  p.B = B, p.n = n, p.V = V, p.num_steps = a.num_steps;
  p.threshold_single = a.threshold_single, p.threshold_acc = a.threshold_acc;
  return B > 0;
}

DSV4_DEFINE_OP(verify_tree_sampling)

}  // namespace dsv4
