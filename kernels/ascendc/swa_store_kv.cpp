// SPDX-License-Identifier: Apache-2.0
// swa_store_kv: kv_pages[slot] = rope(kv[t,:] / sqrt(mean(kv[t,:]^2) + eps) * weight, positions[t])
// Tokens are split over the cores, four or more each; a core gathers its stored rows, with their angles, into tiles of
// up to 16. A row of a page is written by the one core that owns it, D * 2 bytes being a multiple of 32.
// Contract: include/dsv4spec/attention.h.
//
// Flash (D 512, R 64, bf16), 48 cores, one launch; rates as in mhc_pre.cpp:
//     T      fewest bytes   moved by MTE2 + MTE3   floor, bytes   vector repeats        bound
//     1        3.3 KB            3.3 KB               0 us            82                launch, 42 dependent steps
//    64        150 KB            164 KB              0.1 us         0.004 M             launch
//  4096        9.5 MB            9.5 MB              5.9 us          0.2 M,  2.3 us     memory, in bursts of 1 KB
//
// Unified buffer, KB of 184, 16 rows of 512: kv 2 x 16, out 2 x 16, floats 32, angles 2 x 4 and their places 8 and
// turns 8, squares 4, swapped 4, its places 4, weight 2 + 2 = 136.
#include "rope_rows.h"
#include "swa_store_kv_tiling.h"

namespace dsv4_ascend {
namespace {

template <class T>
class SwaStoreKv {
 public:
  __aicore__ inline SwaStoreKv(TPipe* pipe, GM_ADDR kv, GM_ADDR weight, GM_ADDR cos_sin, GM_ADDR positions,
                               GM_ADDR slots, GM_ADDR pages, const SwaStoreKvTiling& tiling)
      : v(tiling),
        rows_(tiling.row),
        kv_(global<T>(kv)),
        pages_(global<T>(pages)),
        cos_sin_(global<float>(cos_sin)),
        positions_(global<int64_t>(positions)),
        slots_(global<int64_t>(slots)) {
    pipe->InitBuffer(kv_queue_, 2, v.row.rows * v.row.D * sizeof(T));
    pipe->InitBuffer(out_queue_, 2, v.row.rows * v.row.D * sizeof(T));
    pipe->InitBuffer(angle_queue_, 2, v.row.rows * rows_.angle_pitch() * sizeof(float));
    pipe->InitBuffer(weight_queue_, 1, v.row.D * sizeof(float));
    rows_.init(pipe);
    if (v.weight == 2)
      load_weight<bfloat16_t>(weight);
    else
      load_weight<float>(weight);
  }

  // Rows that are stored are gathered into tiles; no other row, and no position of one, is read.
  __aicore__ inline void run() {
    const Share mine = share_of(v.T, GetBlockNum(), GetBlockIdx());
    const int64_t end = mine.first + mine.count;
    for (int64_t t = mine.first; t < end;) {
      int64_t to[kMaxRows];
      int32_t n = 0;
      LocalTensor<T> kv = kv_queue_.template AllocTensor<T>();
      LocalTensor<float> angles = angle_queue_.template AllocTensor<float>();
      for (; t < end && n < v.row.rows; ++t) {
        const int64_t slot = slots_.GetValue(t);
        if (slot < 0 || slot >= v.slots) continue;
        const int64_t position = positions_.GetValue(t);
        if (position < 0 || position >= v.max_pos) continue;
        load_row(kv[n * v.row.D], kv_[t * v.kv_t], v.row.D);
        load_row(angles[n * rows_.angle_pitch()], cos_sin_[position * v.cos_sin_row], v.row.R);
        to[n++] = slot / v.page * v.pages_p + slot % v.page * v.pages_row;
      }
      kv_queue_.EnQue(kv);
      angle_queue_.EnQue(angles);
      kv = kv_queue_.template DeQue<T>();
      angles = angle_queue_.template DeQue<float>();
      if (n) {
        LocalTensor<T> out = out_queue_.template AllocTensor<T>();
        rows_.set_angles(angles, n);
        rows_.run(kv, out, n);
        out_queue_.EnQue(out);
        out = out_queue_.template DeQue<T>();
        for (int32_t r = 0; r < n; ++r) store_row(pages_[to[r]], out[r * v.row.D], v.row.D);
        out_queue_.FreeTensor(out);
      }
      kv_queue_.FreeTensor(kv);
      angle_queue_.FreeTensor(angles);
    }
  }

 private:
  static constexpr int32_t kMaxRows = 16;

  template <class W>
  __aicore__ inline void load_weight(GM_ADDR weight) {
    LocalTensor<W> raw = weight_queue_.template AllocTensor<W>();
    load_row(raw, global<W>(weight), v.row.D);
    weight_queue_.EnQue(raw);
    raw = weight_queue_.template DeQue<W>();
    rows_.set_weight(raw);
    weight_queue_.FreeTensor(raw);
  }

  const SwaStoreKvTiling v;
  RopeRows<T, true, true> rows_;
  GlobalTensor<T> kv_, pages_;
  GlobalTensor<float> cos_sin_;
  GlobalTensor<int64_t> positions_, slots_;
  TQue<TPosition::VECIN, 1> kv_queue_, angle_queue_, weight_queue_;
  TQue<TPosition::VECOUT, 1> out_queue_;
};

}  // namespace
}  // namespace dsv4_ascend

#define ENTRY(suffix, T)                                                                                     \
  extern "C" DSV4_VECTOR_KERNEL void dsv4_swa_store_kv_##suffix(                                             \
      GM_ADDR kv, GM_ADDR weight, GM_ADDR cos_sin, GM_ADDR positions, GM_ADDR slots, GM_ADDR pages,          \
      SwaStoreKvTiling tiling) {                                                                             \
    KERNEL_TASK_TYPE_DEFAULT(KERNEL_TYPE_AIV_ONLY);                                                          \
    AscendC::TPipe pipe;                                                                                     \
    dsv4_ascend::SwaStoreKv<T>(&pipe, kv, weight, cos_sin, positions, slots, pages, tiling).run();           \
  }
DSV4_STREAM_ENTRIES(ENTRY)
#undef ENTRY
