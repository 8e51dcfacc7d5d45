// SPDX-License-Identifier: Apache-2.0
// select_draft_topk behind the first step; how it works stands in select_draft_topk.cpp.
#pragma once
#include "ints.h"
#include "select_draft_topk_tiling.h"

namespace dsv4_ascend {

constexpr int64_t kMaxK = 256;
constexpr uint32_t kLowestBits = 0xff800000u;  // of -inf

class NextStep {
 public:
  __aicore__ inline NextStep(GM_ADDR prob, GM_ADDR token, GM_ADDR score, GM_ADDR input_ids,
                             GM_ADDR scores_out, GM_ADDR parents, GM_ADDR hidden_rows, GM_ADDR cand_scores,
                             GM_ADDR cand_tokens, const SelectDraftTopkTiling& t)
      : t_(t), prob_(prob), token_(token), score_(score), input_ids_(input_ids), scores_out_(scores_out),
        parents_(parents), hidden_rows_(hidden_rows), cand_scores_(cand_scores), cand_tokens_(cand_tokens),
        width_(select_width(t.k)), ids_(select_ids(t.k)) {
    pipe_.InitBuffer(buffer_, kUsed);
    const Bytes all = buffer_.Get<uint8_t>();
    products_ = all.ReinterpretCast<float>();
    keys_ = all[static_cast<uint32_t>(t.rows * width_ * 4)].ReinterpretCast<float>();
    tokens_ = all[static_cast<uint32_t>(t.rows * width_ * 8)];
    Bytes rest = all[kSelectBytes];
    scores_ = take(rest, kMaxK * 4).ReinterpretCast<float>();
    best_ = take(rest, kMaxK * 4).ReinterpretCast<float>();
    column_ = take(rest, kMaxK * 4).ReinterpretCast<int32_t>();
    results_ = take(rest, kMaxK * kBlock).ReinterpretCast<float>();
    chosen_tokens_ = take(rest, kMaxK * 8).ReinterpretCast<int64_t>();
    chosen_rows_ = take(rest, kMaxK * 8).ReinterpretCast<int64_t>();
    chosen_parents_ = take(rest, kMaxK * 8).ReinterpretCast<int64_t>();
    chosen_scores_ = take(rest, kMaxK * 4).ReinterpretCast<float>();
    mask_ = take(rest, kMaskBytes);
    equal_ = take(rest, kMaxK / 8);
    below_ = take(rest, kMaxK / 8);
    rest_of_row_ = take(rest, kMaxK * 4).ReinterpretCast<float>();
    work_ = take(rest, kWorkBytes).ReinterpretCast<float>();
    top_ = take(rest, kBlock).ReinterpretCast<float>();
    one_token_ = take(rest, kBlock).ReinterpretCast<int64_t>();
  }

  __aicore__ inline void run() {
    const Range mine = share_of(t_.requests, GetBlockIdx());
    // Transfers leave the ends of the rows as they are, and comparisons read them.
    fill(products_.ReinterpretCast<uint8_t>(), 0, t_.rows * width_ * 4);
    for (int64_t b = mine.begin; b < mine.end; ++b) request(b);
  }

 private:
  static constexpr int64_t kMaskBytes = 2560,
                           kWorkBytes = 512;  // a bit a candidate; 4 repeats' maxima and indices
  static constexpr uint32_t kUsed = kSelectBytes + kMaxK * (4 * 5 + 8 * 3) + kMaxK * kBlock + kMaskBytes +
                                    2 * kMaxK / 8 + kWorkBytes + 2 * kBlock;

  __aicore__ inline float lowest() const { return -__builtin_inff(); }
  __aicore__ inline bool resident() const { return t_.rows >= t_.k; }
  __aicore__ inline LocalTensor<float> row(const LocalTensor<float>& rows, int64_t a) const {
    return rows[static_cast<uint32_t>(a * width_)];
  }

  __aicore__ inline void request(int64_t b) {
    order<HardEvent::S_MTE2>();
    bytes_in(scores_.ReinterpretCast<uint8_t>(), score_ + b * t_.score_stride, t_.k * 4);
    for (int64_t a = 0; a < t_.k; a += t_.rows) candidates(b, a, least(t_.rows, t_.k - a));
    order<HardEvent::V_S>();
    for (int64_t a = 0; a < t_.k; ++a) {
      const uint32_t at = static_cast<uint32_t>(a * (kBlock / 4));
      best_.SetValue(static_cast<uint32_t>(a), results_.GetValue(at));
      column_.SetValue(static_cast<uint32_t>(a), results_.ReinterpretCast<int32_t>().GetValue(at + 1));
    }
    order<HardEvent::MTE3_S>();
    for (int64_t rank = 0; rank < t_.k; ++rank) choose(b, rank);
    order<HardEvent::S_MTE3>();
    bytes_out(input_ids_ + b * t_.k * 8, chosen_tokens_.ReinterpretCast<uint8_t>(), t_.k * 8);
    bytes_out(hidden_rows_ + b * t_.k * 8, chosen_rows_.ReinterpretCast<uint8_t>(), t_.k * 8);
    bytes_out(parents_ + b * t_.parents_stride, chosen_parents_.ReinterpretCast<uint8_t>(), t_.k * 8);
    bytes_out(scores_out_ + b * t_.scores_out_stride, chosen_scores_.ReinterpretCast<uint8_t>(), t_.k * 4);
  }

  // Rows a .. a+count-1 into local memory, their products and tokens out, the best of each.
  __aicore__ inline void candidates(int64_t b, int64_t a, int64_t count) {
    const int64_t k = t_.k, m = b * k + a;
    load(m, count);
    rows_in(tokens_, token_ + m * t_.token_stride, t_.token_stride, count, k * 8, ids_);
    multiply(a, count);
    order<HardEvent::V_MTE3>();
    rows_out(cand_scores_ + b * t_.cand_stride + a * t_.cand_row_stride, products_.ReinterpretCast<uint8_t>(),
             t_.cand_row_stride, count, k * 4, width_ * 4);
    order<HardEvent::MTE2_MTE3>();
    rows_out(cand_tokens_ + b * t_.cand_tokens_stride + a * k * 8, tokens_, k * 8, count, k * 8, ids_);
    form_keys(count);
    for (int64_t i = 0; i < count; ++i) {
      ReduceMax(results_[static_cast<uint32_t>((a + i) * (kBlock / 4))], row(keys_, i), work_,
                static_cast<int32_t>(k), true);
      vector_step();
    }
  }
  __aicore__ inline void load(int64_t m, int64_t count) {
    order<HardEvent::V_MTE2>();
    order<HardEvent::S_MTE2>();
    order<HardEvent::MTE3_MTE2>();
    rows_in(products_.ReinterpretCast<uint8_t>(), prob_ + m * t_.prob_stride, t_.prob_stride, count, t_.k * 4,
            width_ * 4);
  }
  __aicore__ inline void multiply(int64_t a, int64_t count) {
    order<HardEvent::MTE2_S>();
    order<HardEvent::MTE2_V>();
    for (int64_t i = 0; i < count; ++i) {
      const float score = scores_.GetValue(static_cast<uint32_t>(a + i));
      Muls(row(products_, i), row(products_, i), score, static_cast<int32_t>(t_.k));
    }
    vector_step();
  }
  __aicore__ inline void form_keys(int64_t count) {
    const uint32_t all = static_cast<uint32_t>(count * width_);
    Compare(mask_, products_, products_, CMPMODE::EQ, all);  // false for NaN
    vector_step();
    Select(keys_, mask_, products_, lowest(), SELMODE::VSEL_TENSOR_SCALAR_MODE, all);
    vector_step();
    Adds(keys_, keys_, 0.0f, static_cast<int32_t>(all));  // -0 becomes 0
    vector_step();
  }

  __aicore__ inline void choose(int64_t b, int64_t rank) {
    const int64_t k = t_.k;
    order<HardEvent::S_V>();
    ReduceMax(top_, best_, work_, static_cast<int32_t>(k), true);
    order<HardEvent::V_S>();
    const int64_t a = top_.ReinterpretCast<int32_t>().GetValue(1);
    const float value = best_.GetValue(static_cast<uint32_t>(a));
    const int64_t c = column_.GetValue(static_cast<uint32_t>(a));
    int64_t at = a;  // where the row lies
    if (!resident()) {
      at = 0;
      load(b * k + a, 1);
      bytes_in(one_token_.ReinterpretCast<uint8_t>(), token_ + (b * k + a) * t_.token_stride + c * 8, 8);
      multiply(a, 1);
      form_keys(1);
      order<HardEvent::V_S>();
    }
    const uint32_t to = static_cast<uint32_t>(rank), column = static_cast<uint32_t>(c);
    const LocalTensor<int64_t> ids =
        tokens_[static_cast<uint32_t>(resident() ? a * ids_ : 0)].ReinterpretCast<int64_t>();
    chosen_tokens_.SetValue(to, resident() ? ids.GetValue(column) : one_token_.GetValue(0));
    chosen_rows_.SetValue(to, b * k + a);
    chosen_parents_.SetValue(to, a * k + c + t_.first_parent);
    chosen_scores_.SetValue(to, row(products_, at).GetValue(column));
    if (rank + 1 < k) advance(a, row(keys_, at), value, c);
  }

  // The next best of row a behind column c, whose key is `value`; there is one.
  __aicore__ inline void advance(int64_t a, const LocalTensor<float>& keys, float value, int64_t c) {
    const uint32_t width = static_cast<uint32_t>(width_);
    order<HardEvent::S_V>();
    vector_step();
    Compares(equal_, keys, value, CMPMODE::EQ, width);
    Compares(below_, keys, value, CMPMODE::LT, width);
    vector_step();
    Select(rest_of_row_, below_, keys, lowest(), SELMODE::VSEL_TENSOR_SCALAR_MODE, width);
    vector_step();
    ReduceMax(top_, rest_of_row_, work_, static_cast<int32_t>(t_.k), true);
    order<HardEvent::V_S>();
    int64_t next = first_equal(c + 1);
    if (next < 0) {
      value = top_.GetValue(0);
      next = top_.ReinterpretCast<int32_t>().GetValue(1);
      if (top_.ReinterpretCast<uint32_t>().GetValue(0) ==
          kLowestBits) {  // the masked ones have this value too: the first that had it before
        order<HardEvent::S_V>();
        Compares(equal_, keys, value, CMPMODE::EQ, width);
        order<HardEvent::V_S>();
        next = first_equal(0);
      }
    }
    best_.SetValue(static_cast<uint32_t>(a), value);
    column_.SetValue(static_cast<uint32_t>(a), static_cast<int32_t>(next));
  }
  // The first column from `from` on whose bit is set in equal_, -1 without one.
  __aicore__ inline int64_t first_equal(int64_t from) const {
    const LocalTensor<uint64_t> words = equal_.ReinterpretCast<uint64_t>();
    for (int64_t w = from / 64; w * 64 < t_.k; ++w) {
      uint64_t bits = words.GetValue(static_cast<uint32_t>(w));
      if (from > w * 64) bits = bits >> (from - w * 64) << (from - w * 64);
      if (bits == 0) continue;
      int64_t c = w * 64;
      for (int64_t s = 32; s > 0; s /= 2)
        if ((bits & ((static_cast<uint64_t>(1) << s) - 1)) == 0) bits >>= s, c += s;
      return c < t_.k ? c : -1;
    }
    return -1;
  }

  const SelectDraftTopkTiling& t_;
  GM_ADDR prob_;
  GM_ADDR token_;
  GM_ADDR score_;
  GM_ADDR input_ids_;
  GM_ADDR scores_out_;
  GM_ADDR parents_;
  GM_ADDR hidden_rows_;
  GM_ADDR cand_scores_;
  GM_ADDR cand_tokens_;
  int64_t width_, ids_;
  TPipe pipe_;
  TBuf<TPosition::VECIN> buffer_;
  Bytes tokens_, mask_, equal_, below_;
  LocalTensor<float> products_, keys_, scores_, best_, results_, chosen_scores_, rest_of_row_, work_, top_;
  LocalTensor<int32_t> column_;
  LocalTensor<int64_t> chosen_tokens_, chosen_rows_, chosen_parents_, one_token_;
};

}  // namespace dsv4_ascend
