// SPDX-License-Identifier: Apache-2.0
#include "../select_draft_topk_tiling.h"
#include "ints.h"

DSV4_ASCEND_DECLARE(dsv4_select_draft_topk_first, GM_ADDR, GM_ADDR, GM_ADDR, GM_ADDR, GM_ADDR, GM_ADDR,
                    GM_ADDR, GM_ADDR, SelectDraftTopkTiling);
DSV4_ASCEND_DECLARE(dsv4_select_draft_topk_next, GM_ADDR, GM_ADDR, GM_ADDR, GM_ADDR, GM_ADDR, GM_ADDR,
                    GM_ADDR, GM_ADDR, GM_ADDR, SelectDraftTopkTiling);

namespace dsv4::ascend {
namespace {

int32_t launch(const SelectDraftTopkParams& p, const Launch& l) {
  const bool first = p.step == 0;
  if (p.B * p.k > INT32_MAX)
    return refuse(l, "topk_p: expected fewer than 2^31 kept candidates in all, got %lld",
                  static_cast<long long>(p.B * p.k));
  SelectDraftTopkTiling t{};
  t.k = p.k, t.first_parent = p.k * p.k * (p.step - 1) + p.k;
  t.prob_stride = row_bytes(p.topk_p), t.token_stride = row_bytes(p.topk_index),
  t.score_stride = row_bytes(p.scores);
  t.scores_out_stride = row_bytes(p.scores_out), t.parents_stride = row_bytes(p.parents);
  t.cand_tokens_stride = row_bytes(p.cand_tokens);
  t.cand_stride = row_bytes(p.cand_scores), t.cand_row_stride = p.cand_scores.stride[1] * 4;
  t.requests = split_lines(p.B, 1,
                           {{p.input_ids.data, p.k * 8},
                            {p.hidden_rows.data, p.k * 8},
                            {p.scores_out.data, t.scores_out_stride},
                            {p.parents.data, t.parents_stride},
                            {p.cand_tokens.data, t.cand_tokens_stride},
                            {p.cand_scores.data, t.cand_stride}});
  const int64_t blocks = blocks_for({t.requests.groups});
  if (first) {
    t.rows = std::min(kSelectBytes / select_first_bytes(p.k), kSelectRequests);
    return DSV4_ASCEND_LAUNCH(dsv4_select_draft_topk_first, blocks, l, address(p.topk_p),
                              address(p.topk_index), address(p.input_ids), address(p.scores_out),
                              address(p.parents), address(p.hidden_rows), address(p.cand_scores),
                              address(p.cand_tokens), t);
  }
  t.rows = std::min(kSelectBytes / select_next_bytes(p.k), p.k);
  return DSV4_ASCEND_LAUNCH(dsv4_select_draft_topk_next, blocks, l, address(p.topk_p), address(p.topk_index),
                            address(p.scores), address(p.input_ids), address(p.scores_out),
                            address(p.parents), address(p.hidden_rows), address(p.cand_scores),
                            address(p.cand_tokens), t);
}

}  // namespace
DSV4_ASCEND_KERNEL(select_draft_topk, SelectDraftTopkParams, launch)
}  // namespace dsv4::ascend
