// SPDX-License-Identifier: Apache-2.0
// mhc_pre, mhc_post_pre and mhc_head in one launch, for up to 64 tokens: x is read once and stays in local memory.
//
// A core owns slices of 128 channels of all streams, the same number or one more, and all tokens of them. Steps, with
// all cores meeting (SyncAll) between them:
//   1. partial sums of its slices (mhc_project.h); fn passes through local memory once, slice by slice
//   2. some cores sum them: the weights of a group of 8 tokens from the first core on, post and comb (mhc_mix.h) from
//      the last one on, which at Flash owns no slice; mhc_post_pre writes its rows meanwhile
//   3. all: y of their slices, in the place of stream 0; without a norm that is all
//   4. all: from the sums of squares of all slices the norm of y. Every core reads those of all slices; for mhc_head,
//      whose fn is small beside that, one core a group sums them first, at the price of a fourth meeting
// Instructions and orders of sums are those of the two launches (mhc_project.h, mhc_join.h), so the bits are too. The
// buffers of the steps share their memory (pools); what they take, and the rates, stand in mhc_pre.cpp.
#pragma once
#include "mhc_mix.h"
#include "mhc_project.h"
#include "mhc_rows.h"

namespace dsv4_ascend {

using MhcPool = TBufPool<TPosition::VECCALC, 16>;

// All cores have done what stands before, and what they wrote can be read.
__aicore__ inline void meet() {
  PipeBarrier<PIPE_ALL>();
  if (GetBlockNum() > 1) SyncAll<true>();
}

struct MhcInputs {
  GM_ADDR residual;
  GM_ADDR fn;
  GM_ADDR base;
  GM_ADDR scale;
  GM_ADDR norm;
  GM_ADDR workspace;
};
struct MhcMixed {  // of mhc_post_pre
  GM_ADDR y;
  GM_ADDR post;
  GM_ADDR comb;
  GM_ADDR residual_out;
};
struct MhcOutputs {
  GM_ADDR y;
  GM_ADDR post;  // none: no coefficients
  GM_ADDR comb;
};

template <class T, bool MIX>
class MhcOnce {
 public:
  __aicore__ inline MhcOnce(const MhcInputs& in, const MhcMixed& mixed, const MhcOutputs& out,
                            const MhcOnceTiling& tiling)
      : t_(tiling), v(t_.finish), in_(in), mixed_(mixed), out_(out) {
    mine_ = share_of(v.slices, GetBlockNum(), GetBlockIdx());
    pipe_.InitBuffer(kept_, t_.kept);
    pipe_.InitBufPool(first_, t_.pool);
    pipe_.InitBufPool(second_, t_.pool, first_);
    pipe_.InitBufPool(third_, t_.pool, first_);
  }

  __aicore__ inline void run() {
    const LocalTensor<T> kept = kept_.template Get<T>();
    MhcProject<T, MIX, true> project(t_.project);
    project.init(&first_, in_.residual, in_.fn, in_.workspace);
    if (MIX) project.init_mix(&first_, mixed_.y, mixed_.post, mixed_.comb, mixed_.residual_out);
    project.run(kept, mine_);
    meet();
    first_.Reset();
    if (MIX) project.store_mixed(kept, mine_);
    sums();
    meet();
    second_.Reset();
    join(kept);
  }

 private:
  // ---- 2. weights, post and comb
  __aicore__ inline void sums() {
    const int64_t cores = GetBlockNum(), me = GetBlockIdx();
    const Share groups = share_of(v.groups, cores, me);
    TQue<TPosition::VECIN, 1> sum_queue;
    TQue<TPosition::VECOUT, 1> out_queue;
    TBuf<TPosition::VECCALC> small;
    MhcMix mix(v);
    if (groups.count) {
      second_.InitBuffer(sum_queue, 2, kMhcAtOnce * fold_pitch((1 + v.hc) * kMhcGroup) * sizeof(float));
      second_.InitBuffer(out_queue, 2, v.hc * kMhcGroup * sizeof(float));
      second_.InitBuffer(small, (kRowLanes + kMhcSiteBlocks * 8 + kRowLanes) * sizeof(float));
      const LocalTensor<float> ones = small.Get<float>(), site = ones[kRowLanes], total = site[kMhcSiteBlocks * 8];
      const GlobalTensor<float> scratch = global<float>(in_.workspace);
      Duplicate(ones, 1.f, kRowLanes);
      load_site(sum_queue, site, in_.base, in_.scale, v.columns, out_.post ? 3 : 1);
      for (int64_t g = groups.first; g < groups.first + groups.count; ++g) {
        weights_of(sum_queue, total, scratch, g, site, ones, v);
        LocalTensor<float> out = out_queue.AllocTensor<float>();
        Adds(out, total[kMhcGroup], 0.f, v.hc * kMhcGroup);
        ordered();
        out_queue.EnQue(out);
        out = out_queue.DeQue<float>();
        DataCopy(scratch[t_.weights + g * v.hc * kMhcGroup], out, static_cast<uint32_t>(v.hc * kMhcGroup));
        out_queue.FreeTensor(out);
      }
    }
    if (!out_.post || !share_of(v.groups, cores, cores - 1 - me).count) return;
    mix.init(&second_, in_.workspace, in_.base, in_.scale, out_.post, out_.comb);
    mix.run(cores - 1 - me, cores);
  }

  // ---- 3. and 4.
  __aicore__ inline void join(const LocalTensor<T>& kept) {
    TQue<TPosition::VECIN, 1> in_queue;
    TQue<TPosition::VECOUT, 1> out_queue;
    const int32_t lanes = v.groups * kMhcGroup, squares = v.slices * lanes;
    const int32_t most = v.norm && squares > lanes * v.hc ? squares : lanes * v.hc;
    third_.InitBuffer(in_queue, 1, most * sizeof(float));
    third_.InitBuffer(blocks_, lanes * v.hc * 8 * sizeof(float));
    rows_.init(&third_, v.hc);
    const int64_t own = mine_.count * lanes;
    const LocalTensor<float> blocks = blocks_.Get<float>();
    const GlobalTensor<float> scratch = global<float>(in_.workspace);

    LocalTensor<float> raw = load(in_queue, scratch[t_.weights], lanes * v.hc);
    spread(blocks, raw, lanes * v.hc);
    ordered();
    in_queue.FreeTensor(raw);
    LocalTensor<float> sums;
    if (v.norm) {
      third_.InitBuffer(ones_, kRowLanes * sizeof(float));
      third_.InitBuffer(weight_, kMhcSlice * sizeof(float));
      third_.InitBuffer(weight_queue_, 1, kMhcSlice * sizeof(float));
      Duplicate(ones_.Get<float>(), 1.f, kRowLanes);
      if (own) {
        third_.InitBuffer(out_queue, 1, static_cast<uint32_t>(own * sizeof(float)));
        sums = out_queue.AllocTensor<float>();
        Duplicate(sums, 0.f, static_cast<int32_t>(own));
      }
      ordered();
    }
    for (int32_t s = 0; s < mine_.count; ++s)
      for (int32_t g = 0; g < v.groups; ++g) {
        rows_.weigh(at(kept, s, g), blocks[g * v.hc * kMhcGroup * 8], width_of(s), tokens_of(g));
        if (v.norm) rows_.squares(sums[s * lanes + g * kMhcGroup], at(kept, s, g), width_of(s), tokens_of(g));
      }
    if (v.norm) {
      if (own) {
        out_queue.EnQue(sums);
        sums = out_queue.DeQue<float>();
        DataCopy(scratch[t_.squares + mine_.first * lanes], sums, static_cast<uint32_t>(own));
        out_queue.FreeTensor(sums);
      }
      meet();
      if (t_.summed) {
        sum_squares(in_queue, scratch, lanes);
        meet();
      }
      if (!own) return;
      raw = load(in_queue, scratch[t_.summed ? t_.totals : t_.squares], t_.summed ? lanes : squares);
      if (!t_.summed) fold_rows(raw, v.slices, lanes);
      inverse_rms(raw, ones_.Get<float>(), v.mean_channels, v.rms_eps, lanes);
      spread(blocks, raw, lanes);
      ordered();
      in_queue.FreeTensor(raw);
      for (int32_t s = 0; s < mine_.count; ++s) {
        load_weight(s);
        for (int32_t g = 0; g < v.groups; ++g)
          rows_.scale(at(kept, s, g), blocks[g * kMhcGroup * 8], weight_.Get<float>(), width_of(s), tokens_of(g));
      }
    }
    const TEventID id = pipe_.FetchEventID(HardEvent::V_MTE3);
    SetFlag<HardEvent::V_MTE3>(id);
    WaitFlag<HardEvent::V_MTE3>(id);
    const GlobalTensor<T> y = global<T>(out_.y);
    for (int32_t s = 0; s < mine_.count; ++s)
      rows_out(y[(mine_.first + s) * kMhcSlice], at(kept, s, 0), v.tokens, width_of(s), v.y_t, v.hc * kMhcSlice);
  }

  // The sums of squares of a group's tokens, by one core for all.
  template <class Queue>
  __aicore__ inline void sum_squares(Queue& queue, const GlobalTensor<float>& scratch, int32_t lanes) {
    const Share groups = share_of(v.groups, GetBlockNum(), GetBlockIdx());
    TQue<TPosition::VECOUT, 1> out_queue;
    if (groups.count) third_.InitBuffer(out_queue, 2, kMhcGroup * sizeof(float));
    for (int64_t g = groups.first; g < groups.first + groups.count; ++g) {
      LocalTensor<float> raw = queue.template AllocTensor<float>(), out = out_queue.AllocTensor<float>();
      rows_in(raw, scratch[t_.squares + g * kMhcGroup], v.slices, kMhcGroup, lanes, kMhcGroup);
      queue.EnQue(raw);
      raw = queue.template DeQue<float>();
      fold_rows(raw, v.slices, kMhcGroup);
      Adds(out, raw, 0.f, kMhcGroup);
      ordered();
      queue.FreeTensor(raw);
      out_queue.EnQue(out);
      out = out_queue.DeQue<float>();
      DataCopy(scratch[t_.totals + g * kMhcGroup], out, static_cast<uint32_t>(kMhcGroup));
      out_queue.FreeTensor(out);
    }
  }

  __aicore__ inline LocalTensor<T> at(const LocalTensor<T>& kept, int32_t s, int32_t g) const {
    return kept[(s * v.tokens + g * kMhcGroup) * v.hc * kMhcSlice];
  }
  __aicore__ inline int32_t tokens_of(int32_t g) const { return min_of(v.tokens - g * kMhcGroup, kMhcGroup); }
  __aicore__ inline int32_t width_of(int32_t s) const {
    return min_of(v.d - (static_cast<int32_t>(mine_.first) + s) * kMhcSlice, kMhcSlice);
  }
  template <class Queue>
  __aicore__ inline LocalTensor<float> load(Queue& queue, const GlobalTensor<float>& from, int32_t n) {
    LocalTensor<float> raw = queue.template AllocTensor<float>();
    DataCopy(raw, from, static_cast<uint32_t>(n));
    queue.EnQue(raw);
    return queue.template DeQue<float>();
  }
  __aicore__ inline void load_weight(int32_t s) {
    const int64_t channel = (mine_.first + s) * kMhcSlice;
    if (v.norm == 2)
      load_norm_row<bfloat16_t>(weight_queue_, weight_.Get<float>(), in_.norm, channel, width_of(s));
    else
      load_norm_row<float>(weight_queue_, weight_.Get<float>(), in_.norm, channel, width_of(s));
  }

  const MhcOnceTiling t_;
  const MhcFinishTiling& v;
  const MhcInputs in_;
  const MhcMixed mixed_;
  const MhcOutputs out_;
  Share mine_;
  TPipe pipe_;
  MhcPool first_, second_, third_;
  TBuf<TPosition::VECCALC> kept_, blocks_, ones_, weight_;
  MhcRows<T> rows_;
  TQue<TPosition::VECIN, 1> weight_queue_;
};

}  // namespace dsv4_ascend
