// SPDX-License-Identifier: Apache-2.0
// mhc_post: out[t,i,:] = post[t,i] * y[t,:] + sum_j comb[t,j,i] * residual[t,j,:]
// Bound by memory: (2*hc + 1) * d elements a token; 2*hc*(hc + 1) flops a channel. A unit of work is one tile of a row,
// all streams of it; units are split over the vector cores, the first total % cores of which do one more. A unit reads
// its channels of all streams before it writes them, so `out` may be `residual`. Contract: include/dsv4spec/mhc.h.
//
// Flash (d 4096, hc 4, bf16), 48 cores, one launch; rates as in mhc_pre.cpp:
//     T      fewest bytes   moved by MTE2 + MTE3   floor, bytes   vector cycles         bound
//     1         0.07 MB          0.08 MB               0 us         0.003 M, 0.1 us     launch
//    64         4.72 MB          4.73 MB              3.0 us        0.18 M,  2.1 us     memory
//  4096          302 MB           303 MB              189 us        11.8 M,  137 us     memory
//
// Unified buffer, bytes a channel of a tile (hc = 4; at most 2048 channels, so 144 KB of 183.75; and 3 for coefficients):
//            in (2 buffers)   out (2 buffers)   floats of in   sums
//   16 bit        20               16               20          16    = 72
//   fp32          40               32               in place    in place = 72
#include "mhc_post_tiling.h"
#include "mhc_vector.h"

namespace dsv4_ascend {
namespace {

constexpr int32_t kMaxStreams = 4;
constexpr int32_t kCoefficients = 8 * (1 + kMaxStreams);  // a block for post and one for each row of comb

template <class T>
class MhcPost {
 public:
  __aicore__ inline MhcPost(GM_ADDR y, GM_ADDR residual, GM_ADDR post, GM_ADDR comb, GM_ADDR out,
                            const MhcPostTiling& tiling)
      : v(tiling),
        y_(global<T>(y)),
        residual_(global<T>(residual)),
        out_(global<T>(out)),
        post_(global<float>(post)),
        comb_(global<float>(comb)) {
    const uint32_t row = tiling.tile * sizeof(T);
    pipe.InitBuffer(in_, 2, row * (1 + v.hc));
    pipe.InitBuffer(out_queue_, 2, row * v.hc);
    pipe.InitBuffer(coefficients_, 2, kCoefficients * sizeof(float));
    pipe.InitBuffer(blocks_, kCoefficients * 8 * sizeof(float));
    if (!is_float<T>) {
      pipe.InitBuffer(in_floats_, tiling.tile * sizeof(float) * (1 + v.hc));
      pipe.InitBuffer(sums_, tiling.tile * sizeof(float) * v.hc);
    }
  }

  __aicore__ inline void run() {
    const Share mine = share_of(v.T * v.tiles, GetBlockNum(), GetBlockIdx());
    if (mine.count) load(mine.first);
    for (int64_t u = 0; u < mine.count; ++u) {
      if (u + 1 < mine.count) load(mine.first + u + 1);
      mix(mine.first + u);
    }
  }

 private:
  struct Place {
    int64_t t, channel;
    int32_t count;
  };
  __aicore__ inline Place place(int64_t unit) const {
    const int64_t t = unit / v.tiles, channel = unit % v.tiles * v.tile;
    return {t, channel, static_cast<int32_t>(min_of<int64_t>(v.tile, v.d - channel))};
  }

  // The rows of a unit and its token's coefficients: post and the rows of comb, a block each.
  __aicore__ inline void load(int64_t unit) {
    const Place p = place(unit);
    LocalTensor<T> in = in_.template AllocTensor<T>();
    load_row(in, y_[p.t * v.y_t + p.channel], p.count);
    for (int32_t j = 0; j < v.hc; ++j)
      load_row(in[(1 + j) * v.tile], residual_[p.t * v.residual_t + j * v.residual_i + p.channel], p.count);
    in_.EnQue(in);

    LocalTensor<float> c = coefficients_.template AllocTensor<float>();
    load_row(c, post_[p.t * v.post_t], v.hc);
    for (int32_t j = 0; j < v.hc; ++j) load_row(c[8 * (1 + j)], comb_[p.t * v.comb_t + j * v.comb_j], v.hc);
    coefficients_.EnQue(c);
  }

  // The instructions of mhc_post_pre, channel by channel, so that both give the same bits.
  __aicore__ inline void mix(int64_t unit) {
    const Place p = place(unit);
    LocalTensor<float> raw = coefficients_.template DeQue<float>();
    const LocalTensor<float> c = blocks_.Get<float>();  // coefficient e of row r: block 8 * r + e
    spread(c, raw, 8 * (1 + v.hc));
    ordered();
    coefficients_.FreeTensor(raw);

    LocalTensor<T> in = in_.template DeQue<T>();
    LocalTensor<T> out = out_queue_.template AllocTensor<T>();
    LocalTensor<float> x, sum;
    if constexpr (is_float<T>) {
      x = in, sum = out;
    } else {
      x = in_floats_.Get<float>(), sum = sums_.Get<float>();
      for (int32_t j = 0; j <= v.hc; ++j) to_float(x[j * v.tile], in[j * v.tile], p.count);
      ordered();
    }
    for (int32_t i = 0; i < v.hc; ++i) by_block<false>(sum[i * v.tile], x, c[i * 8], p.count);
    ordered();
    for (int32_t j = 0; j < v.hc; ++j) {
      for (int32_t i = 0; i < v.hc; ++i)
        by_block<true>(sum[i * v.tile], x[(1 + j) * v.tile], c[(8 * (1 + j) + i) * 8], p.count);
      ordered();
    }
    if constexpr (!is_float<T>) {
      for (int32_t i = 0; i < v.hc; ++i) from_float(out[i * v.tile], sum[i * v.tile], p.count);
      ordered();  // the next unit writes these sums
    }
    in_.FreeTensor(in);
    out_queue_.EnQue(out);

    out = out_queue_.template DeQue<T>();
    for (int32_t i = 0; i < v.hc; ++i)
      store_row(out_[p.t * v.out_t + i * v.out_i + p.channel], out[i * v.tile], p.count);
    out_queue_.FreeTensor(out);
  }

  const MhcPostTiling v;
  GlobalTensor<T> y_, residual_, out_;
  GlobalTensor<float> post_, comb_;
  TPipe pipe;
  TQue<TPosition::VECIN, 2> in_, coefficients_;
  TQue<TPosition::VECOUT, 1> out_queue_;
  TBuf<TPosition::VECCALC> blocks_, in_floats_, sums_;
};

}  // namespace
}  // namespace dsv4_ascend

#define ENTRY(suffix, T)                                                                                     \
  extern "C" DSV4_VECTOR_KERNEL void dsv4_mhc_post_##suffix(GM_ADDR y, GM_ADDR residual, GM_ADDR post,       \
                                                            GM_ADDR comb, GM_ADDR out, MhcPostTiling tiling) {\
    KERNEL_TASK_TYPE_DEFAULT(KERNEL_TYPE_AIV_ONLY);                                                          \
    dsv4_ascend::MhcPost<T>(y, residual, post, comb, out, tiling).run();                                     \
  }
DSV4_STREAM_ENTRIES(ENTRY)
#undef ENTRY
