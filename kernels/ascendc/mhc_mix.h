// SPDX-License-Identifier: Apache-2.0
// Launch 2 of mhc_pre and mhc_post_pre, the cores that make post and comb, for up to 64 tokens at a time. A
// value of a token is a lane: row e holds entry e of all tokens, so softmax and Sinkhorn are whole-vector
// instructions without a reduction: 8 dependent ones an iteration (hc = 4), 64 repeats for 64 tokens.
#pragma once
#include "mhc_join.h"

namespace dsv4_ascend {

class MhcMix {
 public:
  __aicore__ inline MhcMix(const MhcFinishTiling& tiling) : v(tiling) {}
  template <class Buffers>
  __aicore__ inline void init(Buffers* pipe, GM_ADDR partial, GM_ADDR base, GM_ADDR scale, GM_ADDR post,
                              GM_ADDR comb) {
    partial_ = global<float>(partial), post_ = global<float>(post), comb_ = global<float>(comb);
    entries_ = v.hc * v.hc;
    post_pitch_ = v.post_t == v.hc ? v.hc : 8;
    comb_pitch_ = v.comb_i == v.hc && v.comb_t == entries_ ? v.hc : 8;
    pipe->InitBuffer(sum_queue_, 2, kMhcAtOnce * fold_pitch((1 + v.columns) * kMhcGroup) * sizeof(float));
    pipe->InitBuffer(out_queue_, 1, (kPostSpace + kCombSpace) * sizeof(float));
    pipe->InitBuffer(small_, kSmall * sizeof(float));
    pipe->InitBuffer(lanes_, (1 + v.columns) * kRowLanes * sizeof(float));
    pipe->InitBuffer(index_, (kPostSpace + 4 * kCombSpace) * sizeof(int32_t));
    Duplicate(at(kOnes), 1.f, kRowLanes);
    load_site(sum_queue_, at(kSite), base, scale, v.columns, 3);
  }

  __aicore__ inline void run(int64_t index, int64_t cores) {
    const Share mine = share_of(v.groups, cores, index);
    if (!mine.count) return;
    const LocalTensor<int32_t> place = index_.Get<int32_t>();
    place_of(place, kRowLanes * post_pitch_, post_pitch_, 0);
    place_of(place[kPostSpace], kRowLanes * v.hc * comb_pitch_, comb_pitch_, log2_of(v.hc));
    for (int64_t g = 0; g < mine.count; g += kGroups)
      tokens_of(mine.first + g, static_cast<int32_t>(min_of<int64_t>(kGroups, mine.count - g)));
  }

 private:
  static constexpr int32_t kGroups = 8, kPostSpace = 8 * kRowLanes, kCombSpace = 32 * kRowLanes;
  static constexpr int32_t kOnes = 0, kSite = kRowLanes, kTotal = kSite + kMhcSiteBlocks * 8,
                           kPairs = kTotal + 256, kSums = kPairs + 8 * kRowLanes,
                           kSmall = kSums + 4 * kRowLanes;
  __aicore__ inline LocalTensor<float> at(int32_t offset) { return small_.Get<float>()[offset]; }
  __aicore__ inline static uint8_t u8(int32_t x) { return static_cast<uint8_t>(x); }
  __aicore__ inline static int32_t log2_of(int32_t n) { return n == 8 ? 3 : n / 2; }  // 1, 2, 4 or 8
  __aicore__ inline static BinaryRepeatParams rows(int32_t dst, int32_t a,
                                                   int32_t b) {  // strides in rows of 64 floats
    return BinaryRepeatParams(1, 1, 1, u8(8 * dst), u8(8 * a), u8(8 * b));
  }

  // Where float l of an output stands in the rows of lanes, in bytes. Outputs are [token][2^rows][pitch]; the
  // row of lanes is entry = (row of the token) * hc + column, whose floats are the tokens.
  __aicore__ inline void place_of(const LocalTensor<int32_t>& to, int32_t n, int32_t pitch, int32_t rows) {
    const int32_t h = log2_of(v.hc);
    const LocalTensor<int32_t> a = index_.Get<int32_t>()[kPostSpace + kCombSpace], b = a[kCombSpace],
                               c = b[kCombSpace];
    CreateVecIndex(a, int32_t{0}, static_cast<uint32_t>(n));
    ordered();
    ShiftRight(b, a, h, n);
    ordered();
    ShiftLeft(b, b, h, n);
    ordered();
    Sub(to, a, b, n);  // column: l % hc, for the pitch is a multiple of hc
    ordered();
    ShiftRight(a, a, log2_of(pitch), n);
    ordered();
    ShiftRight(b, a, rows, n);  // token
    ordered();
    ShiftLeft(c, b, rows, n);
    ordered();
    Sub(a, a, c, n);  // row of the token
    ordered();
    ShiftLeft(a, a, h, n);
    ordered();
    Add(to, to, a, n);
    ordered();
    ShiftLeft(to, to, int32_t{6}, n);
    ordered();
    Add(to, to, b, n);
    ordered();
    ShiftLeft(to, to, int32_t{2}, n);
    ordered();
  }

  __aicore__ inline void tokens_of(int64_t group, int32_t groups) {
    const int32_t whole = (1 + v.columns) / 8, left = (1 + v.columns) % 8, n = v.hc + entries_;
    const int64_t first = group * kMhcGroup;
    const int32_t tokens = static_cast<int32_t>(min_of<int64_t>(v.tokens - first, groups * kMhcGroup));
    const LocalTensor<float> x = lanes_.Get<float>(), total = at(kTotal);
    for (int32_t g = 0; g < groups; ++g) {  // block e of a group's sums: lanes of row e
      load_sums(sum_queue_, total, partial_, group + g, 1 + v.columns, v);
      const UnaryRepeatParams spreads(8, 1, 64, 8);
      if (whole) Adds(x[g * kMhcGroup], total, 0.f, uint64_t{64}, u8(whole), spreads);
      if (left)
        Adds(x[whole * 8 * kRowLanes + g * kMhcGroup], total[whole * 64], 0.f,
             static_cast<uint64_t>(left * 8), uint8_t{1}, spreads);
      ordered();
    }
    const int32_t lanes = groups * kMhcGroup;
    const uint64_t mask = static_cast<uint64_t>(lanes);
    const LocalTensor<float> m = x[(1 + v.hc) * kRowLanes], comb = m[v.hc * kRowLanes];
    const BinaryRepeatParams by_value(1, 1, 0, 8, 8, 0), by_row(1, 1, 0, 8, 8, 1);
    inverse_rms(x, at(kOnes), v.mean_row, v.rms_eps, lanes);
    Mul(m, m, x, mask, u8(n), rows(1, 1, 0));
    ordered();
    Mul(m, m, at(kSite + 25 * 8), mask, u8(v.hc), by_value);
    Mul(comb, comb, at(kSite + 26 * 8), mask, u8(entries_), by_value);
    ordered();
    Add(m, m, at(kSite + v.hc * 8), mask, u8(n), by_row);
    ordered();
    sigmoid(m, at(kOnes), lanes, v.hc);
    Muls(m, m, 2.f, mask, u8(v.hc), UnaryRepeatParams(1, 1, 8, 8));
    sinkhorn(comb, mask);

    LocalTensor<float> out = out_queue_.AllocTensor<float>();
    const LocalTensor<uint32_t> place = index_.Get<uint32_t>();
    Gather(out, m, place, 0u, static_cast<uint32_t>(tokens * post_pitch_));
    Gather(out[kPostSpace], comb, place[kPostSpace], 0u, static_cast<uint32_t>(tokens * v.hc * comb_pitch_));
    ordered();
    out_queue_.EnQue(out);
    out = out_queue_.DeQue<float>();
    if (post_pitch_ == 8)
      rows_out(post_[first * v.post_t], out, tokens, v.hc, v.post_t, 8);
    else
      store_row(post_[first * v.post_t], out, tokens * v.hc);
    if (comb_pitch_ != 8)
      store_row(comb_[first * v.comb_t], out[kPostSpace], tokens * entries_);
    else
      for (int32_t t = 0; t < tokens; ++t)
        rows_out(comb_[(first + t) * v.comb_t], out[kPostSpace + t * v.hc * 8], v.hc, v.hc, v.comb_i, 8);
    out_queue_.FreeTensor(out);
  }

  // c: rows of the logits, then of comb. Softmax is the first row step; the last step is a column step.
  __aicore__ inline void sinkhorn(const LocalTensor<float>& c, uint64_t mask) {
    const LocalTensor<float> sums = at(kSums);
    const UnaryRepeatParams every(1, 1, 8, 8);
    of_rows<true>(c, mask);
    for (int32_t i = 0; i < v.hc; ++i)
      Sub(c[i * v.hc * kRowLanes], c[i * v.hc * kRowLanes], sums[i * kRowLanes], mask, u8(v.hc),
          rows(1, 1, 0));
    ordered();
    Exp(c, c, mask, u8(entries_), every);
    ordered();
    of_rows<false>(c, mask);
    divide(c, mask, 0);
    Adds(c, c, v.hc_eps, mask, u8(entries_), every);
    ordered();
    for (int32_t n = 0; n < v.iters; ++n) {
      if (n) {
        of_rows<false>(c, mask);
        Adds(sums, sums, v.hc_eps, mask, u8(v.hc), every);
        ordered();
        divide(c, mask, 0);
      }
      of_columns(c, mask);
      Adds(sums, sums, v.hc_eps, mask, u8(v.hc), every);
      ordered();
      divide(c, mask, 1);
    }
  }
  // c[i][j] /= sums[step ? j : i]
  __aicore__ inline void divide(const LocalTensor<float>& c, uint64_t mask, int32_t step) {
    for (int32_t i = 0; i < v.hc; ++i)
      Div(c[i * v.hc * kRowLanes], c[i * v.hc * kRowLanes], at(kSums + (step ? 0 : i * kRowLanes)), mask,
          u8(v.hc), rows(1, 1, step));
    ordered();
  }
  template <bool MAX>
  __aicore__ inline void two(const LocalTensor<float>& to, const LocalTensor<float>& a,
                             const LocalTensor<float>& b, uint64_t mask, int32_t n,
                             const BinaryRepeatParams& strides) {
    if (MAX)
      Max(to, a, b, mask, u8(n), strides);
    else
      Add(to, a, b, mask, u8(n), strides);
  }
  // sums[i] of c[i][0..hc)
  template <bool MAX>
  __aicore__ inline void of_rows(const LocalTensor<float>& c, uint64_t mask) {
    LocalTensor<float> pairs = c;
    if (v.hc == 4) {
      pairs = at(kPairs);
      two<MAX>(pairs, c, c[kRowLanes], mask, 8, rows(1, 2, 2));
      ordered();
    }
    if (v.hc == 1)
      Adds(at(kSums), c, 0.f, mask, uint8_t{1}, UnaryRepeatParams(1, 1, 8, 8));
    else
      two<MAX>(at(kSums), pairs, pairs[kRowLanes], mask, v.hc, rows(1, 2, 2));
    ordered();
  }
  // sums[j] of c[0..hc)[j]
  __aicore__ inline void of_columns(const LocalTensor<float>& c, uint64_t mask) {
    LocalTensor<float> pairs = c;
    if (v.hc == 4) {
      pairs = at(kPairs);
      for (int32_t k = 0; k < 2; ++k)
        Add(pairs[k * 4 * kRowLanes], c[k * 8 * kRowLanes], c[(k * 8 + 4) * kRowLanes], mask, uint8_t{4},
            rows(1, 1, 1));
      ordered();
    }
    if (v.hc == 1)
      Adds(at(kSums), c, 0.f, mask, uint8_t{1}, UnaryRepeatParams(1, 1, 8, 8));
    else
      Add(at(kSums), pairs, pairs[v.hc * kRowLanes], mask, u8(v.hc), rows(1, 1, 1));
    ordered();
  }

  const MhcFinishTiling v;
  int32_t entries_, post_pitch_, comb_pitch_;
  GlobalTensor<float> partial_, post_, comb_;
  TQue<TPosition::VECIN, 1> sum_queue_;
  TQue<TPosition::VECOUT, 1> out_queue_;
  TBuf<TPosition::VECCALC> small_, lanes_, index_;
};

}  // namespace dsv4_ascend
