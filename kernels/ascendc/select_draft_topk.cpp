// SPDX-License-Identifier: Apache-2.0
// select_draft_topk: path scores of the k*k candidates of each request and the k best of them.
// 24 bytes moved a candidate; at the usual k of 1 to 16 a launch's latency is the floor. Work: requests in
// groups of whole output lines over all vector cores. The vector unit forms the products of a row with one
// scalar, a key for each (NaN as -inf, -0 as 0) and the best of every row; then it takes, k times, the best
// of the rows' best and finds the next one of that row: those below by a maximum under a mask, those equal to
// it further right from the bits of a comparison. So equal scores come by index and nothing needs a value
// below -inf. Rows of a request beyond local memory (k > 84) are streamed; a row is then loaded again when
// one of its candidates is taken. Contract: include/dsv4spec/tree.h.
//   UB, step 0 (142.1 KB): tokens, parents, hidden rows, probabilities 140 | work rows 2.1
//   later (162.2 KB): products, keys, tokens 140 | scores, best of each row and its column 3 | results 8 |
//   outputs 7 | masks 2.6 | the rest of a row 1 | work 0.6
#include "select_next.h"

namespace dsv4_ascend {
namespace {

class FirstStep {
 public:
  __aicore__ inline FirstStep(GM_ADDR prob, GM_ADDR token, GM_ADDR input_ids, GM_ADDR scores_out,
                              GM_ADDR parents, GM_ADDR hidden_rows, GM_ADDR cand_scores, GM_ADDR cand_tokens,
                              const SelectDraftTopkTiling& t)
      : t_(t), prob_(prob), token_(token), input_ids_(input_ids), scores_out_(scores_out), parents_(parents),
        hidden_rows_(hidden_rows), cand_scores_(cand_scores), cand_tokens_(cand_tokens) {
    pipe_.InitBuffer(buffer_, kSelectBytes + 2 * (kMaxK + 8) * 4);
    const Bytes all = buffer_.Get<uint8_t>();
    ids_ = select_ids(t.k), parent_ids_ = select_ids(t.k + 1), probs_ = padded(t.k * 4);
    tokens_ = all;
    hidden_ = all[static_cast<uint32_t>(t.rows * ids_)];
    lists_ = hidden_[static_cast<uint32_t>(t.rows * ids_)];
    values_ = lists_[static_cast<uint32_t>(t.rows * parent_ids_)];
    numbers_ = all[kSelectBytes].ReinterpretCast<int32_t>();
    request_ = all[kSelectBytes + (kMaxK + 8) * 4].ReinterpretCast<int32_t>();
  }

  __aicore__ inline void run() {
    const Range mine = share_of(t_.requests, GetBlockIdx());
    if (mine.begin == mine.end) return;
    const int32_t k = static_cast<int32_t>(t_.k);
    CreateVecIndex(numbers_, static_cast<int32_t>(-1), static_cast<uint32_t>(k + 1));
    vector_step();
    for (int64_t r = 0; r < least(t_.rows, mine.end - mine.begin);
         ++r)  // every request's parents are the same
      Cast(lists_[static_cast<uint32_t>(r * parent_ids_)].ReinterpretCast<int64_t>(), numbers_,
           RoundMode::CAST_NONE, static_cast<uint32_t>(k + 1));
    for (int64_t b = mine.begin; b < mine.end; b += t_.rows) requests(b, least(t_.rows, mine.end - b));
  }

 private:
  __aicore__ inline void requests(int64_t first, int64_t count) {
    const int64_t k = t_.k;
    order<HardEvent::MTE3_MTE2>();
    rows_in(values_, prob_ + first * t_.prob_stride, t_.prob_stride, count, k * 4, probs_);
    rows_in(tokens_, token_ + first * t_.token_stride, t_.token_stride, count, k * 8, ids_);
    order<HardEvent::MTE3_V>();
    for (int64_t r = 0; r < count; ++r) {
      vector_step();
      Duplicate(request_, static_cast<int32_t>(first + r), static_cast<int32_t>(k));
      vector_step();
      Cast(hidden_[static_cast<uint32_t>(r * ids_)].ReinterpretCast<int64_t>(), request_,
           RoundMode::CAST_NONE, static_cast<uint32_t>(k));
    }
    order<HardEvent::V_MTE3>();
    rows_out(hidden_rows_ + first * k * 8, hidden_, k * 8, count, k * 8, ids_);
    rows_out(parents_ + first * t_.parents_stride, lists_, t_.parents_stride, count, (k + 1) * 8,
             parent_ids_);
    order<HardEvent::MTE2_MTE3>();
    rows_out(input_ids_ + first * k * 8, tokens_, k * 8, count, k * 8, ids_);
    rows_out(cand_tokens_ + first * t_.cand_tokens_stride, tokens_, t_.cand_tokens_stride, count, k * 8,
             ids_);
    rows_out(scores_out_ + first * t_.scores_out_stride, values_, t_.scores_out_stride, count, k * 4, probs_);
    rows_out(cand_scores_ + first * t_.cand_stride, values_, t_.cand_stride, count, k * 4, probs_);
  }

  const SelectDraftTopkTiling& t_;
  GM_ADDR prob_;
  GM_ADDR token_;
  GM_ADDR input_ids_;
  GM_ADDR scores_out_;
  GM_ADDR parents_;
  GM_ADDR hidden_rows_;
  GM_ADDR cand_scores_;
  GM_ADDR cand_tokens_;
  TPipe pipe_;
  TBuf<TPosition::VECIN> buffer_;
  int64_t ids_, parent_ids_, probs_;
  Bytes tokens_, hidden_, lists_, values_;
  LocalTensor<int32_t> numbers_, request_;
};

}  // namespace
}  // namespace dsv4_ascend

extern "C" DSV4_VECTOR_KERNEL void dsv4_select_draft_topk_first(GM_ADDR prob, GM_ADDR token,
                                                                GM_ADDR input_ids, GM_ADDR scores_out,
                                                                GM_ADDR parents, GM_ADDR hidden_rows,
                                                                GM_ADDR cand_scores, GM_ADDR cand_tokens,
                                                                SelectDraftTopkTiling tiling) {
  KERNEL_TASK_TYPE_DEFAULT(KERNEL_TYPE_AIV_ONLY);
  dsv4_ascend::FirstStep(prob, token, input_ids, scores_out, parents, hidden_rows, cand_scores, cand_tokens,
                         tiling)
      .run();
}

extern "C" DSV4_VECTOR_KERNEL void dsv4_select_draft_topk_next(GM_ADDR prob, GM_ADDR token, GM_ADDR score,
                                                               GM_ADDR input_ids, GM_ADDR scores_out,
                                                               GM_ADDR parents, GM_ADDR hidden_rows,
                                                               GM_ADDR cand_scores, GM_ADDR cand_tokens,
                                                               SelectDraftTopkTiling tiling) {
  KERNEL_TASK_TYPE_DEFAULT(KERNEL_TYPE_AIV_ONLY);
  dsv4_ascend::NextStep(prob, token, score, input_ids, scores_out, parents, hidden_rows, cand_scores,
                        cand_tokens, tiling)
      .run();
}
