// SPDX-License-Identifier: Apache-2.0
// A key that holds NaN or infinity gives the first pair a score that is not finite, whether that pair sees it
// or not. The first vector core then writes the keys of the part without NaN and infinity to the scratch, and
// the cube core takes those for the weighted sum: a weight of 0 times NaN would reach pairs that do not see
// the key.
#pragma once
#include "mhc_vector.h"
#include "swa_cube.h"

namespace dsv4_ascend {

template <class T>
class SwaClean {
 public:
  static constexpr int32_t kRows = 4;  // of keys that are cleaned at once

  __aicore__ inline SwaClean(GM_ADDR kv, GM_ADDR workspace, int64_t group, const SwaTiling& tiling)
      : v(tiling), kv_(global<T>(kv)) {
    const SwaScratch s = swa_scratch(v.pairs, v.D);
    clean_ = swa_scratch_at<T>(workspace, v, group, s.keys);
    word_ = swa_scratch_at<int32_t>(workspace, v, group, s.word);
  }
  __aicore__ inline void init(TPipe* pipe) {
    pipe->InitBuffer(in_, 1, kRows * v.D * sizeof(T));
    pipe->InitBuffer(out_, 1, kRows * v.D * sizeof(T));
    pipe->InitBuffer(word_queue_, 1, kBlock);
    pipe->InitBuffer(keys_, 2 * kRows * v.D * sizeof(float));
    pipe->InitBuffer(finite_, kRows * v.D / 8 + 256);
    pipe->InitBuffer(range_, 256);
    looked_ = static_cast<int32_t>(pipe->AllocEventID<HardEvent::V_S>());
    judged_ = static_cast<int32_t>(pipe->AllocEventID<HardEvent::S_V>());
  }
  __aicore__ inline void finish(TPipe* pipe) {
    pipe->ReleaseEventID<HardEvent::V_S>(looked_);
    pipe->ReleaseEventID<HardEvent::S_V>(judged_);
  }

  // The columns that hold scores: those of the part, counted from key `first`. For the scalar unit, while no
  // vector instruction is at work.
  __aicore__ inline void set_range(const SwaPart& part, int32_t first, int32_t words) {
    const LocalTensor<uint32_t> range = range_.template Get<uint32_t>();
    for (int32_t w = 0; w < words; ++w)
      range.SetValue(w, bits_below(part.end - first - w * 32) & ~bits_below(part.begin - first - w * 32));
  }

  // x: scores of the first pair, in groups of 64. Tells the cube core which keys to take.
  __aicore__ inline void judge(const LocalTensor<float>& x, const LocalTensor<float>& spare,
                               const SwaPart& part, int32_t groups, const SwaRequest& request) {
    const LocalTensor<float> sums = keys_.template Get<float>();
    const LocalTensor<uint8_t> range = range_.template Get<uint8_t>();
    const int32_t n = groups * kRowLanes;
    Muls(spare, x, 0.f, n);
    ordered();
    Select(spare, range, spare, 0.f, SELMODE::VSEL_TENSOR_SCALAR_MODE, static_cast<uint32_t>(n));
    ordered();
    WholeReduceSum(sums, spare, kRowLanes, groups, 1, 1, kRowLanes / 8);
    ordered();
    SetFlag<HardEvent::V_S>(looked_);
    WaitFlag<HardEvent::V_S>(looked_);
    bool finite = true;
    for (int32_t g = 0; g < groups; ++g) finite = finite && sums.GetValue(g) == 0.f;
    SetFlag<HardEvent::S_V>(judged_);
    WaitFlag<HardEvent::S_V>(judged_);
    if (!finite) clean(part, request);
    LocalTensor<int32_t> word = word_queue_.template AllocTensor<int32_t>();
    Duplicate(word, finite ? int32_t{0} : int32_t{1}, kBlock / 4);
    word_queue_.EnQue(word);
    word = word_queue_.template DeQue<int32_t>();
    DataCopy(word_, word, static_cast<uint32_t>(kBlock / 4));
    word_queue_.FreeTensor(word);
  }

 private:
  __aicore__ inline void clean(const SwaPart& part, const SwaRequest& request) {
    const LocalTensor<float> keys = keys_.template Get<float>(), zeros = keys[kRows * v.D];
    const LocalTensor<uint8_t> finite = finite_.template Get<uint8_t>();
    for (int32_t key = part.begin; key < part.end;) {
      const SwaRun run = request.run_at(key, min_of(key + kRows, part.end));
      const int32_t n = run.count * v.D, all = round_up(n, kRowLanes);
      LocalTensor<T> out = out_.template AllocTensor<T>();
      Duplicate(keys, 0.f, all);
      ordered();
      if (run.at >= 0) {
        LocalTensor<T> raw = in_.template AllocTensor<T>();
        rows_in(raw, kv_[run.at], run.count, v.D, v.kv_slot, v.D);
        in_.EnQue(raw);
        raw = in_.template DeQue<T>();
        to_float(keys, raw, n);
        ordered();
        in_.FreeTensor(raw);
        Muls(zeros, keys, 0.f, all);
        ordered();
        Compares(finite, zeros, 0.f, CMPMODE::EQ, static_cast<uint32_t>(all));
        ordered();
        Select(keys, finite, keys, 0.f, SELMODE::VSEL_TENSOR_SCALAR_MODE, static_cast<uint32_t>(all));
        ordered();
      }
      from_float(out, keys, n);
      out_.EnQue(out);
      ordered();
      out = out_.template DeQue<T>();
      store_row(clean_[static_cast<int64_t>(key - part.begin) * v.D], out, n);
      out_.FreeTensor(out);
      key += run.count;
    }
  }

  const SwaTiling& v;
  GlobalTensor<T> kv_, clean_;
  GlobalTensor<int32_t> word_;
  int32_t looked_ = 0, judged_ = 0;
  TQue<TPosition::VECIN, 1> in_;
  TQue<TPosition::VECOUT, 1> out_, word_queue_;
  TBuf<TPosition::VECCALC> keys_, finite_, range_;
};

}  // namespace dsv4_ascend
