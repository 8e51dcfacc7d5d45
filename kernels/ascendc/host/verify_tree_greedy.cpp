// SPDX-License-Identifier: Apache-2.0
#include "../verify_tree_greedy_tiling.h"
#include "ints.h"

DSV4_ASCEND_DECLARE(dsv4_verify_tree_greedy_aiv, GM_ADDR, GM_ADDR, GM_ADDR, GM_ADDR, GM_ADDR, GM_ADDR,
                    GM_ADDR, GM_ADDR, VerifyTreeGreedyTiling);

namespace dsv4::ascend {
namespace {

int32_t launch(const VerifyTreeGreedyParams& p, const Launch& l) {
  VerifyTreeGreedyTiling t{};
  t.requests = split_lines(p.B, 1,
                           {{p.predicts.data, p.n * 4},
                            {p.accept_index.data, row_bytes(p.accept_index)},
                            {p.accept_token_num.data, 4}});
  t.n = p.n, t.num_steps = p.num_steps;
  t.tokens_stride = row_bytes(p.candidates), t.row_stride = row_bytes(p.retrieve_index);
  t.next_stride = row_bytes(p.next_token), t.sibling_stride = row_bytes(p.next_sibling);
  t.target_stride = row_bytes(p.target_predict), t.accepted_stride = row_bytes(p.accept_index);
  t.rows = std::min(kGreedyBytes / greedy_bytes(p.n, p.num_steps), kGreedyRequests);
  return DSV4_ASCEND_LAUNCH(dsv4_verify_tree_greedy_aiv, blocks_for({t.requests.groups}), l,
                            address(p.candidates), address(p.retrieve_index), address(p.next_token),
                            address(p.next_sibling), address(p.target_predict), address(p.predicts),
                            address(p.accept_index), address(p.accept_token_num), t);
}

}  // namespace
DSV4_ASCEND_KERNEL(verify_tree_greedy, VerifyTreeGreedyParams, launch)
}  // namespace dsv4::ascend
