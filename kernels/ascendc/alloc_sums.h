// SPDX-License-Identifier: Apache-2.0
// What requests need, tokens and fresh pages, added up by the vector unit, 64 requests a sum: int32 lengths,
// pages of 2^i tokens. Needs are bounded by `limit` < 2^18, more than there is room for, so that sums in fp32
// are exact.
#pragma once
#include "ints.h"

namespace dsv4_ascend {

constexpr int64_t kSumGroup = 64;

class NeedSums {
 public:
  // `work`: eight arrays of `most` numbers. `sums`: two blocks.
  __aicore__ inline void init(const Bytes& work, const Bytes& sums, int64_t most) {
    most_ = static_cast<int32_t>(most);
    Bytes rest = work;
    for (int64_t i = 0; i < 6; ++i) array_[i] = take(rest, most * 4).ReinterpretCast<int32_t>();
    tokens_ = take(rest, most * 4).ReinterpretCast<float>();
    pages_ = rest.ReinterpretCast<float>();
    token_sums_ = sums.ReinterpretCast<int32_t>();
    page_sums_ = sums[kBlock].ReinterpretCast<int32_t>();
  }
  __aicore__ inline int64_t tokens(int64_t group) const { return at(token_sums_, group); }
  __aicore__ inline int64_t pages(int64_t group) const { return at(page_sums_, group); }

  __aicore__ inline void add_up(const LocalTensor<int32_t>& prefix, const LocalTensor<int32_t>& seq,
                                int32_t shift, int32_t limit, int32_t m) {
    const LocalTensor<int32_t>&last = array_[0], &first = array_[1], &need = array_[2], &good = array_[3],
          &a = array_[4], &b = array_[5];
    order<HardEvent::S_V>();
    vector_step();
    Duplicate(tokens_, 0.0f, most_);
    Duplicate(pages_, 0.0f, most_);
    Maxs(last, seq, 0, m);
    Maxs(first, prefix, 0, m);
    Mins(a, prefix, 0, m);
    vector_step();
    Sub(need, last, first, m);  // both at least 0: no overflow
    Mins(good, last, 1, m);     // 0 without a length
    Maxs(a, a, -1, m);
    vector_step();
    Mins(b, need, 0, m);
    Adds(a, a, 1, m);  // 0 below a prefix of 0
    vector_step();
    Maxs(b, b, -1, m);
    Mul(good, good, a, m);
    vector_step();
    Adds(b, b, 1, m);  // 0 where the prefix is beyond the length
    vector_step();
    Mul(good, good, b, m);
    vector_step();
    Mul(need, need, good, m);
    pages_of(last, a, b, shift, m);
    pages_of(first, a, b, shift, m);
    Sub(last, last, first, m);
    Mins(need, need, limit, m);
    vector_step();
    Mul(last, last, good, m);
    vector_step();
    Mins(last, last, limit, m);
    Cast(tokens_, need, RoundMode::CAST_NONE, static_cast<uint32_t>(m));
    vector_step();
    Cast(pages_, last, RoundMode::CAST_NONE, static_cast<uint32_t>(m));
    vector_step();
    const int32_t groups = most_ / static_cast<int32_t>(kSumGroup);
    WholeReduceSum(a.ReinterpretCast<float>(), tokens_, static_cast<int32_t>(kSumGroup), groups, 1, 1, 8);
    WholeReduceSum(b.ReinterpretCast<float>(), pages_, static_cast<int32_t>(kSumGroup), groups, 1, 1, 8);
    vector_step();
    Cast(token_sums_, a.ReinterpretCast<float>(), RoundMode::CAST_RINT, static_cast<uint32_t>(groups));
    Cast(page_sums_, b.ReinterpretCast<float>(), RoundMode::CAST_RINT, static_cast<uint32_t>(groups));
    order<HardEvent::V_S>();
  }

 private:
  // x = x / 2^shift, rounded up.
  __aicore__ inline void pages_of(const LocalTensor<int32_t>& x, const LocalTensor<int32_t>& whole,
                                  const LocalTensor<int32_t>& rest, int32_t shift, int32_t m) const {
    vector_step();
    ShiftRight(whole, x, shift, m);
    vector_step();
    ShiftLeft(rest, whole, shift, m);
    vector_step();
    Sub(rest, x, rest, m);
    vector_step();
    Mins(rest, rest, 1, m);
    vector_step();
    Add(x, whole, rest, m);
    vector_step();
  }
  __aicore__ inline int64_t at(const LocalTensor<int32_t>& sums, int64_t group) const {
    return sums.GetValue(static_cast<uint32_t>(group));
  }

  int32_t most_ = 0;
  LocalTensor<int32_t> array_[6];
  LocalTensor<int32_t> token_sums_, page_sums_;
  LocalTensor<float> tokens_, pages_;
};

}  // namespace dsv4_ascend
