// SPDX-License-Identifier: Apache-2.0
// select_draft_topk: path scores of the k*k candidates of each request and the k best of them.
// One request a work item. Up to k = 4 every candidate is ranked without branches; beyond, the k best are kept sorted while
// the candidates stream by (k*k compares, few inserts: the probabilities of a row come in falling order). With AVX-512 and
// k = 2, four requests at once. Contract: include/dsv4spec/tree.h.
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

#if defined(__AVX512F__)
// k = 2 with whole rows one after another: four requests a vector, the four candidates of each in neighbouring lanes.
// Returns where fewer than four are left.
int64_t later_step_of_pairs(const SelectDraftTopkParams& p, int64_t begin, int64_t end) {
  const bool packed = p.topk_p.stride[0] == 2 && p.topk_index.stride[0] == 2 && p.scores.stride[0] == 2 &&
                      p.scores_out.stride[0] == 2 && p.parents.stride[0] == 2 && p.cand_scores.stride[0] == 4 &&
                      p.cand_scores.stride[1] == 2 && p.cand_tokens.stride[0] == 4;
  if (!packed) return begin;
  constexpr __mmask16 all = 0xffff;
  const __m512i lanes = _mm512_setr_epi32(0, 1, 2, 3, 4, 5, 6, 7, 8, 9, 10, 11, 12, 13, 14, 15);
  const __m512i row = _mm512_setr_epi32(0, 0, 1, 1, 2, 2, 3, 3, 4, 4, 5, 5, 6, 6, 7, 7);
  const __m512i both = _mm512_setr_epi32(0, 16, 1, 17, 2, 18, 3, 19, 0, 0, 0, 0, 0, 0, 0, 0);  // one of each, by turns
  const __m512i both64 = _mm512_setr_epi32(0, 0, 16, 0, 1, 0, 17, 0, 2, 0, 18, 0, 3, 0, 19, 0);
  const __m512 least = _mm512_set1_ps(-std::numeric_limits<float>::infinity());
  const __m512i first = _mm512_set1_epi64(4 * (p.step - 1) + 2);
  const float *score = p.scores.at<float>(), *prob = p.topk_p.at<float>();
  const int64_t* token = p.topk_index.at<int64_t>();
  float *out = p.cand_scores.at<float>(), *scores_out = p.scores_out.at<float>();
  int64_t *tokens = p.cand_tokens.at<int64_t>(), *parents = p.parents.at<int64_t>();
  int64_t *input_ids = p.input_ids.at<int64_t>(), *hidden_rows = p.hidden_rows.at<int64_t>();
  for (; begin + 4 <= end; begin += 4) {
    const __m512 scores = _mm512_maskz_loadu_ps(0xff, score + 2 * begin);
    const __m512 x = _mm512_maskz_permutexvar_ps(all, row, scores) * _mm512_loadu_ps(prob + 4 * begin);
    _mm512_storeu_ps(out + 4 * begin, x);
    const __m512i low = _mm512_loadu_si512(token + 4 * begin), high = _mm512_loadu_si512(token + 4 * begin + 8);
    _mm512_storeu_si512(tokens + 4 * begin, low);
    _mm512_storeu_si512(tokens + 4 * begin + 8, high);
    // Who is beaten by the candidate one, two, three places on, in a circle? Of equal ones the lower wins: it lies ahead
    // where the circle closes.
    const __m512 key = _mm512_mask_mov_ps(x, _mm512_cmp_ps_mask(x, x, _CMP_UNORD_Q), least);
    auto beaten = [key](__m512 other, __mmask16 closes) -> uint32_t {
      return _mm512_cmp_ps_mask(other, key, _CMP_GT_OQ) | (_mm512_cmp_ps_mask(other, key, _CMP_EQ_OQ) & closes);
    };
    const uint32_t one = beaten(_mm512_maskz_permute_ps(all, key, 0x39), 0x8888);
    const uint32_t two = beaten(_mm512_maskz_permute_ps(all, key, 0x4e), 0xcccc);
    const uint32_t three = beaten(_mm512_maskz_permute_ps(all, key, 0x93), 0xeeee);
    const uint32_t never = ~(one | two | three), once = (one ^ two ^ three) & ~(one & two & three);
    const __m512i best = _mm512_maskz_compress_epi32(static_cast<__mmask16>(never), lanes);
    const __m512i next = _mm512_maskz_compress_epi32(static_cast<__mmask16>(once), lanes);
    const __m512 chosen = _mm512_maskz_permutexvar_ps(all, _mm512_permutex2var_epi32(best, both, next), x);
    _mm512_mask_storeu_ps(scores_out + 2 * begin, 0xff, chosen);
    const __m512i from = _mm512_maskz_permutex2var_epi32(0x5555, best, both64, next);
    _mm512_storeu_si512(input_ids + 2 * begin, _mm512_permutex2var_epi64(low, from, high));
    _mm512_storeu_si512(parents + 2 * begin, first + (from & _mm512_set1_epi64(3)));
    _mm512_storeu_si512(hidden_rows + 2 * begin, _mm512_set1_epi64(2 * begin) + (from >> 1));
  }
  return begin;
}
#else
int64_t later_step_of_pairs(const SelectDraftTopkParams&, int64_t begin, int64_t) { return begin; }
#endif

int32_t launch(const SelectDraftTopkParams& p, const Launch&) {
  parallel(p.B, grain_for(p.k * p.k * 32 + 256), [&](int64_t begin, int64_t end) {
    if (p.step == 0)
      for (int64_t b = begin; b < end; ++b) first_step(p, b);
    else if (p.k == 1) later_step<1>(p, begin, end);
    else if (p.k == 2) later_step<2>(p, later_step_of_pairs(p, begin, end), end);
    else if (p.k == 3) later_step<3>(p, begin, end);
    else if (p.k == 4) later_step<4>(p, begin, end);
    else later_step<0>(p, begin, end);
  });
  return DSV4_OK;
}

}  // namespace
DSV4_CPU_KERNEL(select_draft_topk, SelectDraftTopkParams, launch)
}  // namespace dsv4::cpu
