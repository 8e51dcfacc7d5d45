// SPDX-License-Identifier: Apache-2.0
// What the vector cores write of swa_paged_attention's output: sums that come from the cube core through the
// scratch, turned and rounded, and rows of one number.
#pragma once
#include "swa_prepare.h"
#include "swa_turn.h"

namespace dsv4_ascend {

struct SwaPairs {  // of a task
  int32_t first, count;
};

template <class T>
class SwaResults {
 public:
  static constexpr int32_t kFloats = 2048;  // of sums that are worked on at once

  __aicore__ inline SwaResults(GM_ADDR cos_sin, GM_ADDR out, GM_ADDR workspace, int64_t group,
                               const SwaTiling& tiling)
      : v(tiling),
        columns(v.online ? v.D : v.turned),
        rows(columns ? kFloats / columns : 0),
        turn_(columns ? columns : 2, v.R ? v.R : 2),
        out_(global<T>(out)),
        cos_sin_(global<float>(cos_sin)),
        sums_(swa_scratch_at<float>(workspace, v, group, swa_scratch_of(v).sums)) {}
  __aicore__ inline void init(TPipe* pipe) {
    pipe->InitBuffer(sum_queue_, 2, kFloats * sizeof(float));
    pipe->InitBuffer(out_queue_, 2, kFloats * sizeof(T));
    if (v.R) turn_.init(pipe);
  }

  // Up to `rows` pairs of the sums; to be given back.
  __aicore__ inline LocalTensor<float> take(const SwaTask& task, const SwaPairs& some) {
    LocalTensor<float> sums = sum_queue_.template AllocTensor<float>();
    load_row(sums, sums_[(static_cast<int64_t>(task.number % 2) * v.pairs + some.first) * columns],
             some.count * columns);
    sum_queue_.EnQue(sums);
    return sum_queue_.template DeQue<float>();
  }
  __aicore__ inline void give_back(LocalTensor<float>& sums) { sum_queue_.FreeTensor(sums); }

  __aicore__ inline void turn_and_put(const SwaTask& task, const SwaRequest& request, const SwaPairs& some,
                                      const LocalTensor<float>& sums) {
    for (int32_t i = 0; v.R && i < some.count;) {
      const int32_t pair = some.first + i, n = min_of(task.heads - pair % task.heads, some.count - i);
      turn_.run(sums[i * columns], n, columns, cos_sin_, request.angles_at(task.row + pair / task.heads));
      i += n;
    }
    LocalTensor<T> out = out_queue_.template AllocTensor<T>();
    from_float(out, sums, some.count * columns);
    put(task, some, out, columns);
  }
  // Fills the results of pairs with a number, given as its bits.
  __aicore__ inline void fill(const SwaTask& task, const SwaPairs& pairs, int16_t bits) {
    const int32_t most = kFloats / v.D;
    for (int32_t i = 0; i < pairs.count; i += most) {
      const SwaPairs some{pairs.first + i, min_of(pairs.count - i, most)};
      LocalTensor<T> out = out_queue_.template AllocTensor<T>();
      Duplicate(out.template ReinterpretCast<int16_t>(), bits, some.count * v.D);
      put(task, some, out, v.D);
    }
  }

  const SwaTiling& v;
  const int32_t columns, rows;  // of the sums that come here: their dims, and how many pairs at once

 private:
  // The trailing `width` columns of pairs.
  __aicore__ inline void put(const SwaTask& task, const SwaPairs& some, LocalTensor<T>& out, int32_t width) {
    out_queue_.EnQue(out);
    out = out_queue_.template DeQue<T>();
    for (int32_t i = 0; i < some.count;) {
      const int32_t pair = some.first + i, row = task.row + pair / task.heads, head = pair % task.heads;
      const int32_t n = min_of(task.heads - head, some.count - i);
      rows_out(out_[(task.t + row) * v.out_t + (task.head + head) * v.out_h + v.D - width], out[i * width], n,
               width, v.out_h, width);
      i += n;
    }
    out_queue_.FreeTensor(out);
  }

  SwaTurn turn_;
  GlobalTensor<T> out_;
  GlobalTensor<float> cos_sin_, sums_;
  TQue<TPosition::VECIN, 1> sum_queue_;
  TQue<TPosition::VECOUT, 1> out_queue_;
};

}  // namespace dsv4_ascend
