// SPDX-License-Identifier: Apache-2.0
// The rule of include/dsv4spec/verify.h, which rows of a verify window emit a compressed entry, and the
// packing of those entries in request order. Work: entries of the output in groups of whole lines over all
// vector cores. A request's emitting rows are `ratio` apart, so their number has a closed form; every core
// counts all requests for itself (int32 lengths and a ratio of 2^i by the vector unit, 64 requests a sum;
// else scalars) and goes into those whose entries are its own. Nobody waits for another core.
//   UB (64.3 KB):  lengths 8 | counts and their work rows 16 | sums 0.25 | positions 16 and table entries 16,
//   a block of 32 bytes an entry | values 4 | slots 4
#pragma once
#include "ints.h"
#include "verify_rows_tiling.h"

namespace dsv4_ascend {

constexpr int64_t kPackRequests = 1024;  // lengths in local memory
constexpr int64_t kPackEntries = 512;    // entries at a time
constexpr int64_t kPackGroup = 64;       // requests of one sum
constexpr uint32_t kPackBytes =
    kPackRequests * 8 + 4 * kPackRequests * 4 + 256 + kPackEntries * (2 * kBlock + 2 * 8);

class Packer {
 public:
  __aicore__ inline Packer(const WindowTiling& w, GM_ADDR positions, GM_ADDR live, const Bytes& memory)
      : w_(w), positions_(positions), live_(live), lengths_{memory, w.live.wide != 0} {
    Bytes rest = memory[kPackRequests * 8];
    counts_ = take(rest, kPackRequests * 4).ReinterpretCast<int32_t>();
    a_ = take(rest, kPackRequests * 4).ReinterpretCast<int32_t>();
    b_ = take(rest, kPackRequests * 4).ReinterpretCast<int32_t>();
    floats_ = take(rest, kPackRequests * 4).ReinterpretCast<float>();
    sums_ = take(rest, 256);
    positions_in_ = take(rest, kPackEntries * kBlock);
    table_in_ = take(rest, kPackEntries * kBlock);
    values_ = take(rest, kPackEntries * 8);
    slots_ = take(rest, kPackEntries * 8);
  }

  // Entries `mine` of `pool`: their values, and their slots where `slot` is an address.
  __aicore__ inline void pack(const PoolTiling& pool, GM_ADDR table, GM_ADDR value, GM_ADDR slot,
                              const Range& mine) {
    for (int64_t e = mine.begin; e < mine.end; e += kPackEntries)
      entries(pool, table, value, slot, {e, least(e + kPackEntries, mine.end)});
  }

 private:
  __aicore__ inline void entries(const PoolTiling& pool, GM_ADDR table, GM_ADDR value, GM_ADDR slot,
                                 const Range& e) {
    const int64_t bytes = (e.end - e.begin) * 8;
    order<HardEvent::MTE3_V>();
    fill(values_, 0, bytes);
    fill(slots_, -1, bytes);
    order<HardEvent::V_S>();
    int64_t before = 0;  // entries of the requests so far
    for (int64_t first = 0; pool.emits && first < w_.B && before < e.end; first += kPackRequests) {
      const int64_t count = least(kPackRequests, w_.B - first);
      load(first, count);
      if (pool.vector)
        count_by_vector(pool, count);
      else
        count_by_scalar(pool, count);
      walk(pool, table, slot != nullptr, first, count, before, e, true);
      order<HardEvent::MTE2_S>();
      before = walk(pool, table, slot != nullptr, first, count, before, e, false);
    }
    order<HardEvent::S_MTE3>();
    order<HardEvent::V_MTE3>();
    bytes_out(value + e.begin * 8, values_, bytes);
    if (slot) bytes_out(slot + e.begin * 8, slots_, bytes);
  }

  __aicore__ inline void load(int64_t first, int64_t count) {
    const int64_t size = int_bytes(w_.live.wide);
    order<HardEvent::S_MTE2>();
    order<HardEvent::V_MTE2>();
    bytes_in(lengths_.data, live_ + first * size, count * size);
    order<HardEvent::MTE2_S>();
    order<HardEvent::MTE2_V>();
  }

  // counts = length > 0 ? ((length mod r) + n) / r : 0, and their sums.
  __aicore__ inline void count_by_vector(const PoolTiling& pool, int64_t count) {
    const int32_t m = static_cast<int32_t>(count), shift = pool.ratio.shift;
    order<HardEvent::S_V>();
    Duplicate(counts_, static_cast<int32_t>(0), static_cast<int32_t>(kPackRequests));
    Maxs(a_, lengths_.data.ReinterpretCast<int32_t>(), static_cast<int32_t>(0), m);
    vector_step();
    ShiftRight(b_, a_, shift, m);
    vector_step();
    ShiftLeft(b_, b_, shift, m);
    vector_step();
    Sub(b_, a_, b_, m);
    vector_step();
    Adds(b_, b_, static_cast<int32_t>(w_.n), m);
    Mins(a_, a_, static_cast<int32_t>(1), m);
    vector_step();
    ShiftRight(b_, b_, shift, m);
    vector_step();
    Mul(counts_, a_, b_, m);
    vector_step();
    Cast(floats_, counts_, RoundMode::CAST_NONE, static_cast<uint32_t>(kPackRequests));
    vector_step();
    WholeReduceSum(a_.ReinterpretCast<float>(), floats_, static_cast<int32_t>(kPackGroup),
                   static_cast<int32_t>(kPackRequests / kPackGroup), 1, 1, 8);
    vector_step();
    Cast(sums_.ReinterpretCast<int32_t>(), a_.ReinterpretCast<float>(), RoundMode::CAST_RINT,
         static_cast<uint32_t>(kPackRequests / kPackGroup));
    order<HardEvent::V_S>();
  }
  __aicore__ inline void count_by_scalar(const PoolTiling& pool, int64_t count) {
    const LocalTensor<int64_t> sums = sums_.ReinterpretCast<int64_t>();
    for (int64_t first = 0; first < count; first += kPackGroup) {
      int64_t sum = 0;
      for (int64_t i = first; i < least(first + kPackGroup, count); ++i) {
        const int64_t s = lengths_.at(i);
        const int64_t own = s > 0 ? quotient(remainder(s, pool.ratio) + w_.n, pool.ratio) : 0;
        counts_.SetValue(static_cast<uint32_t>(i), static_cast<int32_t>(own));
        sum += own;
      }
      sums.SetValue(static_cast<uint32_t>(first / kPackGroup), sum);
    }
  }
  __aicore__ inline int64_t sum(const PoolTiling& pool, int64_t group) const {
    const uint32_t at = static_cast<uint32_t>(group);
    return pool.vector ? static_cast<int64_t>(sums_.ReinterpretCast<int32_t>().GetValue(at))
                       : sums_.ReinterpretCast<int64_t>().GetValue(at);
  }

  // Goes through the loaded requests, `before` entries in front of them: sends for what the entries need
  // (`fetch`), or forms them. Returns the entries up to the last request looked at.
  __aicore__ inline int64_t walk(const PoolTiling& pool, GM_ADDR table, bool with_slots, int64_t first,
                                 int64_t count, int64_t before, const Range& e, bool fetch) {
    for (int64_t group = 0; group < count && before < e.end; group += kPackGroup) {
      const int64_t all = sum(pool, group / kPackGroup);
      if (before + all <= e.begin) {
        before += all;
        continue;
      }
      for (int64_t i = group; i < least(group + kPackGroup, count) && before < e.end; ++i) {
        const int64_t own = counts_.GetValue(static_cast<uint32_t>(i));
        const int64_t from = most(e.begin - before, 0), to = least(e.end - before, own);
        if (from < to) {
          if (fetch)
            send_for(pool, table, with_slots, first + i, lengths_.at(i), from, to, before + from - e.begin);
          else
            form(pool, with_slots, lengths_.at(i), from, to, before + from - e.begin);
        }
        before += own;
      }
    }
    return before;
  }

  // Positions and table entries of entries from .. to-1 of request b, to place `at` of the local ones. There
  // are no more table entries than those, and they have fewer bytes.
  __aicore__ inline void send_for(const PoolTiling& pool, GM_ADDR table, bool with_slots, int64_t b,
                                  int64_t s, int64_t from, int64_t to, int64_t at) {
    const int64_t r = pool.ratio.value, row = r - 1 - remainder(s, pool.ratio) + from * r;
    rows_in(positions_in_[static_cast<uint32_t>(at * kBlock)], positions_ + (b * w_.n + row) * 8, r * 8,
            to - from, 8, kBlock);
    if (!with_slots) return;
    const int64_t group = quotient(s, pool.ratio) + from, size = int_bytes(pool.table.wide);
    const int64_t begin = quotient(group, pool.page);
    const int64_t end = least(quotient(group + to - from - 1, pool.page) + 1, pool.width);
    if (begin < end)
      bytes_in(table_in_[static_cast<uint32_t>(at * kBlock)], table + b * pool.table.stride + begin * size,
               (end - begin) * size);
  }
  __aicore__ inline void form(const PoolTiling& pool, bool with_slots, int64_t s, int64_t from, int64_t to,
                              int64_t at) {
    const LocalTensor<int64_t> positions = positions_in_.ReinterpretCast<int64_t>(),
                               values = values_.ReinterpretCast<int64_t>(),
                               slots = slots_.ReinterpretCast<int64_t>();
    for (int64_t i = at; i < at + to - from; ++i)
      values.SetValue(
          static_cast<uint32_t>(i),
          wrapping_sum(positions.GetValue(static_cast<uint32_t>(i * (kBlock / 8))), 1 - pool.ratio.value));
    if (!with_slots) return;
    const Ints ids{table_in_[static_cast<uint32_t>(at * kBlock)], pool.table.wide != 0};
    const int64_t group = quotient(s, pool.ratio) + from, first_column = quotient(group, pool.page);
    int64_t column = first_column, within = remainder(group, pool.page);
    for (int64_t i = at; i < at + to - from; ++i) {
      const int64_t id = column < pool.width ? ids.at(column - first_column) : -1;
      if (id >= 0 && id <= kMaxPageId)
        slots.SetValue(static_cast<uint32_t>(i), id * pool.page.value + within);
      if (++within == pool.page.value) within = 0, ++column;
    }
  }

  const WindowTiling& w_;
  GM_ADDR positions_;
  GM_ADDR live_;
  Ints lengths_;
  LocalTensor<int32_t> counts_, a_, b_;
  LocalTensor<float> floats_;
  Bytes sums_, positions_in_, table_in_, values_, slots_;
};

}  // namespace dsv4_ascend
