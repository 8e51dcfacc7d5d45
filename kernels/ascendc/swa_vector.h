// SPDX-License-Identifier: Apache-2.0
// The vector cores' side of swa_paged_attention: each of the two takes half of a tile's pairs. Queries and keys
// of the next task are made ready for the cube core (swa_prepare.h) before the scores of a task are waited for.
//   All keys of a row in one part (v.online = 0): the whole softmax of the scores, divided by its sum, as two
//   16-bit numbers a weight (its rounding, and what that left over), so that the cube core's sums are results:
//   16 bits of a weight count in bf16, 22 in half. What is left here are the columns that RoPE turns, and
//   NaN for pairs that have to do with one.
//   Long windows: weights of a part, rounded once; the sums of the parts stay here and shrink as the maximum
//   rises, and are divided by the sum of the rounded weights.
#pragma once
#include "swa_results.h"
#include "swa_softmax.h"

namespace dsv4_ascend {

template <class T>
class SwaVector {
 public:
  __aicore__ inline SwaVector(GM_ADDR q, GM_ADDR kv, GM_ADDR table, GM_ADDR starts, GM_ADDR lens, GM_ADDR sink,
                              GM_ADDR mask, GM_ADDR cos_sin, GM_ADDR out, GM_ADDR workspace,
                              const SwaTiling& tiling)
      : v(tiling),
        second_(GetSubBlockIdx() != 0),
        tasks_(v, table, starts, lens, mask, GetBlockIdx() / 2),
        softmax_(v.pairs / 2, kGroups, v.scale),
        prepare_(q, kv, workspace, GetBlockIdx() / 2, second_, v),
        results_(cos_sin, out, workspace, GetBlockIdx() / 2, v),
        sink_(global<float>(sink)) {
    const SwaScratch s = swa_scratch_of(v);
    const int64_t group = GetBlockIdx() / 2;
    scores_ = swa_scratch_at<float>(workspace, v, group, 0);
    weights_ = swa_scratch_at<T>(workspace, v, group, s.weights);
    pipe_.InitBuffer(score_queue_, 1, v.pairs / 2 * kSwaPart * sizeof(float));
    pipe_.InitBuffer(weight_queue_, 1, v.pairs / 2 * kSwaPart * sizeof(T));
    if (v.online) pipe_.InitBuffer(total_buffer_, v.pairs / 2 * v.D * sizeof(float));
    softmax_.init(&pipe_);
    prepare_.init(&pipe_);
    results_.init(&pipe_);
    spoilt_ = static_cast<int32_t>(pipe_.AllocEventID<HardEvent::V_S>());
    known_ = static_cast<int32_t>(pipe_.AllocEventID<HardEvent::S_V>());
  }

  __aicore__ inline void run() {
    SwaTask before, now, next;
    bool held = false, more = advance(next);
    while (more) {
      now = next;
      more = advance(next);
      weigh(now);
      if (v.online) {
        add_up(now);
      } else {
        if (held) finish(before);
        before = now, held = true;
      }
    }
    if (held) finish(before);
    softmax_.finish(&pipe_);
    prepare_.finish(&pipe_);
    pipe_.ReleaseEventID<HardEvent::V_S>(spoilt_);
    pipe_.ReleaseEventID<HardEvent::S_V>(known_);
  }

 private:
  static constexpr int32_t kGroup = 64, kGroups = kSwaPart / kGroup;
  __aicore__ inline SwaPairs half_of(int32_t pairs) const {  // this core's
    const int32_t half = min_of(round_up(ceil_div(pairs, 2), 8), pairs);
    return second_ ? SwaPairs{half, pairs - half} : SwaPairs{0, half};
  }
  __aicore__ inline static uint64_t lanes(int32_t left) {
    return static_cast<uint64_t>(min_of(left, kRowLanes));
  }

  // The next task, made ready; false: there is none. Rows without a task are seen to on the way.
  __aicore__ inline bool advance(SwaTask& task) {
    bool real = false;
    SwaNext found;
    while ((found = tasks_.next(task, real)) == SwaNext::Nothing)
      if (real || v.zero_padding) results_.fill(task, half_of(task.pairs()), int16_t{0});
    if (found == SwaNext::End) return false;
    const SwaPairs mine = half_of(task.pairs());
    bad_queries_[task.number % 2] = prepare_.run(task, tasks_.request(task), mine.first, mine.count);
    return true;
  }

  // Scores of a task become weights.
  __aicore__ inline void weigh(const SwaTask& task) {
    const SwaPairs mine = half_of(task.pairs());
    const int32_t from = (task.part.begin - task.base) / kGroup;
    const int32_t groups = ceil_div(task.part.end - task.base, kGroup) - from;
    const int32_t width = groups * kGroup, column = from * kGroup, n = mine.count * width;
    const int64_t slot = static_cast<int64_t>(task.number % 2) * v.pairs * kSwaPart;
    const int64_t at = slot + mine.first * kSwaPart + column;
    if (task.new_keys) find_usable(task);
    if (mine.count) {
      softmax_.use(mine.count);
      if (task.first) softmax_.begin();
    }
    CrossCoreWaitFlag(kSwaScoresFlag);
    if (task.new_keys) prepare_.read_bad(task, bad_keys_);
    if (mine.count) {
      look(task, mine, from * (kGroup / 32), groups * (kGroup / 32));
      LocalTensor<float> x = score_queue_.template AllocTensor<float>();
      rows_in(x, scores_[at], mine.count, width, kSwaPart, width);
      score_queue_.EnQue(x);
      x = score_queue_.template DeQue<float>();
      softmax_.weigh(x, groups);
      if (v.online) {
        put_weights(x, weights_[slot + at], mine.count, width, true);
        softmax_.add_up(x, groups);
      } else {
        softmax_.add_up(x, groups);
        const uint32_t no_sinks = divide_by(task, mine);
        const uint8_t row = static_cast<uint8_t>(width / 8), rows = static_cast<uint8_t>(mine.count);
        for (int32_t c = 0; c < width; c += kRowLanes)
          Div(x[c], x[c], softmax_.blocks, kRowLanes, rows, BinaryRepeatParams(1, 1, 0, row, row, 1));
        ordered();
        Adds(softmax_.spare, x, 0.f, n);
        ordered();
        put_weights(softmax_.spare, weights_[slot + at], mine.count, width, true);
        Sub(x, x, softmax_.spare, n);
        ordered();
        put_weights(x, weights_[slot + at + v.pairs * kSwaPart], mine.count, width, false);
        spoilt_pairs_[task.number % 2] = spoilt(mine.count) | no_sinks;
        blind_pairs_[task.number % 2] = bits_below(mine.count) & ~sees_;
      }
      score_queue_.FreeTensor(x);
    }
    CrossCoreSetFlag<2, PIPE_MTE3>(kSwaWeightsFlag);
  }
  // Writes weights, rounded; with BACK x becomes what was written.
  __aicore__ inline void put_weights(const LocalTensor<float>& x, const GlobalTensor<T>& to, int32_t rows,
                                     int32_t width, bool back) {
    LocalTensor<T> weights = weight_queue_.template AllocTensor<T>();
    from_float(weights, x, rows * width);
    ordered();
    if (back) to_float(x, weights, rows * width);
    weight_queue_.EnQue(weights);
    ordered();
    weights = weight_queue_.template DeQue<T>();
    rows_out(to, weights, rows, width, kSwaPart, width);
    weight_queue_.FreeTensor(weights);
  }

  // Which columns hold keys that have a page.
  __aicore__ inline void find_usable(const SwaTask& task) {
    const SwaRequest& request = tasks_.request(task);
    for (int32_t w = 0; w < kSwaWords; ++w) {
      usable_[w] = 0;
      const int32_t first = task.base + w * 32;
      if (first + 32 <= task.part.begin || first >= task.part.end) continue;
      for (int32_t k = 0; k < 32;) {
        const SwaRun run = request.run_at(first + k, first + 32);
        if (run.at >= 0) usable_[w] |= bits_below(k + run.count) & ~bits_below(k);
        k += run.count;
      }
    }
  }
  // What every pair sees, as words, and which pairs have to do with a NaN. One that sees nothing has not.
  __aicore__ inline void look(const SwaTask& task, const SwaPairs& mine, int32_t from, int32_t words) {
    const SwaRequest& request = tasks_.request(task);
    const int32_t tile = task.base / 32;
    uint32_t seen[kSwaWords], bad = bad_queries_[task.number % 2];
    softmax_.open();
    int32_t held = -1;
    bool bad_row = false, any = false;
    if (task.first) sees_ = 0;
    for (int32_t i = 0; i < mine.count; ++i) {
      const int32_t row = task.row + (mine.first + i) / task.heads;
      if (row != held) {
        bad_row = any = false;
        for (int32_t w = from; w < from + words; ++w) {
          seen[w] = request.seen(row, tile + w) & usable_[w];
          bad_row = bad_row || (seen[w] & bad_keys_[w]) != 0, any = any || seen[w] != 0;
        }
        held = row;
      }
      if (bad_row) bad |= 1u << i;
      if (any) sees_ |= 1u << i;
      else bad &= ~(1u << i);
      for (int32_t w = 0; w < words; ++w) softmax_.set_word(i * words + w, seen[from + w]);
    }
    for (int32_t i = 0; bad && i < mine.count; ++i) softmax_.set_bad(i, (bad >> i & 1) != 0);
    softmax_.close();
    if (bad) softmax_.add_bad();
  }
  // The pairs whose result is NaN.
  __aicore__ inline uint32_t spoilt(int32_t count) {
    const LocalTensor<float> sum = softmax_.spare;
    WholeReduceSum(sum, softmax_.poison, count, 1, 1, 1, 8);
    ordered();
    SetFlag<HardEvent::V_S>(spoilt_);
    WaitFlag<HardEvent::V_S>(spoilt_);
    uint32_t bad = 0;
    if (!(sum.GetValue(0) == 0.f))
      for (int32_t i = 0; i < count; ++i) bad |= static_cast<uint32_t>(!(softmax_.poison.GetValue(i) == 0.f)) << i;
    SetFlag<HardEvent::S_V>(known_);
    WaitFlag<HardEvent::S_V>(known_);
    return bad;
  }
  // Pairs that see something and have NaN as a sink: 0 stands for it where the cube core would get what it makes.
  __aicore__ inline uint32_t divide_by(const SwaTask& task, const SwaPairs& mine) {
    uint32_t bad = 0;
    if (v.has_sink) {
      softmax_.open();
      for (int32_t i = 0; i < mine.count; ++i) {
        const float sink = sink_.GetValue(task.head + (mine.first + i) % task.heads);
        const bool number = sink == sink, sees = (sees_ >> i & 1) != 0;
        if (!number && sees) bad |= 1u << i;
        softmax_.set_sink(i, number || (v.online && sees) ? sink : 0.f);
      }
      softmax_.close();
    }
    poison_ = softmax_.divisors(v.has_sink != 0);
    return bad;
  }

  // What the cube core's results lack.
  __aicore__ inline void finish(const SwaTask& task) {
    const SwaPairs mine = half_of(task.pairs());
    CrossCoreWaitFlag(kSwaSumsFlag);
    for (int32_t i = 0; results_.columns && i < mine.count; i += results_.rows) {
      const SwaPairs some{mine.first + i, min_of(mine.count - i, results_.rows)};
      LocalTensor<float> sums = results_.take(task, some);
      results_.turn_and_put(task, tasks_.request(task), some, sums);
      results_.give_back(sums);
    }
    if (mine.count) fill(task, mine, spoilt_pairs_[task.number % 2], blind_pairs_[task.number % 2]);
  }
  // NaN for spoilt pairs; 0, which RoPE may have given a sign, for those that see nothing.
  __aicore__ inline void fill(const SwaTask& task, const SwaPairs& mine, uint32_t spoilt, uint32_t blind) {
    if (!(spoilt | blind)) return;
    constexpr int16_t kNaN = SameType<T, half>::value ? int16_t{0x7e00} : int16_t{0x7fc0};
    PipeBarrier<PIPE_MTE3>();
    for (int32_t i = 0; i < mine.count; ++i)
      if ((spoilt | blind) >> i & 1) results_.fill(task, SwaPairs{mine.first + i, 1}, spoilt >> i & 1 ? kNaN : int16_t{0});
  }
  // Long windows: the sums of a part.
  __aicore__ inline void add_up(const SwaTask& task) {
    const SwaPairs mine = half_of(task.pairs());
    const LocalTensor<float> total = total_buffer_.template Get<float>();
    if (task.first && mine.count) Duplicate(total, 0.f, mine.count * v.D);
    ordered();
    CrossCoreWaitFlag(kSwaSumsFlag);
    for (int32_t i = 0; i < mine.count; i += results_.rows) {
      const SwaPairs some{mine.first + i, min_of(mine.count - i, results_.rows)};
      LocalTensor<float> sums = results_.take(task, some);
      by_pair<false>(total[i * v.D], softmax_.blocks[i * 8], some.count);
      Add(total[i * v.D], total[i * v.D], sums, some.count * v.D);
      ordered();
      results_.give_back(sums);
    }
    if (!task.last || !mine.count) return;
    divide_by(task, mine);
    for (int32_t i = 0; i < mine.count; i += results_.rows) {
      const SwaPairs some{mine.first + i, min_of(mine.count - i, results_.rows)};
      by_pair<true>(total[i * v.D], softmax_.blocks[i * 8], some.count);
      const uint8_t row = static_cast<uint8_t>(v.D / 8), rows = static_cast<uint8_t>(some.count);
      for (int32_t d = 0; d < v.D; d += kRowLanes)
        Add(total[i * v.D + d], total[i * v.D + d], poison_[i * 8], lanes(v.D - d), rows,
            BinaryRepeatParams(1, 1, 0, row, row, 1));
      ordered();
      results_.turn_and_put(task, tasks_.request(task), some, total[i * v.D]);
    }
    fill(task, mine, 0, bits_below(mine.count) & ~sees_);
  }
  // Rows of D floats times, or divided by, a block each.
  template <bool DIVIDE>
  __aicore__ inline void by_pair(const LocalTensor<float>& x, const LocalTensor<float>& blocks, int32_t n) {
    const uint8_t row = static_cast<uint8_t>(v.D / 8), rows = static_cast<uint8_t>(n);
    const BinaryRepeatParams strides(1, 1, 0, row, row, 1);
    for (int32_t d = 0; d < v.D; d += kRowLanes) {
      if (DIVIDE) Div(x[d], x[d], blocks, lanes(v.D - d), rows, strides);
      else Mul(x[d], x[d], blocks, lanes(v.D - d), rows, strides);
    }
    ordered();
  }

  const SwaTiling v;
  const bool second_;
  SwaTasks tasks_;
  SwaSoftmax<kGroup> softmax_;
  SwaPrepare<T> prepare_;
  SwaResults<T> results_;
  GlobalTensor<T> weights_;
  GlobalTensor<float> sink_, scores_;
  uint32_t usable_[kSwaWords], bad_keys_[kSwaWords], bad_queries_[2], spoilt_pairs_[2], blind_pairs_[2];
  uint32_t sees_ = 0;  // pairs that see a key of their task, of all parts so far
  int32_t spoilt_ = 0, known_ = 0;
  LocalTensor<float> poison_;
  TPipe pipe_;
  TQue<TPosition::VECIN, 1> score_queue_;
  TQue<TPosition::VECOUT, 1> weight_queue_;
  TBuf<TPosition::VECCALC> total_buffer_;
};

}  // namespace dsv4_ascend
