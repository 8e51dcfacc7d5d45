// SPDX-License-Identifier: Apache-2.0
// The online softmax of M (row, head) pairs on the vector unit, over tiles of `groups` groups of LANES keys:
// scores [M][groups * LANES] become weights, 0 where a pair does not see a key. Groups are added
// lane by lane in order, then reduced, so a pair's sum does not depend on groups in which it sees nothing. A score that is not finite counts as NaN: the key or the query holds NaN or infinity. It is kept
// apart, in `poison`, which the result gets added, so that no comparison meets a NaN.
#pragma once
#include "mhc_vector.h"
#include "swa_request.h"

namespace dsv4_ascend {

constexpr float kSwaLowest = -3.4028234e38f;

template <int32_t LANES>
class SwaSoftmax {
 public:
  static constexpr int32_t kWords = LANES / 32;  // of a pair in a group: a bit a key

  __aicore__ inline SwaSoftmax(int32_t pairs, int32_t groups, float scale)
      : m_(pairs), most_(groups), scale_(scale) {}
  __aicore__ inline void init(TPipe* pipe) {
    pipe->InitBuffer(buffer_, swa_softmax_bytes(m_, most_, LANES));
    const LocalTensor<float> all = buffer_.template Get<float>();
    const int32_t row = round_up(m_, kRowLanes), bits = round_up(m_ * most_ * kWords, kRowLanes);
    top = all, sum = all[row], poison = all[2 * row], sink = all[3 * row], shrink_ = all[4 * row],
    part_ = all[5 * row];
    blocks = all[6 * row], other_ = blocks[8 * m_];
    words_ = other_[8 * m_].ReinterpretCast<uint32_t>(), chosen_ = words_[bits].ReinterpretCast<uint8_t>();
    spare = words_[2 * bits].ReinterpretCast<float>();
    Duplicate(all, 0.f, 6 * row);  // blocks are made of eight pairs
    ordered();
    event_ = static_cast<int32_t>(pipe->AllocEventID<HardEvent::V_S>());
    arrived_ = static_cast<int32_t>(pipe->AllocEventID<HardEvent::S_V>());
    SetFlag<HardEvent::V_S>(event_);
  }
  __aicore__ inline void finish(TPipe* pipe) {
    WaitFlag<HardEvent::V_S>(event_);
    pipe->ReleaseEventID<HardEvent::V_S>(event_);
    pipe->ReleaseEventID<HardEvent::S_V>(arrived_);
  }

  __aicore__ inline void begin() {
    Duplicate(top, kSwaLowest, m_);
    Duplicate(sum, 0.f, m_);
    Duplicate(poison, 0.f, m_);
    ordered();
  }

  // Works on that many pairs from here on; LANES times it is a multiple of 64.
  __aicore__ inline void use(int32_t pairs) { m_ = pairs; }

  // The scalar unit writes words and sinks between these two.
  __aicore__ inline void open() { WaitFlag<HardEvent::V_S>(event_); }
  __aicore__ inline void set_word(int32_t at, uint32_t seen) { words_.SetValue(at, seen); }
  __aicore__ inline void set_sink(int32_t pair, float x) { sink.SetValue(pair, x); }
  __aicore__ inline void set_bad(int32_t pair, bool bad) {  // before the sinks, whose place it takes
    sink.template ReinterpretCast<uint32_t>().SetValue(pair, bad ? 0x7fc00000u : 0u);
  }
  __aicore__ inline void close() {
    SetFlag<HardEvent::S_V>(arrived_);
    WaitFlag<HardEvent::S_V>(arrived_);
  }

  // Pairs that set_bad named give NaN.
  __aicore__ inline void add_bad() {
    Add(poison, poison, sink, m_);
    ordered();
  }

  // x: scores, then weights. Afterwards `blocks` holds, in a block a pair, what the sum so far is to be
  // shrunk by.
  __aicore__ inline void weigh(const LocalTensor<float>& x, int32_t groups) {
    const int32_t width = groups * LANES, n = m_ * width;
    const LocalTensor<uint8_t> seen = words_.ReinterpretCast<uint8_t>();
    const uint8_t rows = static_cast<uint8_t>(m_), row = static_cast<uint8_t>(width / 8);
    Muls(x, x, scale_, n);
    ordered();
    Muls(spare, x, 0.f, n);  // NaN where the score is not finite
    ordered();
    Select(spare, seen, spare, 0.f, SELMODE::VSEL_TENSOR_SCALAR_MODE, static_cast<uint32_t>(n));
    ordered();
    Compares(chosen_, spare, 0.f, CMPMODE::EQ, static_cast<uint32_t>(n));
    ordered();
    WholeReduceSum(part_, added(spare, groups), LANES, m_, 1, 1, row);
    And(chosen_.ReinterpretCast<uint16_t>(), chosen_.ReinterpretCast<uint16_t>(),
        words_.ReinterpretCast<uint16_t>(), n / 16);
    ordered();
    Add(poison, poison, part_, m_);
    ordered();
    SetFlag<HardEvent::V_S>(event_);  // the words have been read
    Select(x, chosen_, x, kSwaLowest, SELMODE::VSEL_TENSOR_SCALAR_MODE, static_cast<uint32_t>(n));
    ordered();
    WholeReduceMax(part_, largest(x, groups), LANES, m_, 1, 1, row, ReduceOrder::ORDER_ONLY_VALUE);
    ordered();
    Max(part_, part_, top, m_);
    ordered();
    Sub(shrink_, top, part_, m_);
    spread(other_, part_, m_);
    ordered();
    Adds(top, part_, 0.f, m_);
    Exp(shrink_, shrink_, m_);
    for (int32_t at = 0; at < width; at += kRowLanes)
      Sub(x[at], x[at], other_, static_cast<uint64_t>(min_of(LANES, kRowLanes)), rows,
          BinaryRepeatParams(1, 1, 0, row, row, 1));
    ordered();
    Exp(x, x, n);
    Mul(sum, sum, shrink_, m_);
    spread(blocks, shrink_, m_);
    ordered();
    Select(x, chosen_, x, 0.f, SELMODE::VSEL_TENSOR_SCALAR_MODE, static_cast<uint32_t>(n));
    ordered();
  }
  // Adds the weights, rounded or not, to the sums.
  __aicore__ inline void add_up(const LocalTensor<float>& x, int32_t groups) {
    WholeReduceSum(part_, added(x, groups), LANES, m_, 1, 1, groups * LANES / 8);
    ordered();
    Add(sum, sum, part_, m_);
    ordered();
  }

  // After the last tile: `blocks` gets what the sums are to be divided by; the result are blocks of what to
  // add then. No visible key: 0 divided by a number that is not 0.
  __aicore__ inline LocalTensor<float> divisors(bool has_sink) {
    Maxs(part_, sum, 1e-30f, m_);
    if (has_sink) {
      Sub(shrink_, sink, top, m_);
      ordered();
      SetFlag<HardEvent::V_S>(event_);
      Exp(shrink_, shrink_, m_);
      ordered();
      Add(part_, part_, shrink_, m_);
    }
    ordered();
    spread(blocks, part_, m_);
    spread(other_, poison, m_);
    ordered();
    return other_;
  }

  LocalTensor<float> top, sum, poison, sink, blocks;
  LocalTensor<float> spare;  // [M][groups * LANES]: free outside of weigh and add_up

 private:
  // The groups of each pair, lane by lane, in order; in `spare` where there are several. (Reducing a repeat takes
  // seven times as long as adding it.)
  __aicore__ inline LocalTensor<float> added(const LocalTensor<float>& x, int32_t groups) const {
    const uint8_t row = static_cast<uint8_t>(groups * LANES / 8);
    for (int32_t g = 1; g < groups; ++g) {
      Add(spare, g > 1 ? spare : x, x[g * LANES], static_cast<uint64_t>(LANES), static_cast<uint8_t>(m_),
          BinaryRepeatParams(1, 1, 1, row, row, row));
      ordered();
    }
    return groups > 1 ? spare : x;
  }
  __aicore__ inline LocalTensor<float> largest(const LocalTensor<float>& x, int32_t groups) const {
    const uint8_t row = static_cast<uint8_t>(groups * LANES / 8);
    for (int32_t g = 1; g < groups; ++g) {
      Max(spare, g > 1 ? spare : x, x[g * LANES], static_cast<uint64_t>(LANES), static_cast<uint8_t>(m_),
          BinaryRepeatParams(1, 1, 1, row, row, row));
      ordered();
    }
    return groups > 1 ? spare : x;
  }

  int32_t m_;
  const int32_t most_;
  const float scale_;
  int32_t event_ = 0, arrived_ = 0;
  TBuf<TPosition::VECCALC> buffer_;
  LocalTensor<float> shrink_, part_, other_;
  LocalTensor<uint32_t> words_;
  LocalTensor<uint8_t> chosen_;
};

}  // namespace dsv4_ascend
