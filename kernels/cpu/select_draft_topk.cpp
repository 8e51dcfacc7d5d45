// SPDX-License-Identifier: Apache-2.0
// select_draft_topk: path scores of the k*k candidates of each request and the k best of them.
// One request a work item. Up to k = 4 every candidate is ranked without branches; beyond, the k best are kept sorted while
// the candidates stream by (k*k compares, few inserts: the probabilities of a row come in falling order). Contract: include/dsv4spec/tree.h.
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

// The indices of the K best of K*K keys, without a branch: a key's place is the number of those before it. `ranks` has room
// for all places.
template <int K>
inline void rank_all(const float* scores, int32_t* ranks) {
  constexpr int N = K * K;
  float key[N];
  for (int q = 0; q < N; ++q) key[q] = scores[q] != scores[q] ? -std::numeric_limits<float>::infinity() : scores[q];
  for (int q = 0; q < N; ++q) {
    int place = 0;
    for (int j = 0; j < N; ++j) place += j < q ? key[j] >= key[q] : key[j] > key[q];
    ranks[place] = q;
  }
}

// K: k, or 0 for one that is known at run time only.
template <int K>
void later_step(const SelectDraftTopkParams& p, int64_t begin, int64_t end) {
  const int64_t k = K ? K : p.k, first = k * k * (p.step - 1) + k;
  // In locals: after every store of an integer the views would be read again.
  const TensorView prob_view = p.topk_p, token_view = p.topk_index, out_view = p.cand_scores;
  const int64_t prob_pitch = prob_view.stride[0], token_pitch = token_view.stride[0], out_pitch = out_view.stride[1];
  const int64_t score_pitch = p.scores.stride[0], tokens_pitch = p.cand_tokens.stride[0], parents_pitch = p.parents.stride[0];
  const int64_t scores_out_pitch = p.scores_out.stride[0];
  const float *score = p.scores.at<float>(begin), *prob = prob_view.at<float>(begin * k);
  const int64_t* token = token_view.at<int64_t>(begin * k);
  int64_t *tokens = p.cand_tokens.at<int64_t>(begin), *parents = p.parents.at<int64_t>(begin);
  int64_t *input_ids = p.input_ids.at<int64_t>() + begin * k, *hidden_rows = p.hidden_rows.at<int64_t>() + begin * k;
  float *out = out_view.at<float>(begin), *scores_out = p.scores_out.at<float>(begin);
  for (int64_t b = begin; b < end; ++b) {
    float scores[K ? K * K : 1];  // of the candidates
    int32_t ranks[K ? K * K : 1];
    Best best(k);
    for (int64_t a = 0; a < k; ++a)
      for (int64_t c = 0; c < k; ++c) {
        const float x = score[a] * prob[a * prob_pitch + c];
        out[a * out_pitch + c] = x, tokens[a * k + c] = token[a * token_pitch + c];
        if constexpr (K) scores[a * k + c] = x;
        else best.offer(x, static_cast<int32_t>(a * k + c));
      }
    const int32_t* order = best.index;
    if constexpr (K) rank_all<K>(scores, ranks), order = ranks;
    for (int64_t i = 0; i < k; ++i) {
      const int64_t q = order[i], a = q / k;
      input_ids[i] = tokens[q];
      hidden_rows[i] = b * k + a;
      scores_out[i] = out[a * out_pitch + q - a * k];
      parents[i] = q + first;
    }
    score += score_pitch, prob += k * prob_pitch, token += k * token_pitch, tokens += tokens_pitch, parents += parents_pitch;
    input_ids += k, hidden_rows += k, out += out_view.stride[0], scores_out += scores_out_pitch;
  }
}

int32_t launch(const SelectDraftTopkParams& p, const Launch&) {
  parallel(p.B, grain_for(p.k * p.k * 32 + 256), [&](int64_t begin, int64_t end) {
    if (p.step == 0)
      for (int64_t b = begin; b < end; ++b) first_step(p, b);
    else if (p.k == 1) later_step<1>(p, begin, end);
    else if (p.k == 2) later_step<2>(p, begin, end);
    else if (p.k == 3) later_step<3>(p, begin, end);
    else if (p.k == 4) later_step<4>(p, begin, end);
    else later_step<0>(p, begin, end);
  });
  return DSV4_OK;
}

}  // namespace
DSV4_CPU_KERNEL(select_draft_topk, SelectDraftTopkParams, launch)
}  // namespace dsv4::cpu
