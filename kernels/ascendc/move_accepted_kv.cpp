// SPDX-License-Identifier: Apache-2.0
// move_accepted_kv: copies rows of the pool to other rows of it, all sources read before any destination is
// written. 2 bytes moved a byte of KV and 16 of slots a row, read once before and once behind the barrier: 8
// MB of KV at 1.6 TB/s are 10 us, less is a launch's latency. Work: pairs, the same number on every vector
// core or one more; a core reads its sources into its local memory, all cores meet (SyncAll, hence the kernel
// type with a barrier in hardware), then it writes its destinations. A slot whose row does not begin at a
// 64-byte line shares that line with another slot: then one core does all. More rows than local memory holds
// go through the workspace, at twice the traffic. Contract: include/dsv4spec/paging.h.
//   UB (168 KB):  sources 4 | destinations 4 | rows 160
#include "ints.h"
#include "move_accepted_kv_tiling.h"

namespace dsv4_ascend {
namespace {

class MoveAcceptedKv {
 public:
  __aicore__ inline MoveAcceptedKv(GM_ADDR pool, GM_ADDR src, GM_ADDR dst, GM_ADDR scratch,
                                   const MoveAcceptedKvTiling& t)
      : t_(t), pool_(pool), src_(src), dst_(dst), scratch_(scratch) {
    pipe_.InitBuffer(buffer_, 2 * kMoveLists * 8 + kMoveHeld);
    const Bytes all = buffer_.Get<uint8_t>();
    sources_ = all.ReinterpretCast<int64_t>();
    destinations_ = all[kMoveLists * 8].ReinterpretCast<int64_t>();
    held_ = all[2 * kMoveLists * 8];
  }

  __aicore__ inline void run() {
    const Range mine = share_of(t_.pairs, GetBlockIdx());
    const int64_t step = t_.rows;
    if (t_.scratch) {  // whole rows go there and back, also those that nothing was read into
      fill(held_, 0, kMoveHeld);
      order<HardEvent::V_MTE2>();
      order<HardEvent::V_MTE3>();
    }
    for (int64_t m = mine.begin; m < mine.end; m += step) {
      const int64_t count = least(step, mine.end - m);
      read(m, count);
      if (t_.scratch) keep(m, count);
    }
    if (GetBlockNum() > 1) SyncAll<true>();
    for (int64_t m = mine.begin; m < mine.end; m += step) {
      const int64_t count = least(step, mine.end - m);
      if (t_.scratch) fetch(m, count);
      write(m, count);
    }
  }

 private:
  __aicore__ inline bool moves(int64_t from, int64_t to) const {
    return from >= 0 && to >= 0 && from < t_.slots && to < t_.slots;
  }
  __aicore__ inline GM_ADDR row(int64_t slot) const {
    return pool_ + quotient(slot, t_.page) * t_.page_bytes + remainder(slot, t_.page) * t_.slot_bytes;
  }
  __aicore__ inline Bytes held(int64_t i) const { return held_[static_cast<uint32_t>(i * t_.pitch)]; }

  // Slots of pairs m .. m+count-1.
  __aicore__ inline void lists(int64_t m, int64_t count) {
    order<HardEvent::S_MTE2>();
    bytes_in(sources_.ReinterpretCast<uint8_t>(), src_ + m * 8, count * 8);
    bytes_in(destinations_.ReinterpretCast<uint8_t>(), dst_ + m * 8, count * 8);
    order<HardEvent::MTE2_S>();
  }
  __aicore__ inline void rows(int64_t m, int64_t count, bool reads) {
    for (int64_t done = 0; done < count; done += kMoveLists) {
      const int64_t some = least(kMoveLists, count - done);
      lists(m + done, some);
      for (int64_t i = 0; i < some; ++i) {
        const int64_t from = sources_.GetValue(static_cast<uint32_t>(i));
        const int64_t to = destinations_.GetValue(static_cast<uint32_t>(i));
        if (!moves(from, to)) continue;
        if (reads)
          bytes_in(held(done + i), row(from), t_.row_bytes);
        else
          bytes_out(row(to), held(done + i), t_.row_bytes);
      }
    }
  }
  __aicore__ inline void read(int64_t m, int64_t count) {
    order<HardEvent::MTE3_MTE2>();
    rows(m, count, true);
  }
  __aicore__ inline void write(int64_t m, int64_t count) {
    order<HardEvent::MTE2_MTE3>();
    rows(m, count, false);
  }
  __aicore__ inline void keep(int64_t m, int64_t count) {
    order<HardEvent::MTE2_MTE3>();
    bytes_out(scratch_ + m * t_.pitch, held_, count * t_.pitch);
  }
  __aicore__ inline void fetch(int64_t m, int64_t count) {
    order<HardEvent::MTE3_MTE2>();
    bytes_in(held_, scratch_ + m * t_.pitch, count * t_.pitch);
  }

  const MoveAcceptedKvTiling& t_;
  GM_ADDR pool_;
  GM_ADDR src_;
  GM_ADDR dst_;
  GM_ADDR scratch_;
  TPipe pipe_;
  TBuf<TPosition::VECIN> buffer_;
  LocalTensor<int64_t> sources_, destinations_;
  Bytes held_;
};

}  // namespace
}  // namespace dsv4_ascend

extern "C" DSV4_VECTOR_MEETING void dsv4_move_accepted_kv_aiv(GM_ADDR pool, GM_ADDR src, GM_ADDR dst,
                                                              GM_ADDR workspace,
                                                              MoveAcceptedKvTiling tiling) {
  KERNEL_TASK_TYPE_DEFAULT(KERNEL_TYPE_MIX_AIV_1_0);
  dsv4_ascend::MoveAcceptedKv(pool, src, dst, workspace, tiling).run();
}
