// SPDX-License-Identifier: Apache-2.0
// verify_tree_greedy: walks each tree along the target's argmax.
// 40 bytes read and 4 written a node, 4 an entry of accept_index: a launch's latency is the floor. Work:
// requests in groups of whole output lines over all vector cores (as a rule 16 of them), as many at a time as
// local memory holds. The walk is scalar, n - 1 looks at most; the -1 around its results are the vector
// unit's, and requests that lie side by side with no padding between them go out in one transfer. Contract:
// include/dsv4spec/tree.h.
//   UB (166 KB):  rows in and out 160 | counts 4 | a stretch of -1 2
#include "ints.h"
#include "verify_tree_greedy_tiling.h"

namespace dsv4_ascend {
namespace {

class VerifyTreeGreedy {
 public:
  __aicore__ inline VerifyTreeGreedy(GM_ADDR tokens, GM_ADDR row, GM_ADDR next, GM_ADDR sibling,
                                     GM_ADDR target, GM_ADDR predicts, GM_ADDR accepted, GM_ADDR count,
                                     const VerifyTreeGreedyTiling& t)
      : t_(t), in_{tokens, row, next, sibling, target},
        stride_{t.tokens_stride, t.row_stride, t.next_stride, t.sibling_stride, t.target_stride},
        predicts_(predicts), accepted_(accepted), count_(count), in_pitch_(greedy_in(t.n)),
        predicts_pitch_(greedy_predicts(t.n)), path_pitch_(greedy_path(t.num_steps)),
        path_(least(t.num_steps + 1, kGreedyPath)) {
    pipe_.InitBuffer(buffer_, kCountsAt + kGreedyRequests * kBlock + kGreedyPath * 4);
    all_ = buffer_.Get<uint8_t>();
    counts_ = all_[kCountsAt];
    none_ = all_[kCountsAt + kGreedyRequests * kBlock];
    predicts_at_ = 5 * in_pitch_ * t.rows;
    paths_at_ = predicts_at_ + predicts_pitch_ * t.rows;
  }

  __aicore__ inline void run() {
    if (t_.num_steps + 1 > kGreedyPath) {
      fill(none_, -1, kGreedyPath * 4);
      order<HardEvent::V_MTE3>();
    }
    const Range mine = share_of(t_.requests, GetBlockIdx());
    for (int64_t b = mine.begin; b < mine.end; b += t_.rows) requests(b, least(t_.rows, mine.end - b));
  }

 private:
  enum Input { kToken, kRow, kNext, kSibling, kTarget, kInputs };
  static constexpr uint32_t kCountsAt = kGreedyBytes;

  __aicore__ inline Bytes in(int64_t which, int64_t r) const {
    return all_[static_cast<uint32_t>((which * t_.rows + r) * in_pitch_)];
  }
  __aicore__ inline int64_t value(Input which, int64_t r, int64_t node) const {
    return in(which, r).ReinterpretCast<int64_t>().GetValue(static_cast<uint32_t>(node));
  }
  __aicore__ inline Bytes predicts(int64_t r) const {
    return all_[static_cast<uint32_t>(predicts_at_ + r * predicts_pitch_)];
  }
  __aicore__ inline Bytes path(int64_t r) const {
    return all_[static_cast<uint32_t>(paths_at_ + r * path_pitch_)];
  }
  __aicore__ inline bool live(int64_t r) const { return value(kNext, r, 0) != 0; }

  __aicore__ inline void requests(int64_t first, int64_t count) {
    order<HardEvent::S_MTE2>();
    for (int64_t i = 0; i < kInputs; ++i)
      rows_in(in(i, 0), in_[i] + first * stride_[i], stride_[i], count, t_.n * 8, in_pitch_);
    order<HardEvent::MTE3_V>();
    fill(predicts(0), -1, count * predicts_pitch_);
    fill(path(0), -1, count * path_pitch_);
    order<HardEvent::V_S>();
    order<HardEvent::MTE3_S>();
    order<HardEvent::MTE2_S>();
    for (int64_t r = 0; r < count; ++r)
      if (live(r)) walk(first + r, r);
    order<HardEvent::S_MTE3>();
    for (int64_t r = 0; r < count;) {  // stretches without padding
      int64_t end = r;
      while (end < count && live(end)) ++end;
      if (end > r) write(first, r, end - r);
      r = end + 1;
    }
  }

  __aicore__ inline void walk(int64_t b, int64_t r) {
    const LocalTensor<int32_t> predicted = predicts(r).ReinterpretCast<int32_t>(),
                               accepted = path(r).ReinterpretCast<int32_t>();
    int64_t node = 0, child = value(kNext, r, 0), wanted = value(kTarget, r, 0), taken = 0;
    visit(b, r, 0, 0, wanted, predicted, accepted);
    for (int64_t looks = 0; looks < t_.n - 1 && taken < t_.num_steps && child > 0 && child < t_.n; ++looks) {
      const int64_t token = value(kToken, r, child);
      if (token < 0 || token != wanted) {
        child = value(kSibling, r, child);
        continue;
      }
      node = child;
      child = value(kNext, r, node);
      wanted = value(kTarget, r, node);
      visit(b, r, node, ++taken, wanted, predicted, accepted);
    }
    counts_.ReinterpretCast<int32_t>().SetValue(static_cast<uint32_t>(r * (kBlock / 4)),
                                                static_cast<int32_t>(taken));
  }
  // `node` is the one after `taken` accepted drafts; a path has n nodes at most, fewer than kGreedyPath.
  __aicore__ inline void visit(int64_t b, int64_t r, int64_t node, int64_t taken, int64_t wanted,
                               const LocalTensor<int32_t>& predicted, const LocalTensor<int32_t>& accepted) {
    const int64_t row = value(kRow, r, node), place = wrapping_sum(row, -b * t_.n);
    accepted.SetValue(static_cast<uint32_t>(taken), static_cast<int32_t>(row));
    if (row >= b * t_.n && place < t_.n)
      predicted.SetValue(static_cast<uint32_t>(place), static_cast<int32_t>(wanted));
  }

  __aicore__ inline void write(int64_t first, int64_t r, int64_t count) {
    const int64_t b = first + r;
    rows_out(predicts_ + b * t_.n * 4, predicts(r), t_.n * 4, count, t_.n * 4, predicts_pitch_);
    rows_out(accepted_ + b * t_.accepted_stride, path(r), t_.accepted_stride, count, path_ * 4, path_pitch_);
    for (int64_t at = path_; at <= t_.num_steps; at += kGreedyPath)  // nothing is this long but -1
      for (int64_t i = 0; i < count; ++i)
        bytes_out(accepted_ + (b + i) * t_.accepted_stride + at * 4, none_,
                  least(kGreedyPath, t_.num_steps + 1 - at) * 4);
    rows_out(count_ + b * 4, counts_[static_cast<uint32_t>(r * kBlock)], 4, count, 4, kBlock);
  }

  const VerifyTreeGreedyTiling& t_;
  GM_ADDR in_[kInputs];
  int64_t stride_[kInputs];
  GM_ADDR predicts_;
  GM_ADDR accepted_;
  GM_ADDR count_;
  int64_t in_pitch_, predicts_pitch_, path_pitch_, path_, predicts_at_, paths_at_;
  TPipe pipe_;
  TBuf<TPosition::VECIN> buffer_;
  Bytes all_, counts_, none_;  // a count in a block of its own, which a transfer may begin at
};

}  // namespace
}  // namespace dsv4_ascend

extern "C" DSV4_VECTOR_KERNEL void dsv4_verify_tree_greedy_aiv(GM_ADDR tokens, GM_ADDR row, GM_ADDR next,
                                                               GM_ADDR sibling, GM_ADDR target,
                                                               GM_ADDR predicts, GM_ADDR accepted,
                                                               GM_ADDR count,
                                                               VerifyTreeGreedyTiling tiling) {
  KERNEL_TASK_TYPE_DEFAULT(KERNEL_TYPE_AIV_ONLY);
  dsv4_ascend::VerifyTreeGreedy(tokens, row, next, sibling, target, predicts, accepted, count, tiling).run();
}
