// SPDX-License-Identifier: Apache-2.0
// The cube core's side of swa_paged_attention: scores q . K^T of up to 64 pairs and 256 keys, and, once the
// vector cores have made weights of them, weights . K with the same keys, which stay in L1. Tiles of 64 keys
// and 256 dims go through halves of L0A and L0B in turn; sums over dims and keys stay in L0C. The keys of a
// part are loaded, and their scores taken, before the weights of the part before are waited for, where L1
// holds the keys of both.
//
// Keys that are not to be read lie between others in L1: another key of the part stands there, and gets the
// weight 0. (The documentation asks to keep NaN out of Mmad. Only keys and queries that hold NaN bring one;
// the weighted sum never meets it, see swa_vector.h.)
#pragma once
#include "swa_request.h"

namespace dsv4_ascend {

constexpr uint16_t kSwaScoresFlag = 0, kSwaWeightsFlag = 1, kSwaSumsFlag = 2;

template <class T>
__aicore__ inline GlobalTensor<T> swa_scratch_at(GM_ADDR workspace, const SwaTiling& v, int64_t group,
                                                 int64_t offset) {
  return global<T>(workspace + group * swa_scratch(v.pairs, v.D).bytes + offset);
}

template <class T>
class SwaCube {
 public:
  __aicore__ inline SwaCube(GM_ADDR q, GM_ADDR kv, GM_ADDR table, GM_ADDR starts, GM_ADDR lens, GM_ADDR mask,
                            GM_ADDR workspace, const SwaTiling& tiling)
      : v(tiling), request_(v, table, starts, lens, mask), q_(global<T>(q)), kv_(global<T>(kv)) {
    const SwaScratch s = swa_scratch(v.pairs, v.D);
    scores_ = swa_scratch_at<float>(workspace, v, GetBlockIdx(), 0);
    weights_ = swa_scratch_at<T>(workspace, v, GetBlockIdx(), s.weights);
    sums_ = swa_scratch_at<float>(workspace, v, GetBlockIdx(), s.sums);
    clean_keys_ = swa_scratch_at<T>(workspace, v, GetBlockIdx(), s.keys);
    word_ = swa_scratch_at<int32_t>(workspace, v, GetBlockIdx(), s.word);
    pipe_.InitBuffer(q_buffer_, v.pairs * v.D * sizeof(T));
    pipe_.InitBuffer(k_buffer_, v.kv_buffers * v.kv_rows * v.D * sizeof(T));
    pipe_.InitBuffer(p_buffer_, v.pairs * kSwaPart * sizeof(T));
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
    for (int32_t i = 0; i < kTiles; ++i) loaded_[i] = event<HardEvent::MTE2_MTE1>();
    read_ = event<HardEvent::S_MTE2>(), done_ = event<HardEvent::M_FIX>(),
    q_free_ = event<HardEvent::MTE1_MTE2>(), p_free_ = event<HardEvent::MTE1_MTE2>();
    SetFlag<HardEvent::MTE1_MTE2>(q_free_);
    SetFlag<HardEvent::MTE1_MTE2>(p_free_);
  }

  __aicore__ inline void run() {
    const Share mine =
        share_of(ceil_div<int64_t>(v.T, v.tile_rows) * v.head_tiles, GetBlockNum(), GetBlockIdx());
    for (int64_t unit = mine.first; unit < mine.first + mine.count; ++unit) {
      const int64_t t = unit / v.head_tiles * v.tile_rows, end = min_of(t + v.tile_rows, v.T);
      h0_ = static_cast<int32_t>(unit % v.head_tiles) * v.tile_heads,
      heads_ = min_of(v.tile_heads, v.H - h0_);
      for (int64_t row = t; row < end; row += request_.g.rows) {
        if (!request_.find(row, end)) continue;
        for (int32_t i = request_.keys.first / kSwaPart; i < request_.parts(); ++i) {
          const SwaPart part = request_.part(i);
          if (part.any >= 0) work_on(part, i);
        }
      }
    }
    if (held_) mix(before_);
    for (int32_t i = 0; i < 2; ++i) {
      WaitFlag<HardEvent::M_MTE1>(free_[i]);
      WaitFlag<HardEvent::FIX_M>(place_free_[i]);
      WaitFlag<HardEvent::MTE1_MTE2>(keys_free_[i]);
    }
    WaitFlag<HardEvent::MTE1_MTE2>(q_free_);
    WaitFlag<HardEvent::MTE1_MTE2>(p_free_);
  }

 private:
  static constexpr int32_t kTile = 64, kTiles = kSwaPart / kTile;  // keys
  static constexpr int32_t kDims = 256;                            // of a product's right side
  static constexpr int32_t kHalf = kTile * kDims;                  // elements of a half of L0A, L0B
  static constexpr int32_t kPlace = kTile * kDims;  // floats of a half of L0C: scores; sums of 256 dims
  static constexpr int32_t kFractal = 256;          // elements

  struct Task {
    int32_t pairs, keys, half, column;  // column: of the first key in the scratch's scores and weights
  };

  template <HardEvent E>
  __aicore__ inline int32_t event() {
    return static_cast<int32_t>(pipe_.AllocEventID<E>());
  }
  __aicore__ inline int32_t tall() const { return v.pairs / 16; }
  __aicore__ inline static int32_t rows_of(const Task& task) {
    return task.pairs > 1 ? task.pairs : 2;
  }  // 1: GEMV
  __aicore__ inline static int32_t keys_of(const Task& task, int32_t tile) {
    return min_of(task.keys - tile * kTile, kTile);
  }
  __aicore__ inline LocalTensor<T> keys_at(int32_t half) {
    return k_buffer_.template Get<T>()[half * v.kv_rows * v.D];
  }

  __aicore__ inline void work_on(const SwaPart& part, int32_t index) {
    const Task task{request_.g.rows * heads_, part.end - part.begin, count_ % v.kv_buffers,
                    part.begin - index * kSwaPart};
    score(task, part);
    ++count_;
    if (v.kv_buffers == 1) {
      mix(task);
      return;
    }
    if (held_) mix(before_);
    before_ = task, held_ = true;
  }

  // `rows` rows of global memory into L1 as NZ with room for `tall` rows.
  __aicore__ inline void rows_to_l1(const LocalTensor<T>& to, const GlobalTensor<T>& from, int32_t rows,
                                    int32_t width, int64_t stride, int32_t room) {
    const bool together = stride <= 65535;
    for (int32_t r = 0; r < rows; r += together ? rows : 1)
      DataCopy(
          to[r * 16], from[r * stride],
          Nd2NzParams(1, static_cast<uint16_t>(together ? rows : 1), static_cast<uint16_t>(width), 0,
                      static_cast<uint16_t>(together ? stride : width), static_cast<uint16_t>(room), 1, 0));
  }

  __aicore__ inline void load_keys(const LocalTensor<T>& to, const SwaPart& part, int32_t first,
                                   int32_t last) {
    for (int32_t key = first; key < last;) {
      const SwaRun run = request_.run_at(key, last);
      const LocalTensor<T> here = to[(key - part.begin) * 16];
      if (run.at >= 0) rows_to_l1(here, kv_[run.at], run.count, v.D, v.kv_slot, v.kv_rows);
      else
        DataCopy(here, kv_[part.any],
                 Nd2NzParams(static_cast<uint16_t>(run.count), 1, static_cast<uint16_t>(v.D), 0,
                             static_cast<uint16_t>(v.D), static_cast<uint16_t>(v.kv_rows), 1, 16));
      key += run.count;
    }
  }

  // Scores of a part into the scratch.
  __aicore__ inline void score(const Task& task, const SwaPart& part) {
    const LocalTensor<T> q = q_buffer_.template Get<T>(), keys = keys_at(task.half);
    const int32_t tiles = ceil_div(task.keys, kTile);
    WaitFlag<HardEvent::MTE1_MTE2>(q_free_);
    for (int32_t r = 0; r < request_.g.rows; ++r) {
      const GlobalTensor<T> from = q_[(request_.g.t + r) * v.q_t + h0_ * v.q_h];
      rows_to_l1(q[r * heads_ * 16], from, heads_, v.D, v.q_h, v.pairs);
      if (task.pairs == 1) rows_to_l1(q[16], from, 1, v.D, v.q_h, v.pairs);
    }
    WaitFlag<HardEvent::MTE1_MTE2>(keys_free_[task.half]);
    for (int32_t i = 0; i < tiles; ++i) {
      const int32_t first = part.begin + i * kTile;
      load_keys(keys, part, first, min_of(first + kTile, part.end));
      SetFlag<HardEvent::MTE2_MTE1>(loaded_[i]);
    }
    const int32_t m = rows_of(task);
    WaitFlag<HardEvent::FIX_M>(place_free_[0]);
    for (int32_t i = 0; i < tiles; ++i) {
      WaitFlag<HardEvent::MTE2_MTE1>(loaded_[i]);
      for (int32_t at = 0; at < v.D; at += kDims) {
        const int32_t depth = min_of(v.D - at, kDims) / 16, wide = ceil_div(keys_of(task, i), 16);
        const int32_t half = begin_half();
        const LocalTensor<T> right = right_buffer_.template Get<T>()[half * kHalf];
        load_left(half, q[at * v.pairs], ceil_div(m, 16), depth);
        for (int32_t r = 0; r < wide; ++r)  // keys as [n, k]
          LoadData(right[r * kFractal], keys[at * v.kv_rows + (i * kTile + r * 16) * 16],
                   LoadData2DParams(0, static_cast<uint8_t>(depth), static_cast<uint16_t>(v.kv_rows / 16), 0,
                                    static_cast<uint16_t>(wide - 1), false, 0));
        multiply(half, place(0)[i * kTile * v.pairs], m, keys_of(task, i), depth * 16, at == 0);
      }
    }
    SetFlag<HardEvent::MTE1_MTE2>(q_free_);
    hand_over();
    const GlobalTensor<float> to = scores_[count_ % 2 * v.pairs * kSwaPart + task.column];
    for (int32_t i = 0; i < tiles; ++i)
      store(to[i * kTile], place(0)[i * kTile * v.pairs], m, round_up(keys_of(task, i), 16), kSwaPart);
    SetFlag<HardEvent::FIX_M>(place_free_[0]);
    CrossCoreSetFlag<2, PIPE_FIX>(kSwaScoresFlag);
  }

  // Weighted sums of a part, as soon as its weights are there.
  __aicore__ inline void mix(const Task& task) {
    CrossCoreWaitFlag(kSwaWeightsFlag);
    const LocalTensor<T> weights = p_buffer_.template Get<T>(), keys = keys_at(task.half);
    DataCacheCleanAndInvalid<int32_t, CacheLine::SINGLE_CACHE_LINE, DcciDst::CACHELINE_OUT>(word_);
    const bool cleaned = word_.GetValue(0) != 0;
    SetFlag<HardEvent::S_MTE2>(read_);
    WaitFlag<HardEvent::S_MTE2>(read_);
    if (cleaned) {
      PipeBarrier<PIPE_ALL>();
      rows_to_l1(keys, clean_keys_, task.keys, v.D, v.D, v.kv_rows);
      PipeBarrier<PIPE_ALL>();
    }
    WaitFlag<HardEvent::MTE1_MTE2>(p_free_);
    rows_to_l1(weights, weights_[task.column], task.pairs, task.keys, kSwaPart, v.pairs);
    if (task.pairs == 1) rows_to_l1(weights[16], weights_[task.column], 1, task.keys, kSwaPart, v.pairs);
    SetFlag<HardEvent::MTE2_MTE1>(loaded_[0]);
    WaitFlag<HardEvent::MTE2_MTE1>(loaded_[0]);
    const int32_t m = rows_of(task), tiles = ceil_div(task.keys, kTile);
    for (int32_t at = 0; at < v.D; at += kDims) {
      const int32_t width = min_of(v.D - at, kDims), wide = width / 16;
      WaitFlag<HardEvent::FIX_M>(place_free_[1]);
      for (int32_t i = 0; i < tiles; ++i) {
        const int32_t depth = ceil_div(keys_of(task, i), 16), half = begin_half();
        const LocalTensor<T> right = right_buffer_.template Get<T>()[half * kHalf];
        load_left(half, weights[i * kTile * v.pairs], ceil_div(m, 16), depth);
        for (int32_t r = 0; r < depth; ++r)  // keys as [k, n]: every fractal transposed
          LoadData(right[r * wide * kFractal], keys[at * v.kv_rows + (i * kTile + r * 16) * 16],
                   LoadData2DParams(0, static_cast<uint8_t>(wide), static_cast<uint16_t>(v.kv_rows / 16), 0,
                                    0, true, 0));
        multiply(half, place(1), m, width, keys_of(task, i), i == 0);
      }
      hand_over();
      store(sums_[at], place(1), m, width, v.D);
      SetFlag<HardEvent::FIX_M>(place_free_[1]);
    }
    SetFlag<HardEvent::MTE1_MTE2>(p_free_);
    SetFlag<HardEvent::MTE1_MTE2>(keys_free_[task.half]);
    CrossCoreSetFlag<2, PIPE_FIX>(kSwaSumsFlag);
  }

  __aicore__ inline LocalTensor<float> place(int32_t which) {
    return sum_buffer_.template Get<float>()[which * kPlace];
  }
  __aicore__ inline int32_t begin_half() {
    const int32_t half = turn_++ % 2;
    WaitFlag<HardEvent::M_MTE1>(free_[half]);
    return half;
  }
  // `rows` x `depth` fractals of an NZ matrix with room for v.pairs rows.
  __aicore__ inline void load_left(int32_t half, const LocalTensor<T>& from, int32_t rows, int32_t depth) {
    const LocalTensor<T> left = left_buffer_.template Get<T>()[half * kHalf];
    for (int32_t r = 0; r < rows; ++r)
      LoadData(
          left[r * depth * kFractal], from[r * kFractal],
          LoadData2DParams(0, static_cast<uint8_t>(depth), static_cast<uint16_t>(tall()), 0, 0, false, 0));
  }
  __aicore__ inline void multiply(int32_t half, const LocalTensor<float>& to, int32_t m, int32_t n, int32_t k,
                                  bool first) {
    SetFlag<HardEvent::MTE1_M>(ready_[half]);
    WaitFlag<HardEvent::MTE1_M>(ready_[half]);
    Mmad(to, left_buffer_.template Get<T>()[half * kHalf], right_buffer_.template Get<T>()[half * kHalf],
         MmadParams(static_cast<uint16_t>(m), static_cast<uint16_t>(n), static_cast<uint16_t>(k), 0, false,
                    first));
    SetFlag<HardEvent::M_MTE1>(free_[half]);
    PipeBarrier<PIPE_M>();
  }
  __aicore__ inline void hand_over() {
    SetFlag<HardEvent::M_FIX>(done_);
    WaitFlag<HardEvent::M_FIX>(done_);
  }
  __aicore__ inline static void store(const GlobalTensor<float>& to, const LocalTensor<float>& from,
                                      int32_t rows, int32_t columns, int32_t stride) {
    Fixpipe(
        to, from,
        FixpipeParamsV220(static_cast<uint16_t>(columns), static_cast<uint16_t>(rows),
                          static_cast<uint16_t>(round_up(rows, 16)), static_cast<uint32_t>(stride), false));
  }

  const SwaTiling v;
  SwaRequest request_;
  int32_t h0_ = 0, heads_ = 0, count_ = 0, turn_ = 0;
  bool held_ = false;
  Task before_{0, 0, 0, 0};
  GlobalTensor<T> q_, kv_, weights_, clean_keys_;
  GlobalTensor<float> scores_, sums_;
  GlobalTensor<int32_t> word_;
  TPipe pipe_;
  TBuf<TPosition::A1> q_buffer_, p_buffer_;
  TBuf<TPosition::B1> k_buffer_;
  TBuf<TPosition::A2> left_buffer_;
  TBuf<TPosition::B2> right_buffer_;
  TBuf<TPosition::CO1> sum_buffer_;
  int32_t free_[2], ready_[2], place_free_[2], keys_free_[2], loaded_[kTiles], done_, q_free_, p_free_, read_;
};

}  // namespace dsv4_ascend
