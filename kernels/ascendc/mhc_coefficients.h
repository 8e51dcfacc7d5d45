// SPDX-License-Identifier: Apache-2.0
// post and comb of a group of tokens, as mhc_post_pre takes them: every value as a block of eight.
#pragma once
#include "mhc_tiling.h"
#include "mhc_vector.h"

namespace dsv4_ascend {

class MhcCoefficients {
 public:
  template <class Buffers>
  __aicore__ inline void init(Buffers* pipe, GM_ADDR post, GM_ADDR comb, const MhcProjectTiling& v) {
    post_gm_ = global<float>(post), comb_gm_ = global<float>(comb);
    hc_ = v.hc, post_t_ = v.post_t, comb_t_ = v.comb_t, comb_i_ = v.comb_i;
    post_pitch_ = post_t_ == hc_ ? hc_ : 8;
    comb_pitch_ = comb_i_ == hc_ && comb_t_ == hc_ * hc_ ? hc_ : 8;
    pipe->InitBuffer(queue_, 2, kCoefficients * sizeof(float));
    pipe->InitBuffer(blocks_, kCoefficients * 8 * sizeof(float));
  }
  // post and comb of a group, every value as a block of eight: [token][i], then [token][j][i].
  __aicore__ inline void load(int64_t first, int32_t n) {
    LocalTensor<float> raw = queue_.AllocTensor<float>();
    const LocalTensor<float> comb = raw[kPostSpace];
    if (post_pitch_ == 8)
      rows_in(raw, post_gm_[first * post_t_], n, hc_, post_t_, 8);
    else
      rows_in(raw, post_gm_[first * post_t_], 1, n * hc_, 0, kPostSpace);
    if (comb_pitch_ != 8)
      rows_in(comb, comb_gm_[first * comb_t_], 1, n * hc_ * hc_, 0, kCoefficients - kPostSpace);
    else
      for (int32_t t = 0; t < n; ++t)
        rows_in(comb[t * hc_ * 8], comb_gm_[(first + t) * comb_t_], hc_, hc_, comb_i_, 8);
    queue_.EnQue(raw);
    raw = queue_.DeQue<float>();
    LocalTensor<float> blocks = blocks_.Get<float>();
    ordered();
    spread(blocks, raw, n * post_pitch_);
    spread(blocks[kPostSpace * 8], raw[kPostSpace], n * hc_ * comb_pitch_);
    ordered();
    queue_.FreeTensor(raw);
  }
  // The blocks of post[t][0..hc), and of comb[t][j][0..hc), of a token of the group.
  __aicore__ inline LocalTensor<float> post(int32_t t) { return blocks_.Get<float>()[t * post_pitch_ * 8]; }
  __aicore__ inline LocalTensor<float> comb(int32_t t, int32_t j) {
    return blocks_.Get<float>()[(kPostSpace + (t * hc_ + j) * comb_pitch_) * 8];
  }

 private:
  static constexpr int32_t kPostSpace = 8 * kMhcGroup, kCoefficients = 40 * kMhcGroup;
  int32_t hc_ = 0, post_pitch_ = 0, comb_pitch_ = 0;
  int64_t post_t_ = 0, comb_t_ = 0, comb_i_ = 0;
  GlobalTensor<float> post_gm_, comb_gm_;
  TQue<TPosition::VECIN, 1> queue_;
  TBuf<TPosition::VECCALC> blocks_;
};

}  // namespace dsv4_ascend
