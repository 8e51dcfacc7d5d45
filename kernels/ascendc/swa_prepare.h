// SPDX-License-Identifier: Apache-2.0
// What the vector cores do before the cube core takes the scores of a task: its queries, each core those of the
// pairs that it weighs, and where its keys are new, half of them each, into the scratch without NaN and
// infinity (swa_clean.h). Each core writes down which keys held such, a bit a key; both read what both wrote.
#pragma once
#include "swa_clean.h"
#include "swa_tasks.h"

namespace dsv4_ascend {

constexpr uint16_t kSwaReadyFlag = 0, kSwaScoresFlag = 1, kSwaWeightsFlag = 2, kSwaSumsFlag = 3;
constexpr int32_t kSwaWords = kSwaPart / 32;  // of a set of keys, a bit each

__aicore__ inline SwaScratch swa_scratch_of(const SwaTiling& v) {
  return swa_scratch(v.pairs, v.D, v.online ? v.D : v.turned, v.kv_rows);
}
template <class T>
__aicore__ inline GlobalTensor<T> swa_scratch_at(GM_ADDR workspace, const SwaTiling& v, int64_t group,
                                                 int64_t offset) {
  return global<T>(workspace + group * swa_scratch_of(v).bytes + offset);
}

template <class T>
class SwaPrepare {
 public:
  __aicore__ inline SwaPrepare(GM_ADDR q, GM_ADDR kv, GM_ADDR workspace, int64_t group, bool second,
                               const SwaTiling& tiling)
      : v(tiling), second_(second), clean_(tiling.D), q_(global<T>(q)), kv_(global<T>(kv)) {
    const SwaScratch s = swa_scratch_of(v);
    queries_ = swa_scratch_at<T>(workspace, v, group, s.queries);
    keys_ = swa_scratch_at<T>(workspace, v, group, s.keys);
    words_ = swa_scratch_at<uint32_t>(workspace, v, group, s.words);
  }
  __aicore__ inline void init(TPipe* pipe) {
    clean_.init(pipe);
    pipe->InitBuffer(word_queue_, 1, kLine * sizeof(uint32_t));
    written_ = static_cast<int32_t>(pipe->AllocEventID<HardEvent::S_V>());
    zeroed_ = static_cast<int32_t>(pipe->AllocEventID<HardEvent::V_S>());
    read_ = static_cast<int32_t>(pipe->AllocEventID<HardEvent::S_MTE3>());
  }
  __aicore__ inline void finish(TPipe* pipe) {
    clean_.finish(pipe);
    pipe->ReleaseEventID<HardEvent::S_V>(written_);
    pipe->ReleaseEventID<HardEvent::V_S>(zeroed_);
    pipe->ReleaseEventID<HardEvent::S_MTE3>(read_);
  }

  // Pairs [first, first + count) of the task; a bit for each whose query holds NaN or infinity.
  __aicore__ inline uint32_t run(const SwaTask& task, const SwaRequest& request, int32_t first, int32_t count) {
    if (task.new_keys) keys(task, request);
    uint32_t bad = 0;
    const int64_t slot = static_cast<int64_t>(task.number % 2) * v.pairs;
    if (count) load_queries(task, first, min_of(count, kRows));
    for (int32_t at = 0; at < count; at += kRows) {
      if (at + kRows < count) load_queries(task, first + at + kRows, min_of(count - at - kRows, kRows));
      bad |= clean_.end(queries_[(slot + first + at) * v.D]) << at;
    }
    CrossCoreSetFlag<2, PIPE_MTE3>(kSwaReadyFlag);
    return bad;
  }

  // After the task's scores are there: the keys that hold NaN or infinity.
  __aicore__ inline void read_bad(const SwaTask& task, uint32_t* bad) {
    for (int32_t w = 0; w < kSwaWords; ++w) bad[w] = 0;
    for (int32_t core = 0; core < 2; ++core) {
      const GlobalTensor<uint32_t> line = words_[(task.keys % kSets * 2 + core) * kLine];
      DataCacheCleanAndInvalid<uint32_t, CacheLine::SINGLE_CACHE_LINE, DcciDst::CACHELINE_OUT>(line);
      if (line.GetValue(kAny) == 0) continue;
      for (int32_t w = 0; w < kSwaWords; ++w) bad[w] |= line.GetValue(w);
    }
    SetFlag<HardEvent::S_MTE3>(read_);  // before the next flag that the cube core, and so the other one, waits for
    WaitFlag<HardEvent::S_MTE3>(read_);
  }

 private:
  static constexpr int32_t kRows = SwaClean<T>::kRows;
  // Sets of words, so that a core that is ahead never writes over what the other one has still to read.
  static constexpr int32_t kSets = 4;
  static constexpr int32_t kLine = 16, kAny = kSwaWords;  // words of a cache line, of one core and set of keys

  __aicore__ inline void load_queries(const SwaTask& task, int32_t first, int32_t count) {
    clean_.begin();
    for (int32_t i = first; i < first + count;) {
      const int32_t head = i % task.heads, n = min_of(task.heads - head, first + count - i);
      clean_.load(q_[(task.t + task.row + i / task.heads) * v.q_t + (task.head + head) * v.q_h], n, v.q_h);
      i += n;
    }
    clean_.loaded();
  }
  __aicore__ inline void load_keys(const SwaRequest& request, int32_t first, int32_t end) {
    clean_.begin();
    for (int32_t key = first; key < end;) {
      const SwaRun run = request.run_at(key, end);
      if (run.at >= 0) clean_.load(kv_[run.at], run.count, v.kv_slot);
      else clean_.hole(run.count);
      key += run.count;
    }
    clean_.loaded();
  }
  __aicore__ inline void keys(const SwaTask& task, const SwaRequest& request) {
    const SwaPart& part = task.part;
    const int32_t middle = min_of(part.begin + round_up(ceil_div(task.count(), 2), kRows), part.end);
    const int32_t first = second_ ? middle : part.begin, end = second_ ? part.end : middle;
    const int64_t slot = static_cast<int64_t>(task.keys % 2) * v.kv_rows;
    uint32_t bad[kSwaWords] = {0, 0, 0, 0, 0, 0, 0, 0}, any = 0;
    if (first < end) load_keys(request, first, min_of(first + kRows, end));
    for (int32_t key = first; key < end; key += kRows) {
      if (key + kRows < end) load_keys(request, key + kRows, min_of(key + 2 * kRows, end));
      const uint32_t here = clean_.end(keys_[(slot + key - part.begin) * v.D]);
      const int32_t column = key - task.base;  // a multiple of 16
      bad[column / 32] |= here << column % 32, any |= here;
    }
    LocalTensor<uint32_t> line = word_queue_.template AllocTensor<uint32_t>();
    Duplicate(line.template ReinterpretCast<int32_t>(), int32_t{0}, kLine);
    ordered();
    if (any) {
      SetFlag<HardEvent::V_S>(zeroed_);
      WaitFlag<HardEvent::V_S>(zeroed_);
      for (int32_t w = 0; w < kSwaWords; ++w) line.SetValue(w, bad[w]);
      line.SetValue(kAny, 1);
      SetFlag<HardEvent::S_V>(written_);
      WaitFlag<HardEvent::S_V>(written_);
    }
    word_queue_.EnQue(line);
    line = word_queue_.template DeQue<uint32_t>();
    DataCopy(words_[(task.keys % kSets * 2 + (second_ ? 1 : 0)) * kLine], line, static_cast<uint32_t>(kLine));
    word_queue_.FreeTensor(line);
  }

  const SwaTiling& v;
  const bool second_;
  SwaClean<T> clean_;
  GlobalTensor<T> q_, kv_, queries_, keys_;
  GlobalTensor<uint32_t> words_;
  int32_t written_ = 0, zeroed_ = 0, read_ = 0;
  TQue<TPosition::VECOUT, 1> word_queue_;
};

}  // namespace dsv4_ascend
