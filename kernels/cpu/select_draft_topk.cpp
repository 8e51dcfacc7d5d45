// SPDX-License-Identifier: Apache-2.0
// select_draft_topk: path scores of the k*k candidates of each request and the k best of them.
// One request a work item. The k best are kept sorted while the candidates stream by (k*k compares, few
// inserts: the probabilities of a row come in falling order). Contract: include/dsv4spec/tree.h.
#include <limits>

#include "kernel.h"

namespace dsv4::cpu {
namespace {

// The k largest keys seen so far, largest first; of equal keys the one that came first.
struct Best {
  int64_t k, count = 0;
  float key[kMaxTreeNodes];
  int32_t index[kMaxTreeNodes];

  explicit Best(int64_t size) : k(size) {}
  void offer(float x, int32_t i) {
    const float ranked = x != x ? -std::numeric_limits<float>::infinity() : x;  // NaN never beats a number
    if (count == k && !(ranked > key[k - 1])) return;
    int64_t at = count < k ? count++ : k - 1;
    for (; at > 0 && key[at - 1] < ranked; --at) key[at] = key[at - 1], index[at] = index[at - 1];
    key[at] = ranked, index[at] = i;
  }
};

void first_step(const SelectDraftTopkParams& p, int64_t b) {
  const float* prob = p.topk_p.at<float>(b);
  const int64_t* token = p.topk_index.at<int64_t>(b);
  *p.parents.at<int64_t>(b) = -1;
  for (int64_t c = 0; c < p.k; ++c) {
    p.input_ids.at<int64_t>()[b * p.k + c] = token[c];
    p.hidden_rows.at<int64_t>()[b * p.k + c] = b;
    p.scores_out.at<float>(b)[c] = prob[c];
    p.parents.at<int64_t>(b)[c + 1] = c;
    p.cand_scores.at<float>(b, 0)[c] = prob[c];
    p.cand_tokens.at<int64_t>(b)[c] = token[c];
  }
}

void later_step(const SelectDraftTopkParams& p, int64_t b) {
  const int64_t k = p.k, first = k * k * (p.step - 1) + k;
  // In locals: after every store of an integer the views would be read again.
  const float *score = p.scores.at<float>(b), *prob = p.topk_p.at<float>(b * k);
  const int64_t prob_pitch = p.topk_p.stride[0], token_pitch = p.topk_index.stride[0];
  const int64_t* token = p.topk_index.at<int64_t>(b * k);
  int64_t *tokens = p.cand_tokens.at<int64_t>(b), *parents = p.parents.at<int64_t>(b);
  int64_t *input_ids = p.input_ids.at<int64_t>() + b * k, *hidden_rows = p.hidden_rows.at<int64_t>() + b * k;
  float *out = p.cand_scores.at<float>(b), *scores_out = p.scores_out.at<float>(b);
  const int64_t out_pitch = p.cand_scores.stride[1];
  Best best(k);
  for (int64_t a = 0; a < k; ++a, prob += prob_pitch, token += token_pitch)
    for (int64_t c = 0; c < k; ++c) {
      out[a * out_pitch + c] = score[a] * prob[c], tokens[a * k + c] = token[c];
      best.offer(out[a * out_pitch + c], static_cast<int32_t>(a * k + c));
    }
  for (int64_t i = 0; i < k; ++i) {
    const int64_t q = best.index[i], a = q / k;
    input_ids[i] = tokens[q];
    hidden_rows[i] = b * k + a;
    scores_out[i] = out[a * out_pitch + q - a * k];
    parents[i] = q + first;
  }
}

int32_t launch(const SelectDraftTopkParams& p, const Launch&) {
  parallel(p.B, grain_for(p.k * p.k * 32 + 256), [&](int64_t begin, int64_t end) {
    for (int64_t b = begin; b < end; ++b)
      if (p.step == 0) first_step(p, b);
      else later_step(p, b);
  });
  return DSV4_OK;
}

}  // namespace
DSV4_CPU_KERNEL(select_draft_topk, SelectDraftTopkParams, launch)
}  // namespace dsv4::cpu
