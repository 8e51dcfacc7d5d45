// SPDX-License-Identifier: Apache-2.0
#pragma once
#include "../tensor_view.h"

namespace dsv4 {

constexpr int kMaxTreeNodes = 256;  // bounds the stack scratch of the tree kernels

struct SelectDraftTopkParams {
  TensorView topk_p, topk_index, scores;
  TensorView input_ids, scores_out, parents, hidden_rows, cand_scores, cand_tokens;
  int64_t B, k, step;
};

struct BuildTreeParams {
  TensorView bonus_tokens, parent_list, selected_index, draft_tokens, live_seq_lens;
  TensorView tokens, positions, retrieve_index, next_token, next_sibling, tree_mask, status;
  int64_t B, n, topk, mask_mode;
};

struct VerifyTreeGreedyParams {
  TensorView candidates, retrieve_index, next_token, next_sibling, target_predict;
  TensorView predicts, accept_index, accept_token_num;
  int64_t B, n, num_steps;
};

struct VerifyTreeSamplingParams {
  TensorView candidates, retrieve_index, next_token, next_sibling, target_probs, coins, final_coins;
  TensorView predicts, accept_index, accept_token_num;
  int64_t B, n, V, num_steps;
  double threshold_single, threshold_acc;
};

}  // namespace dsv4
