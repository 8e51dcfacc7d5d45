// SPDX-License-Identifier: Apache-2.0
// Queries and keys on their way from memory to the cube. The page of Mmad warns of NaN among its inputs ("an
// execution error may be reported"), so the vector cores read every query and key, once, and write them into
// the scratch, from where the cube core takes them. A row in which NaN or infinity stands, and a key without
// a page, becomes zeros there; who sees such a row is told so (its result is NaN) by a bit.
//   exponent all ones  <=>  (bits without the sign) / 2 >= the same of infinity; as positive halves such
//   numbers have the order of integers, so that the maximum of all rows tells whether any holds such.
#pragma once
#include "mhc_vector.h"
#include "swa_request.h"

namespace dsv4_ascend {

template <class T>
class SwaClean {
 public:
  static constexpr int32_t kRows = 16;  // at a time

  __aicore__ inline explicit SwaClean(int32_t D) : D_(D) {}
  __aicore__ inline void init(TPipe* pipe) {
    pipe->InitBuffer(rows_, 2 * kRows * D_ * sizeof(T));
    pipe->InitBuffer(test_, kRows * D_ * sizeof(T));
    pipe->InitBuffer(most_, kMostParts * kLanes * sizeof(T));
    for (int32_t i = 0; i < 2; ++i) {
      free_[i] = static_cast<int32_t>(pipe->AllocEventID<HardEvent::MTE3_MTE2>());
      loaded_[i] = static_cast<int32_t>(pipe->AllocEventID<HardEvent::MTE2_V>());
      SetFlag<HardEvent::MTE3_MTE2>(free_[i]);
    }
    made_ = static_cast<int32_t>(pipe->AllocEventID<HardEvent::V_MTE3>());
    tested_ = static_cast<int32_t>(pipe->AllocEventID<HardEvent::V_S>());
    judged_ = static_cast<int32_t>(pipe->AllocEventID<HardEvent::S_V>());
  }
  __aicore__ inline void finish(TPipe* pipe) {
    for (int32_t i = 0; i < 2; ++i) {
      WaitFlag<HardEvent::MTE3_MTE2>(free_[i]);
      pipe->ReleaseEventID<HardEvent::MTE3_MTE2>(free_[i]);
      pipe->ReleaseEventID<HardEvent::MTE2_V>(loaded_[i]);
    }
    pipe->ReleaseEventID<HardEvent::V_MTE3>(made_);
    pipe->ReleaseEventID<HardEvent::V_S>(tested_);
    pipe->ReleaseEventID<HardEvent::S_V>(judged_);
  }

  // Up to kRows rows: begin, a load for each run of rows, end; a second begin may come before the first end.
  __aicore__ inline void begin() {
    Chunk& c = chunks_[begun_++ % 2];
    WaitFlag<HardEvent::MTE3_MTE2>(free_[c.place = (begun_ - 1) % 2]);
    c.rows = 0, c.holes = 0;
  }
  __aicore__ inline void load(const GlobalTensor<T>& from, int32_t count, int64_t stride) {
    Chunk& c = chunks_[(begun_ - 1) % 2];
    rows_in(place(c.place)[c.rows * D_], from, count, D_, stride, D_);
    c.rows += count;
  }
  __aicore__ inline void hole(int32_t count) {  // rows of zeros
    Chunk& c = chunks_[(begun_ - 1) % 2];
    c.holes |= bits_below(c.rows + count) & ~bits_below(c.rows);
    c.rows += count;
  }
  __aicore__ inline void loaded() { SetFlag<HardEvent::MTE2_V>(loaded_[(begun_ - 1) % 2]); }
  // Writes the rows of the earliest begin to `to`, one after another; a bit for each that held NaN or infinity.
  __aicore__ inline uint32_t end(const GlobalTensor<T>& to) {
    const Chunk& c = chunks_[ended_ % 2];
    const LocalTensor<T> rows = place(c.place);
    WaitFlag<HardEvent::MTE2_V>(loaded_[c.place]);
    if (c.holes) clear(rows, c.holes, c.rows);
    const uint32_t bad = test(rows.template ReinterpretCast<uint16_t>(), c.rows);
    if (bad) clear(rows, bad, c.rows);
    SetFlag<HardEvent::V_MTE3>(made_);
    WaitFlag<HardEvent::V_MTE3>(made_);
    store_row(to, rows, c.rows * D_);
    SetFlag<HardEvent::MTE3_MTE2>(free_[c.place]);
    ++ended_;
    return bad;
  }

 private:
  struct Chunk {
    int32_t place, rows;
    uint32_t holes;
  };
  static constexpr uint16_t kInfinity = SameType<T, half>::value ? 0x3e00 : 0x3fc0;  // without its sign, half of it
  static constexpr int32_t kLanes = 128, kMostParts = 4;  // of a row

  __aicore__ inline LocalTensor<T> place(int32_t which) { return rows_.template Get<T>()[which * kRows * D_]; }
  __aicore__ inline void clear(const LocalTensor<T>& rows, uint32_t which, int32_t count) {
    for (int32_t r = 0; r < count; ++r)
      if (which >> r & 1) Duplicate(rows[r * D_].template ReinterpretCast<int16_t>(), int16_t{0}, D_);
    ordered();
  }
  __aicore__ inline static void magnitudes(const LocalTensor<uint16_t>& to, const LocalTensor<uint16_t>& from,
                                           int32_t count) {
    ShiftLeft(to, from, static_cast<uint16_t>(1), count);
    ordered();
    ShiftRight(to, to, static_cast<uint16_t>(2), count);
    ordered();
  }
  // A bit for each row that holds NaN or infinity.
  __aicore__ inline uint32_t test(const LocalTensor<uint16_t>& rows, int32_t count) {
    const LocalTensor<uint16_t> bits = test_.template Get<uint16_t>(), found = most_.template Get<uint16_t>();
    const LocalTensor<half> numbers = bits.template ReinterpretCast<half>(),
                            most = found.template ReinterpretCast<half>();
    magnitudes(bits, rows, count * D_);
    int32_t left = count * D_;
    while (left > kLanes) {  // halves upon each other, down to one repeat
      const int32_t half = left > 2 * kLanes ? round_up(ceil_div(left, 2), 16) : kLanes;
      Max(numbers, numbers, numbers[half], left - half);
      ordered();
      left = half;
    }
    WholeReduceMax(most, numbers, left, 1, 1, 1, 8, ReduceOrder::ORDER_ONLY_VALUE);
    ordered();
    uint32_t bad = 0;
    SetFlag<HardEvent::V_S>(tested_);
    WaitFlag<HardEvent::V_S>(tested_);
    const bool any = found.GetValue(0) >= kInfinity;
    SetFlag<HardEvent::S_V>(judged_);
    WaitFlag<HardEvent::S_V>(judged_);
    if (!any) return bad;
    magnitudes(bits, rows, count * D_);
    for (int32_t at = 0; at < D_; at += kLanes)
      WholeReduceMax(most[at], numbers[at], min_of(D_ - at, kLanes), count, 1, 1, D_ / 16,
                     ReduceOrder::ORDER_ONLY_VALUE);
    ordered();
    SetFlag<HardEvent::V_S>(tested_);
    WaitFlag<HardEvent::V_S>(tested_);
    for (int32_t r = 0; r < count; ++r)
      for (int32_t at = 0; at < D_; at += kLanes)
        bad |= static_cast<uint32_t>(found.GetValue(at + r) >= kInfinity) << r;
    SetFlag<HardEvent::S_V>(judged_);
    WaitFlag<HardEvent::S_V>(judged_);
    return bad;
  }

  const int32_t D_;
  int32_t begun_ = 0, ended_ = 0;
  int32_t free_[2], loaded_[2], made_ = 0, tested_ = 0, judged_ = 0;
  Chunk chunks_[2];
  TBuf<TPosition::VECCALC> rows_, test_, most_;
};

}  // namespace dsv4_ascend
