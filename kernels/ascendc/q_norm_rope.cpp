// SPDX-License-Identifier: Apache-2.0
// q_norm_rope: out[t,h,:] = rope(q[t,h,:] / sqrt(mean(q[t,h,:]^2) + eps), positions[t])
// A unit is a tile of up to 16 heads of a token, read and written once; units are split over all cores, the first
// total % cores of which take one more. Angles are loaded once a token and core. Contract: include/dsv4spec/attention.h.
//
// Flash (64 heads of 512, R 64, bf16), 48 cores, one launch; rates as in mhc_pre.cpp:
//     T      fewest bytes   moved by MTE2 + MTE3   floor, bytes   vector cycles         bound
//     1         0.13 MB          0.14 MB              0.1 us        0.006 M, 0.1 us     launch
//    64         8.41 MB          8.41 MB              5.3 us        0.26 M,  3.0 us     memory
//  4096          538 MB           538 MB              336 us        16.5 M,  191 us     memory
// (a Gather takes 12.8 cycles a repeat, most take one.)
//
// Unified buffer, KB of 184, 16 heads of 512: q 2 x 16, out 2 x 16, floats 32, squares 4, swapped 4, places 4.5,
// angles and signs 2, factors 1 = 112 (16 bit), 146 (fp32: no floats, queues of 2 x 32).
#include "q_norm_rope_tiling.h"
#include "rope_rows.h"

namespace dsv4_ascend {
namespace {

template <class T>
class QNormRope {
 public:
  __aicore__ inline QNormRope(TPipe* pipe, GM_ADDR q, GM_ADDR cos_sin, GM_ADDR positions, GM_ADDR out,
                              const QNormRopeTiling& tiling)
      : v(tiling),
        rows_(tiling.row),
        q_(global<T>(q)),
        out_(global<T>(out)),
        cos_sin_(global<float>(cos_sin)),
        positions_(global<int64_t>(positions)) {
    pipe->InitBuffer(q_queue_, 2, v.row.rows * v.row.D * sizeof(T));
    pipe->InitBuffer(out_queue_, 2, v.row.rows * v.row.D * sizeof(T));
    pipe->InitBuffer(angle_queue_, 2, rows_.angle_pitch() * sizeof(float));
    rows_.init(pipe);
  }

  __aicore__ inline void run() {
    const Share mine = share_of(v.T * v.tiles, GetBlockNum(), GetBlockIdx());
    int64_t held = -1;
    bool real = false;
    for (int64_t tile = mine.first; tile < mine.first + mine.count; ++tile) {
      const int64_t t = tile / v.tiles;
      const int32_t head = static_cast<int32_t>(tile % v.tiles) * v.row.rows,
                    n = min_of(v.H - head, v.row.rows);
      if (t != held) {
        const int64_t position = positions_.GetValue(t);
        real = position >= 0 && position < v.max_pos;
        if (real) load_angles(position);
        held = t;
      }
      if (real)
        turn(t, head, n);
      else if (v.zero_padding)
        clear(t, head, n);
    }
  }

 private:
  __aicore__ inline void load_angles(int64_t position) {
    LocalTensor<float> raw = angle_queue_.template AllocTensor<float>();
    load_row(raw, cos_sin_[position * v.cos_sin_row], v.row.R);
    angle_queue_.EnQue(raw);
    raw = angle_queue_.template DeQue<float>();
    rows_.set_angles(raw, 1);
    angle_queue_.FreeTensor(raw);
  }
  __aicore__ inline void turn(int64_t t, int32_t head, int32_t n) {
    LocalTensor<T> q = q_queue_.template AllocTensor<T>();
    rows_in(q, q_[t * v.q_t + head * v.q_h], n, v.row.D, v.q_h, v.row.D);
    q_queue_.EnQue(q);
    q = q_queue_.template DeQue<T>();
    LocalTensor<T> out = out_queue_.template AllocTensor<T>();
    rows_.run(q, out, n);
    q_queue_.FreeTensor(q);
    store(out, t, head, n);
  }
  __aicore__ inline void clear(int64_t t, int32_t head, int32_t n) {
    LocalTensor<T> out = out_queue_.template AllocTensor<T>();
    Duplicate(out.template ReinterpretCast<int16_t>(), int16_t{0},
              n * v.row.D * static_cast<int32_t>(sizeof(T) / 2));
    store(out, t, head, n);
  }
  __aicore__ inline void store(LocalTensor<T>& out, int64_t t, int32_t head, int32_t n) {
    out_queue_.EnQue(out);
    out = out_queue_.template DeQue<T>();
    rows_out(out_[t * v.out_t + head * v.out_h], out, n, v.row.D, v.out_h, v.row.D);
    out_queue_.FreeTensor(out);
  }

  const QNormRopeTiling v;
  RopeRows<T, false, false> rows_;
  GlobalTensor<T> q_, out_;
  GlobalTensor<float> cos_sin_;
  GlobalTensor<int64_t> positions_;
  TQue<TPosition::VECIN, 1> q_queue_, angle_queue_;
  TQue<TPosition::VECOUT, 1> out_queue_;
};

}  // namespace
}  // namespace dsv4_ascend

#define ENTRY(suffix, T)                                                                                     \
  extern "C" DSV4_VECTOR_KERNEL void dsv4_q_norm_rope_##suffix(                                              \
      GM_ADDR q, GM_ADDR cos_sin, GM_ADDR positions, GM_ADDR out, QNormRopeTiling tiling) {                  \
    KERNEL_TASK_TYPE_DEFAULT(KERNEL_TYPE_AIV_ONLY);                                                          \
    AscendC::TPipe pipe;                                                                                     \
    dsv4_ascend::QNormRope<T>(&pipe, q, cos_sin, positions, out, tiling).run();                              \
  }
DSV4_STREAM_ENTRIES(ENTRY)
#undef ENTRY
