// SPDX-License-Identifier: Apache-2.0
// The cube core's side of swa_paged_attention: scores q . K^T of up to 64 pairs and 256 keys, and, once the
// vector cores have made weights of them, weights . K with the same keys, which stay in L1 for all tiles of a
// segment. Tiles of 64 keys, at multiples of 64, and 256 dims go through halves of L0A and L0B in turn; sums
// over dims and keys stay in L0C and go out rounded, but for the columns that the vector cores turn. The
// scores of a task are taken before the weights of the task before are waited for, so cube and vector cores
// work at the same time.
#pragma once
#include "swa_prepare.h"

namespace dsv4_ascend {

template <class T>
class SwaCube {
 public:
  __aicore__ inline SwaCube(GM_ADDR table, GM_ADDR starts, GM_ADDR lens, GM_ADDR mask, GM_ADDR out,
                            GM_ADDR workspace, const SwaTiling& tiling)
      : v(tiling), tasks_(v, table, starts, lens, mask, GetBlockIdx()), out_(global<T>(out)) {
    const SwaScratch s = swa_scratch_of(v);
    const int64_t group = GetBlockIdx();
    scores_ = swa_scratch_at<float>(workspace, v, group, 0);
    weights_ = swa_scratch_at<T>(workspace, v, group, s.weights);
    sums_ = swa_scratch_at<float>(workspace, v, group, s.sums);
    queries_ = swa_scratch_at<T>(workspace, v, group, s.queries);
    keys_ = swa_scratch_at<T>(workspace, v, group, s.keys);
    pipe_.InitBuffer(q_buffer_, v.pairs * v.D * sizeof(T));
    pipe_.InitBuffer(k_buffer_, v.kv_buffers * v.kv_rows * v.D * sizeof(T));
    pipe_.InitBuffer(p_buffer_, halves() * v.pairs * v.kv_rows * sizeof(T));
    pipe_.InitBuffer(left_buffer_, 2 * kHalf * sizeof(T));
    pipe_.InitBuffer(right_buffer_, 2 * kHalf * sizeof(T));
    pipe_.InitBuffer(sum_buffer_, 2 * kPlace * sizeof(float));
    for (int32_t i = 0; i < 2; ++i) {
      free_[i] = event<HardEvent::M_MTE1>(), ready_[i] = event<HardEvent::MTE1_M>();
      place_free_[i] = event<HardEvent::FIX_M>(), keys_free_[i] = event<HardEvent::MTE1_MTE2>();
      SetFlag<HardEvent::M_MTE1>(free_[i]);
      SetFlag<HardEvent::FIX_M>(place_free_[i]);
      SetFlag<HardEvent::MTE1_MTE2>(keys_free_[i]);
    }
    loaded_ = event<HardEvent::MTE2_MTE1>(), done_ = event<HardEvent::M_FIX>();
    q_free_ = event<HardEvent::MTE1_MTE2>(), p_free_ = event<HardEvent::MTE1_MTE2>();
    SetFlag<HardEvent::MTE1_MTE2>(q_free_);
    SetFlag<HardEvent::MTE1_MTE2>(p_free_);
  }

  __aicore__ inline void run() {
    SwaTask task, before;
    bool held = false, real = false;
    for (SwaNext found; (found = tasks_.next(task, real)) != SwaNext::End;) {
      if (found == SwaNext::Nothing) continue;
      if (held && task.new_keys && v.kv_buffers == 1) {
        mix(before);
        held = false;
      }
      score(task);
      if (held) mix(before);
      before = task, held = true;
    }
    if (held) mix(before);
    for (int32_t i = 0; i < 2; ++i) {
      WaitFlag<HardEvent::M_MTE1>(free_[i]);
      WaitFlag<HardEvent::FIX_M>(place_free_[i]);
      WaitFlag<HardEvent::MTE1_MTE2>(keys_free_[i]);
    }
    WaitFlag<HardEvent::MTE1_MTE2>(q_free_);
    WaitFlag<HardEvent::MTE1_MTE2>(p_free_);
  }

 private:
  static constexpr int32_t kTile = 64;              // keys
  static constexpr int32_t kDims = 256;             // of a product's right side
  static constexpr int32_t kHalf = kTile * kDims;   // elements of a half of L0A, L0B
  static constexpr int32_t kPlace = kTile * kDims;  // floats of a half of L0C: scores; sums of 256 dims
  static constexpr int32_t kFractal = 256;          // elements

  template <HardEvent E>
  __aicore__ inline int32_t event() {
    return static_cast<int32_t>(pipe_.AllocEventID<E>());
  }
  __aicore__ inline int32_t halves() const { return v.online ? 1 : 2; }  // of a weight
  __aicore__ inline int32_t tall() const { return v.pairs / 16; }
  __aicore__ inline static int32_t rows_of(const SwaTask& task) {  // 1: GEMV
    return task.pairs() > 1 ? task.pairs() : 2;
  }
  __aicore__ inline LocalTensor<T> keys_at(const SwaTask& task) {
    return k_buffer_.template Get<T>()[task.keys % v.kv_buffers * v.kv_rows * v.D];
  }
  // Keys of a task's tiles, counted from the part's first.
  struct Tile {
    int32_t from, count;
  };
  __aicore__ inline static int32_t tiles_of(const SwaTask& task) {
    return ceil_div(task.part.end, kTile) - task.part.begin / kTile;
  }
  __aicore__ inline static Tile tile_of(const SwaTask& task, int32_t i) {
    const int32_t first = (task.part.begin / kTile + i) * kTile, from = i ? first : task.part.begin;
    return {from - task.part.begin, min_of(first + kTile, task.part.end) - from};
  }

  // `rows` rows of scratch into L1 as NZ with room for `room` rows; the row of a single one twice, as m = 1
  // takes another layout in L0A.
  __aicore__ inline void rows_to_l1(const LocalTensor<T>& to, const GlobalTensor<T>& from, int32_t rows,
                                    int32_t width, int32_t stride, int32_t room, bool twice) {
    for (int32_t i = 0; i < (twice && rows == 1 ? 2 : 1); ++i)
      DataCopy(to[i * 16], from,
               Nd2NzParams(1, static_cast<uint16_t>(rows), static_cast<uint16_t>(width), 0,
                           static_cast<uint16_t>(stride), static_cast<uint16_t>(room), 1, 0));
  }
  __aicore__ inline void arrived() {
    SetFlag<HardEvent::MTE2_MTE1>(loaded_);
    WaitFlag<HardEvent::MTE2_MTE1>(loaded_);
  }

  // Scores of a task into the scratch.
  __aicore__ inline void score(const SwaTask& task) {
    CrossCoreWaitFlag(kSwaReadyFlag);
    const LocalTensor<T> q = q_buffer_.template Get<T>(), keys = keys_at(task);
    const int32_t tiles = tiles_of(task), m = rows_of(task);
    WaitFlag<HardEvent::MTE1_MTE2>(q_free_);
    rows_to_l1(q, queries_[task.number % 2 * v.pairs * v.D], task.pairs(), v.D, v.D, v.pairs, true);
    if (task.new_keys) {
      WaitFlag<HardEvent::MTE1_MTE2>(keys_free_[task.keys % v.kv_buffers]);
      rows_to_l1(keys, keys_[static_cast<int64_t>(task.keys % 2) * v.kv_rows * v.D], task.count(), v.D, v.D,
                 v.kv_rows, false);
    }
    arrived();
    WaitFlag<HardEvent::FIX_M>(place_free_[0]);
    for (int32_t i = 0; i < tiles; ++i) {
      const Tile tile = tile_of(task, i);
      for (int32_t at = 0; at < v.D; at += kDims) {
        const int32_t depth = min_of(v.D - at, kDims) / 16, wide = ceil_div(tile.count, 16);
        const int32_t half = begin_half();
        load_left(half, 0, q[at * v.pairs], ceil_div(m, 16), depth);
        for (int32_t r = 0; r < wide; ++r)  // keys as [n, k]
          LoadData(right(half)[r * kFractal], keys[at * v.kv_rows + (tile.from + r * 16) * 16],
                   LoadData2DParams(0, static_cast<uint8_t>(depth), static_cast<uint16_t>(v.kv_rows / 16), 0,
                                    static_cast<uint16_t>(wide - 1), false, 0));
        half_ready(half);
        multiply(half, 0, place(0)[i * kTile * v.pairs], m, tile.count, depth * 16, at == 0);
        SetFlag<HardEvent::M_MTE1>(free_[half]);
      }
    }
    SetFlag<HardEvent::MTE1_MTE2>(q_free_);
    hand_over();
    const GlobalTensor<float> to =
        scores_[task.number % 2 * v.pairs * kSwaPart + task.part.begin - task.base];
    for (int32_t i = 0; i < tiles; ++i) {
      const Tile tile = tile_of(task, i);
      store(to[tile.from], place(0)[i * kTile * v.pairs], task.pairs(), round_up(tile.count, 16), m, kSwaPart);
    }
    SetFlag<HardEvent::FIX_M>(place_free_[0]);
    CrossCoreSetFlag<2, PIPE_FIX>(kSwaScoresFlag);
  }

  // Weighted sums of a task, as soon as its weights are there.
  __aicore__ inline void mix(const SwaTask& task) {
    const LocalTensor<T> weights = p_buffer_.template Get<T>(), keys = keys_at(task);
    const int32_t half_of_weights = v.pairs * v.kv_rows, m = rows_of(task), tiles = tiles_of(task);
    CrossCoreWaitFlag(kSwaWeightsFlag);
    WaitFlag<HardEvent::MTE1_MTE2>(p_free_);
    for (int32_t h = 0; h < halves(); ++h)
      rows_to_l1(weights[h * half_of_weights],
                 weights_[(task.number % 2 * 2 + h) * v.pairs * kSwaPart + task.part.begin - task.base],
                 task.pairs(), task.count(), kSwaPart, v.pairs, true);
    arrived();
    for (int32_t at = 0; at < v.D; at += kDims) {
      const int32_t width = min_of(v.D - at, kDims), wide = width / 16;
      WaitFlag<HardEvent::FIX_M>(place_free_[1]);
      for (int32_t i = 0; i < tiles; ++i) {
        const Tile tile = tile_of(task, i);
        const int32_t depth = ceil_div(tile.count, 16), half = begin_half();
        for (int32_t h = 0; h < halves(); ++h)
          load_left(half, h * kTile * kTile, weights[h * half_of_weights + tile.from * v.pairs], ceil_div(m, 16),
                    depth);
        for (int32_t r = 0; r < depth; ++r)  // keys as [k, n]: every fractal transposed
          LoadData(right(half)[r * wide * kFractal], keys[at * v.kv_rows + (tile.from + r * 16) * 16],
                   LoadData2DParams(0, static_cast<uint8_t>(wide), static_cast<uint16_t>(v.kv_rows / 16), 0,
                                    0, true, 0));
        half_ready(half);
        for (int32_t h = 0; h < halves(); ++h)
          multiply(half, h * kTile * kTile, place(1), m, width, tile.count, i + h == 0);
        SetFlag<HardEvent::M_MTE1>(free_[half]);
      }
      hand_over();
      store_sums(task, at, width, m);
      SetFlag<HardEvent::FIX_M>(place_free_[1]);
    }
    SetFlag<HardEvent::MTE1_MTE2>(p_free_);
    if (task.drop_keys) SetFlag<HardEvent::MTE1_MTE2>(keys_free_[task.keys % v.kv_buffers]);
    CrossCoreSetFlag<2, PIPE_FIX>(kSwaSumsFlag);
  }
  // Columns [at, at + width) of a task's sums: results, and those that the vector cores go on with.
  __aicore__ inline void store_sums(const SwaTask& task, int32_t at, int32_t width, int32_t m) {
    const int32_t columns = v.online ? v.D : v.turned, from = v.D - columns;
    const int32_t direct = min_of(from > at ? from - at : 0, width), rows = round_up(m, 16);
    const bool together = v.out_t == task.heads * v.out_h;
    for (int32_t r = 0; direct && r < task.rows; r += together ? task.rows : 1)
      store(out_[(task.t + task.row + r) * v.out_t + task.head * v.out_h + at], place(1)[r * task.heads * 16],
            together ? task.pairs() : task.heads, direct, m, v.out_h);
    if (direct < width)
      store(sums_[task.number % 2 * v.pairs * columns + at + direct - from], place(1)[direct * rows], task.pairs(),
            width - direct, m, columns);
  }

  __aicore__ inline LocalTensor<float> place(int32_t which) {
    return sum_buffer_.template Get<float>()[which * kPlace];
  }
  __aicore__ inline LocalTensor<T> right(int32_t half) { return right_buffer_.template Get<T>()[half * kHalf]; }
  __aicore__ inline int32_t begin_half() {
    const int32_t half = turn_++ % 2;
    WaitFlag<HardEvent::M_MTE1>(free_[half]);
    return half;
  }
  __aicore__ inline void half_ready(int32_t half) {
    SetFlag<HardEvent::MTE1_M>(ready_[half]);
    WaitFlag<HardEvent::MTE1_M>(ready_[half]);
  }
  // `rows` x `depth` fractals of an NZ matrix with room for v.pairs rows.
  __aicore__ inline void load_left(int32_t half, int32_t offset, const LocalTensor<T>& from, int32_t rows,
                                   int32_t depth) {
    const LocalTensor<T> left = left_buffer_.template Get<T>()[half * kHalf + offset];
    for (int32_t r = 0; r < rows; ++r)
      LoadData(
          left[r * depth * kFractal], from[r * kFractal],
          LoadData2DParams(0, static_cast<uint8_t>(depth), static_cast<uint16_t>(tall()), 0, 0, false, 0));
  }
  __aicore__ inline void multiply(int32_t half, int32_t left, const LocalTensor<float>& to, int32_t m, int32_t n,
                                  int32_t k, bool first) {
    Mmad(to, left_buffer_.template Get<T>()[half * kHalf + left], right(half),
         MmadParams(static_cast<uint16_t>(m), static_cast<uint16_t>(n), static_cast<uint16_t>(k), 0, false,
                    first));
    PipeBarrier<PIPE_M>();
  }
  __aicore__ inline void hand_over() {
    SetFlag<HardEvent::M_FIX>(done_);
    WaitFlag<HardEvent::M_FIX>(done_);
  }
  // `rows` rows of a product of m.
  template <class To>
  __aicore__ inline static void store(const GlobalTensor<To>& to, const LocalTensor<float>& from, int32_t rows,
                                      int32_t columns, int32_t m, int64_t stride) {
    FixpipeParamsV220 p(static_cast<uint16_t>(columns), static_cast<uint16_t>(rows),
                        static_cast<uint16_t>(round_up(m, 16)), static_cast<uint32_t>(stride), false);
    p.quantPre = is_float<To>               ? QuantMode_t::NoQuant
                 : SameType<To, half>::value ? QuantMode_t::F322F16
                                             : QuantMode_t::F322BF16;
    Fixpipe<To, float, CFG_ROW_MAJOR>(to, from, p);
  }

  const SwaTiling v;
  SwaTasks tasks_;
  int32_t turn_ = 0;
  GlobalTensor<T> out_, weights_, queries_, keys_;
  GlobalTensor<float> scores_, sums_;
  TPipe pipe_;
  TBuf<TPosition::A1> q_buffer_, p_buffer_;
  TBuf<TPosition::B1> k_buffer_;
  TBuf<TPosition::A2> left_buffer_;
  TBuf<TPosition::B2> right_buffer_;
  TBuf<TPosition::CO1> sum_buffer_;
  int32_t free_[2], ready_[2], place_free_[2], keys_free_[2], loaded_, done_, q_free_, p_free_;
};

}  // namespace dsv4_ascend
