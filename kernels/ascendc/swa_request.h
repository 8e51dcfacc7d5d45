// SPDX-License-Identifier: Apache-2.0
// What swa_paged_attention reads from its integer tensors, with the scalar unit: which request a row belongs
// to, what a row sees, and where a key lies. Values that lead nowhere make padding or an unseen key, never an
// address.
#pragma once
#include "kernel.h"
#include "swa_paged_attention_tiling.h"

namespace dsv4_ascend {

// Keys of a tile: 32 * i .. 32 * i + 31 in logical position, so that a row adds up in one order whatever else
// its tile holds. What a row sees of one is a word.
constexpr int32_t kSwaKeys = 32;
constexpr int32_t kSwaPart = 256;  // keys that the cube works on together

// Query rows that follow each other in one request, or in none (padding).
struct SwaSegment {
  int64_t t;     // the first row in q
  int64_t b, j;  // the request and the first row's number in it; b < 0: padding
  int64_t s;     // keys before the request's first row
  int32_t rows;
};
// Keys that the rows of a segment may see, counted from x0, a multiple of v.grain: [first, last) are read.
struct SwaKeyRange {
  int64_t x0;
  int32_t first, last;
  int32_t committed;  // keys before the request's first row; with a tree, nodes begin there
};
// Keys that follow each other in a page.
struct SwaRun {
  int32_t count;
  int64_t at;  // in kv_pages; -1: without a page, or not read
};
// Keys [begin, end) of a segment that are worked on together.
struct SwaPart {
  int32_t begin, end;
  bool any;  // one of them has a page
};

__aicore__ inline uint32_t bits_below(int64_t n) { return n <= 0 ? 0u : n >= 32 ? ~0u : (1u << n) - 1; }
__aicore__ inline int32_t count_bits(uint64_t x) {
  x -= x >> 1 & 0x5555555555555555ull;
  x = (x & 0x3333333333333333ull) + (x >> 2 & 0x3333333333333333ull);
  return static_cast<int32_t>(((x + (x >> 4)) & 0x0f0f0f0f0f0f0f0full) * 0x0101010101010101ull >> 56);
}
__aicore__ inline int64_t clamped(int64_t x, int64_t low, int64_t high) {
  return x < low ? low : x > high ? high : x;
}

class SwaRequest {
 public:
  SwaSegment g;
  SwaKeyRange keys;

  __aicore__ inline SwaRequest(const SwaTiling& tiling, GM_ADDR table, GM_ADDR starts, GM_ADDR lens,
                               GM_ADDR mask)
      : v(tiling), table_(table), starts_(starts), lens_(lens), mask_(global<uint8_t>(mask)) {}

  // Finds the segment that begins at row t, at most to row `end`; true: it belongs to a request.
  __aicore__ inline bool find(int64_t t, int64_t end) {
    g.t = t, g.b = -1, g.j = 0, g.s = 0;
    const int64_t b = request_at(t);
    if (b < v.B) {
      const int64_t start = at(starts_, b, v.wide_starts), after = at(starts_, b + 1, v.wide_starts);
      if (start <= t) {
        end = min_of(end, after);
        const int64_t rows = after - start, len = at(lens_, b, v.wide_lens);
        if (len > 0 && len >= rows && (v.n == 0 || rows == v.n)) g.b = b, g.j = t - start, g.s = len - rows;
      } else {
        end = min_of(end, start);
      }
    }
    g.rows = static_cast<int32_t>(end > t ? end - t : 1);
    if (g.b < 0) return false;
    if (v.n) find_nodes();
    find_keys();
    return true;
  }

  // The run that begins at `key`, up to `end`.
  __aicore__ inline SwaRun run_at(int32_t key, int32_t end) const {
    if (key < keys.first) return {min_of(keys.first, end) - key, -1};
    if (key >= keys.last) return {end - key, -1};
    const int64_t x = keys.x0 + key, column = x / v.page, slot = x - column * v.page;
    const int32_t count = static_cast<int32_t>(min_of<int64_t>(v.page - slot, min_of(keys.last, end) - key));
    const int64_t page = at(table_, g.b * v.table_b + column, v.wide_table);
    return {count, page >= 0 && page < v.P ? page * v.kv_page + slot * v.kv_slot : -1};
  }
  // Part `index` of a segment: of keys kSwaPart * index on; it begins and ends at multiples of 16, so that the
  // cube multiplies whole fractals: keys that are not read are zeros.
  __aicore__ inline SwaPart part(int32_t index) const {
    const int32_t first = index * kSwaPart > keys.first ? index * kSwaPart : keys.first;
    SwaPart p{first / 16 * 16, min_of(round_up(keys.last, 16), (index + 1) * kSwaPart), false};
    for (int32_t key = first; key < p.end && !p.any;) {
      const SwaRun run = run_at(key, p.end);
      p.any = run.at >= 0, key += run.count;
    }
    return p;
  }
  __aicore__ inline int32_t parts() const {
    return keys.last > keys.first ? ceil_div(keys.last, kSwaPart) : 0;
  }
  __aicore__ inline int32_t tiles() const {
    return keys.last > keys.first ? ceil_div(keys.last, kSwaKeys) : 0;
  }

  __aicore__ inline int64_t position(int32_t row) const {
    return v.n ? g.s + count_bits(marked_[row]) - 1 : g.s + g.j + row;
  }
  // Where the angles of a row begin; a position beyond the table takes its last row.
  __aicore__ inline int64_t angles_at(int32_t row) const {
    return clamped(position(row), 0, v.max_pos - 1) * v.angle_row;
  }
  // Bit k: the row sees key k of the tile, if it has a page.
  __aicore__ inline uint32_t seen(int32_t row, int32_t tile) const {
    const int64_t at_key = static_cast<int64_t>(tile) * kSwaKeys, p = position(row);
    const int64_t first = first_key(p) - keys.x0, last = (v.n ? g.s : p + 1) - keys.x0;
    const uint32_t bits = bits_below(last - at_key) & ~bits_below(first - at_key);
    if (v.n == 0) return bits;
    const int64_t from = at_key - keys.committed;  // the node that is the tile's first key
    if (from <= -kSwaKeys || from >= kSwaMaxNodes) return bits;
    return bits | static_cast<uint32_t>(from >= 0 ? nodes_[row] >> from : nodes_[row] << -from);
  }

 private:
  __aicore__ static inline int64_t at(GM_ADDR data, int64_t i, int32_t wide) {
    return wide ? global<int64_t>(data).GetValue(i) : global<int32_t>(data).GetValue(i);
  }
  __aicore__ inline int64_t first_key(int64_t p) const { return p >= v.window ? p - v.window + 1 : 0; }

  // The number of requests that end at or before row t.
  __aicore__ inline int64_t request_at(int64_t t) const {
    int64_t low = 0, high = v.B;
    while (low < high) {
      const int64_t middle = (low + high) / 2;
      if (at(starts_, middle + 1, v.wide_starts) <= t) low = middle + 1;
      else high = middle;
    }
    return low;
  }
  __aicore__ inline void find_keys() {
    constexpr int64_t kMost = 0x7fffffff / kSwaPart * kSwaPart;
    int64_t lowest = g.s + g.j;
    if (v.n) {
      lowest = position(0);
      for (int32_t r = 1; r < g.rows; ++r) lowest = min_of(lowest, position(r));
    }
    const int64_t first = min_of(first_key(lowest), v.n ? g.s : lowest);
    const int64_t last = min_of(v.n ? g.s + v.n : g.s + g.j + g.rows, v.maxp * v.page);
    keys.x0 = first / v.grain * v.grain;
    keys.first = static_cast<int32_t>(first - keys.x0);
    keys.last = static_cast<int32_t>(clamped(last - keys.x0, 0, kMost));
    keys.committed = static_cast<int32_t>(min_of(g.s - keys.x0, kMost));
  }
  // The mask rows of the segment as words: all marks, and those in the row's window.
  __aicore__ inline void find_nodes() {
    const bool narrow =
        v.window <= v.n;  // two positions differ by at most n: else no marked node is out of sight
    int32_t depth[kSwaMaxNodes];
    if (narrow)
      for (int32_t i = 0; i < v.n; ++i) depth[i] = count_bits(marks(i));
    for (int32_t r = 0; r < g.rows; ++r) {
      const uint64_t all = marks(g.j + r);
      uint64_t seen = all;
      if (narrow)
        for (int32_t i = 0; i < v.n; ++i)
          if (count_bits(all) - depth[i] >= v.window) seen &= ~(1ull << i);
      marked_[r] = all, nodes_[r] = seen;
    }
  }
  __aicore__ inline uint64_t marks(int64_t j) const {
    uint64_t bits = 0;
    const int64_t row = g.b * v.mask_b + j * v.mask_j;
    for (int32_t i = 0; i < v.n; ++i) bits |= static_cast<uint64_t>(mask_.GetValue(row + i) != 0) << i;
    return bits;
  }

  const SwaTiling& v;
  GM_ADDR table_;
  GM_ADDR starts_;
  GM_ADDR lens_;
  GlobalTensor<uint8_t> mask_;
  uint64_t marked_[kSwaMaxNodes], nodes_[kSwaMaxNodes];
};

}  // namespace dsv4_ascend
