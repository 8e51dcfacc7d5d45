// SPDX-License-Identifier: Apache-2.0
// assign_draft_slots: where the draft steps store their KV, k branches of num_steps slots a request.
// 8 bytes written a slot, a table entry of 4 or 8 read for every page that the slots touch and a length a
// request: a launch's latency is the floor. Work: requests in groups of whole output lines over all vector
// cores (as a rule 8 of them), at most 2048 slots at a time; a request with more goes in pieces. A request's
// entries are neighbours in its table: one transfer. Slots are 64-bit products of 32-bit page ids, which the
// vector unit cannot form: scalars, without a division per slot. Contract: include/dsv4spec/paging.h.
//   UB (34 KB):  lengths 2 | table entries 16 | slots 16
#include "assign_draft_slots_tiling.h"
#include "ints.h"

namespace dsv4_ascend {
namespace {

class AssignDraftSlots {
 public:
  __aicore__ inline AssignDraftSlots(GM_ADDR table, GM_ADDR live, GM_ADDR slots,
                                     const AssignDraftSlotsTiling& t)
      : t_(t), table_(table), live_(live), slots_(slots) {
    pipe_.InitBuffer(buffer_, kUsed);
    const Bytes all = buffer_.Get<uint8_t>();
    lengths_ = {all, t.live.wide != 0};
    entries_ = all[kEntriesAt];
    out_ = all[kSlotsAt];
  }

  __aicore__ inline void run() {
    const Range mine = share_of(t_.requests, GetBlockIdx());
    for (int64_t b = mine.begin; b < mine.end; b += t_.rows) requests(b, least(t_.rows, mine.end - b));
  }

 private:
  static constexpr uint32_t kEntriesAt = kAssignRequests * 8, kSlotsAt = kEntriesAt + kAssignSlots * 8,
                            kUsed = kSlotsAt + kAssignSlots * 8;

  // Where the slots of a request begin: place `at` of it, in column `column` of the table at offset `within`
  // of a page.
  struct Place {
    int64_t branch, step, column, within;
  };
  __aicore__ inline Place place(int64_t s, int64_t at) const {
    const int64_t start = remainder(s, t_.page);
    Place p{at / t_.steps, at % t_.steps, 0, 0};
    const int64_t offset = start + p.step, more = quotient(offset, t_.page);
    p.column = branch_column(s, start, p.branch) + more;
    p.within = offset - more * t_.page.value;
    return p;
  }
  // Columns beyond the table are alike: bounded, the sum cannot overflow.
  __aicore__ inline int64_t branch_column(int64_t s, int64_t start, int64_t branch) const {
    const int64_t pages = rounded_up(start + t_.steps, t_.page);
    return least(quotient(s, t_.page), t_.width) + least(branch * pages, t_.width);
  }

  __aicore__ inline void requests(int64_t first, int64_t count) {
    const int64_t size = int_bytes(t_.live.wide), each = t_.topk * t_.steps;
    order<HardEvent::S_MTE2>();
    bytes_in(lengths_.data, live_ + first * size, count * size);
    order<HardEvent::MTE2_S>();
    for (int64_t at = 0; at < each; at += t_.tile) slots_of(first, count, at, least(t_.tile, each - at));
  }

  // Slots at .. at+places-1 of `count` requests.
  __aicore__ inline void slots_of(int64_t first, int64_t count, int64_t at, int64_t places) {
    const int64_t pitch = padded(places * 8), size = int_bytes(t_.table.wide);
    order<HardEvent::S_MTE2>();
    for (int64_t r = 0; r < count; ++r) {
      const int64_t s = lengths_.at(r);
      if (s <= 0) continue;
      // From slot to slot the column rises by one at most, so the entries fit where the slots do.
      const int64_t begin = place(s, at).column, end = least(place(s, at + places - 1).column + 1, t_.width);
      if (begin < end)
        bytes_in(entries_[static_cast<uint32_t>(r * pitch)],
                 table_ + (first + r) * t_.table.stride + begin * size, (end - begin) * size);
    }
    order<HardEvent::MTE2_S>();
    order<HardEvent::MTE3_S>();
    for (int64_t r = 0; r < count; ++r) request(r * pitch, lengths_.at(r), at, places);
    order<HardEvent::S_MTE3>();
    rows_out(slots_ + first * t_.slots_stride + at * 8, out_, t_.slots_stride, count, places * 8, pitch);
  }

  __aicore__ inline void request(int64_t offset, int64_t s, int64_t at, int64_t places) {
    const LocalTensor<int64_t> out = out_[static_cast<uint32_t>(offset)].ReinterpretCast<int64_t>();
    const Ints entries{entries_[static_cast<uint32_t>(offset)], t_.table.wide != 0};
    if (s <= 0) {
      for (int64_t i = 0; i < places; ++i) out.SetValue(static_cast<uint32_t>(i), static_cast<int64_t>(-1));
      return;
    }
    Place p = place(s, at);
    const int64_t start = remainder(s, t_.page), first_column = p.column;
    int64_t base = page_start(entries, p.column, first_column);
    for (int64_t i = 0; i < places; ++i) {
      out.SetValue(static_cast<uint32_t>(i), base < 0 ? static_cast<int64_t>(-1) : base + p.within);
      const int64_t column = p.column;
      if (++p.step == t_.steps) {
        p.step = 0;
        p.within = start;
        p.column = branch_column(s, start, ++p.branch);
      } else if (++p.within == t_.page.value) {
        p.within = 0;
        ++p.column;
      }
      if (p.column != column && i + 1 < places) base = page_start(entries, p.column, first_column);
    }
  }

  // The first slot of the page in that column, -1 without one.
  __aicore__ inline int64_t page_start(const Ints& entries, int64_t column, int64_t first_column) const {
    const int64_t id = column < t_.width ? entries.at(column - first_column) : -1;
    return id >= 0 && id <= kMaxPageId ? id * t_.page.value : -1;
  }

  const AssignDraftSlotsTiling& t_;
  GM_ADDR table_;
  GM_ADDR live_;
  GM_ADDR slots_;
  TPipe pipe_;
  TBuf<TPosition::VECIN> buffer_;
  Ints lengths_;
  Bytes entries_, out_;
};

}  // namespace
}  // namespace dsv4_ascend

extern "C" DSV4_VECTOR_KERNEL void dsv4_assign_draft_slots_aiv(GM_ADDR table, GM_ADDR live, GM_ADDR slots,
                                                               AssignDraftSlotsTiling tiling) {
  KERNEL_TASK_TYPE_DEFAULT(KERNEL_TYPE_AIV_ONLY);
  dsv4_ascend::AssignDraftSlots(table, live, slots, tiling).run();
}
