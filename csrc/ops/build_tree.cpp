// SPDX-License-Identifier: Apache-2.0
#include <algorithm>

#include "../op.h"

namespace dsv4 {

using Args = dsv4_build_tree_args;
using Params = BuildTreeParams;

static const Field kFields[] = {
    DSV4_IN(bonus_tokens),  DSV4_IN(parent_list), DSV4_IN(selected_index), DSV4_IN(draft_tokens),
    DSV4_IN(live_seq_lens), DSV4_OUT(tokens),     DSV4_OUT(positions),     DSV4_OUT(retrieve_index),
    DSV4_OUT(next_token),   DSV4_OUT(next_sibling), DSV4_OUT(tree_mask),   DSV4_OPTIONAL_OUT(status),
    DSV4_INT(topk),         DSV4_INT(num_steps),  DSV4_INT(num_draft_tokens), DSV4_INT(mask_mode)};

static bool fill(Checker& c, const Args& a, Params& p) {
  Dim B("B"), width("width"), drafts("n-1");
  const int64_t k = a.topk, n = a.num_draft_tokens, steps = a.num_steps;
  c.expect(k >= 1 && k <= kMaxTreeNodes, "topk", "1 to 256", k);
  c.expect(steps >= 0 && steps <= kMaxTreeNodes, "num_steps", "0 to 256", steps);
  const int64_t most = std::min<int64_t>(kMaxTreeNodes, steps == 0 ? 1 : 1 + k + (steps - 1) * k * k);
  c.expect(n >= 1 && n <= most, "num_draft_tokens", [&] { return "1 to " + std::to_string(most); }, n);
  c.expect(a.mask_mode >= 0 && a.mask_mode <= 2, "mask_mode", "0 (full), 1 (qlen) or 2 (qlen_bits)", a.mask_mode);

  p.bonus_tokens = c.in("bonus_tokens", a.bonus_tokens, {kI64}, {B});
  if (steps > 1) width.value = k * (steps - 1) + 1;
  p.parent_list = c.in("parent_list", a.parent_list, {kI64}, {B, width});
  c.expect(steps > 1 || width <= 1, "parent_list", "0 or 1 columns for num_steps <= 1", width.value);
  drafts.value = n - 1;
  p.selected_index = c.in("selected_index", a.selected_index, {kI64}, {B, drafts});
  p.draft_tokens = c.in("draft_tokens", a.draft_tokens, {kI64}, {B, drafts});
  p.live_seq_lens = c.in("live_seq_lens", a.live_seq_lens, {kI32, kI64}, {B});

  p.tokens = c.out("tokens", a.tokens, {kI64}, {B, n});
  p.positions = c.out("positions", a.positions, {kI64}, {B * n});
  p.retrieve_index = c.out("retrieve_index", a.retrieve_index, {kI64}, {B, n});
  p.next_token = c.out("next_token", a.next_token, {kI64}, {B, n});
  p.next_sibling = c.out("next_sibling", a.next_sibling, {kI64}, {B, n});
  Dim size("size");
  switch (a.mask_mode) {
    case DSV4_TREE_MASK_FULL:
      p.tree_mask = c.out("tree_mask", a.tree_mask, {kBool}, {size}, nullptr, Layout::kContiguous);
      break;
    case DSV4_TREE_MASK_QLEN:
      p.tree_mask = c.out("tree_mask", a.tree_mask, {kBool}, {B, n, n}, nullptr, Layout::kContiguous);
      break;
    default:
      c.expect(n <= 32, "num_draft_tokens", "at most 32 in mask mode qlen_bits", n);
      p.tree_mask = c.out("tree_mask", a.tree_mask, {n <= 8 ? kU8 : n <= 16 ? kU16 : kU32}, {B, n}, nullptr,
                          Layout::kContiguous);
  }
  if (a.status) p.status = c.out("status", a.status, {kI32}, {B});
  c.finish();
  p.B = B, p.n = n, p.topk = k, p.mask_mode = a.mask_mode;
  return B > 0;
}

DSV4_DEFINE_OP(build_tree)

}  // namespace dsv4
