// SPDX-License-Identifier: Apache-2.0
#include "../build_tree_tiling.h"
#include "dsv4spec/tree.h"
#include "ints.h"

DSV4_ASCEND_DECLARE(dsv4_build_tree_aiv, GM_ADDR, GM_ADDR, GM_ADDR, GM_ADDR, GM_ADDR, GM_ADDR, GM_ADDR,
                    GM_ADDR, GM_ADDR, GM_ADDR, GM_ADDR, GM_ADDR, BuildTreeTiling);

namespace dsv4::ascend {
namespace {

static_assert(kTreeFull == DSV4_TREE_MASK_FULL && kTreeRows == DSV4_TREE_MASK_QLEN &&
              kTreeBits == DSV4_TREE_MASK_QLEN_BITS);
static_assert(tree_bytes(256, kTreeList / 8, true, false, 1) <= kTreeBytes);
constexpr int64_t kGroupMask = 32 * 1024;  // bytes of the flat mask that make a group worth a core

int32_t launch(const BuildTreeParams& p, const Launch& l) {
  if (p.B * p.n > INT32_MAX)
    return refuse(l, "num_draft_tokens: expected fewer than 2^31 nodes in all, got %lld",
                  static_cast<long long>(p.B * p.n));
  const bool full = p.mask_mode == kTreeFull, bits = p.mask_mode == kTreeBits;
  BuildTreeTiling t{};
  t.B = p.B, t.n = p.n, t.width = p.parent_list.shape[1];
  t.topk = division(p.topk);
  t.live = int_rows(p.live_seq_lens);
  t.parent_stride = row_bytes(p.parent_list), t.selected_stride = row_bytes(p.selected_index);
  t.draft_stride = row_bytes(p.draft_tokens);
  t.tokens_stride = row_bytes(p.tokens), t.retrieve_stride = row_bytes(p.retrieve_index);
  t.next_stride = row_bytes(p.next_token), t.sibling_stride = row_bytes(p.next_sibling);
  t.mask_mode = static_cast<int32_t>(p.mask_mode), t.item = static_cast<int32_t>(bytes_of(p.tree_mask.dtype));
  t.with_status = static_cast<bool>(p.status);
  t.whole_list = t.width * 8 <= kTreeList;
  const Written mask = {full ? nullptr : p.tree_mask.data, p.n * (bits ? t.item : p.n)};
  t.requests = split_lines(p.B, 1,
                           {{p.tokens.data, t.tokens_stride},
                            {p.positions.data, p.n * 8},
                            {p.retrieve_index.data, t.retrieve_stride},
                            {p.next_token.data, t.next_stride},
                            {p.next_sibling.data, t.sibling_stride},
                            {p.status.data, 4},
                            mask});
  t.mask =
      full ? split_lines(p.tree_mask.shape[0], kGroupMask, {{p.tree_mask.data, 1}}) : LineSplit{0, 0, 1, 1};
  const int64_t blocks = blocks_for({t.requests.groups, t.mask.groups});
  const int64_t share = t.requests.lead + ceil_div(t.requests.groups, blocks) * t.requests.unit;  // of a core
  t.rows = std::min(share, kTreeRequests);
  while (t.rows > 1 && tree_bytes(p.n, t.width, t.whole_list, bits, t.rows) > kTreeBytes) --t.rows;
  return DSV4_ASCEND_LAUNCH(dsv4_build_tree_aiv, blocks, l, address(p.bonus_tokens), address(p.parent_list),
                            address(p.selected_index), address(p.draft_tokens), address(p.live_seq_lens),
                            address(p.tokens), address(p.positions), address(p.retrieve_index),
                            address(p.next_token), address(p.next_sibling), address(p.tree_mask),
                            address(p.status), t);
}

}  // namespace
DSV4_ASCEND_KERNEL(build_tree, BuildTreeParams, launch)
}  // namespace dsv4::ascend
