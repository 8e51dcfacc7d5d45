// SPDX-License-Identifier: Apache-2.0
// What swa_paged_attention reads from its integer tensors: which request a row belongs to, what a row sees, and where
// a key lies. Values that lead nowhere make padding or an unseen key, never an address.
#pragma once
#include "kernel.cuh"

namespace dsv4::cuda {

constexpr int kKeys = 32;  // of a tile: keys 32 * i .. 32 * i + 31 in logical position, so that a row adds up in one
                           // order whatever else its tile holds

// A score that is not finite counts as NaN: the key or the query holds NaN or infinity, and the row's result is NaN.
DSV4_DEVICE float not_a_number() { return __uint_as_float(0x7fffffffu); }

struct Integers {
  const void* data;
  int64_t row, column;
  bool wide;
  DSV4_DEVICE int64_t at(int64_t i, int64_t j = 0) const {
    const int64_t k = i * row + j * column;
    return wide ? static_cast<const int64_t*>(data)[k] : static_cast<const int32_t*>(data)[k];
  }
};

struct SwaView {
  const void *q, *kv;
  void* out;
  const float *sink, *cos_sin;
  const uint8_t* mask;
  Integers table, starts, lens;
  int64_t q_t, q_h, kv_page, kv_slot, out_t, out_h, mask_b, mask_j, angle_row;  // strides in elements
  int64_t T, B, P, page, maxp, window, max_pos;
  int H, D, R, n;  // R = 0: no rotation; n = 0: no tree
  int unit_rows, unit_blocks;  // query rows of a unit of work, which so many blocks share
  float scale;
  bool zero_padding, vector_q, vector_kv, vector_out;
  bool clusters;  // the blocks of a unit are a cluster, which reads a key once
};

// Query rows that follow each other in one request, or in none (padding).
struct Segment {
  int64_t t;     // the first row in q
  int64_t b, j;  // the request and the first row's number in it; b < 0: padding
  int64_t s;     // keys before the request's first row
  int rows;
};

// The number of requests that end at or before row t; a whole warp asks, and each round looks at 32 ends.
DSV4_DEVICE int64_t request_at(const SwaView& v, int64_t t) {
  const int lane = threadIdx.x % kWarp;
  int64_t first = 0, count = v.B;
  while (count > 0) {
    const int64_t step = (count + kWarp - 1) / kWarp, last = (lane + 1) * step - 1;
    const bool before = last < count && v.starts.at(first + last + 1) <= t;
    const int64_t skip = __popc(__ballot_sync(kAllLanes, before)) * step;
    first += skip;
    count = min(step - 1, count - skip);
  }
  return first;
}

// The segment that begins at row t, at most to row `end`.
DSV4_DEVICE Segment segment_at(const SwaView& v, int64_t t, int64_t end) {
  Segment g{t, -1, 0, 0, 0};
  const int64_t b = request_at(v, t);
  if (b < v.B) {
    const int64_t start = v.starts.at(b), after = v.starts.at(b + 1), rows = after - start;
    if (start >= 0 && start <= t && t < after) {
      end = min(end, after);
      const int64_t len = v.lens.at(b);
      if (len > 0 && len >= rows && (v.n == 0 || rows == v.n)) g.b = b, g.j = t - start, g.s = len - rows;
    } else {  // before the first request, or starts that do not rise: row t is nobody's
      end = min(end, start > t ? start : t + 1);
    }
  }
  g.rows = static_cast<int>(max(end - t, static_cast<int64_t>(1)));
  return g;
}

DSV4_DEVICE int64_t first_key(const SwaView& v, int64_t position) {
  return position >= v.window ? position - v.window + 1 : 0;
}

// Keys that the rows of a segment may see, counted from x0, a multiple of kKeys: [first, last) are read.
struct KeyRange {
  int64_t x0;
  int first, last, tiles;
  int committed;  // keys before the request's first row; with a tree, nodes begin there
};
DSV4_DEVICE KeyRange keys_of(const SwaView& v, const Segment& g) {
  constexpr int64_t kMost = INT32_MAX / kKeys * kKeys;
  const int64_t first = first_key(v, v.n ? g.s - 1 : g.s + g.j);  // a node is at s - 1 or later
  const int64_t last = min(v.n ? g.s + v.n : g.s + g.j + g.rows, v.maxp * v.page);
  KeyRange r;
  r.x0 = first / kKeys * kKeys;
  r.first = static_cast<int>(first - r.x0);
  r.last = static_cast<int>(max(min(last - r.x0, kMost), static_cast<int64_t>(0)));
  r.tiles = r.last > r.first ? (r.last + kKeys - 1) / kKeys : 0;
  r.committed = static_cast<int>(min(g.s - r.x0, kMost));
  return r;
}

// Where key x0 + at lies; -1: it is not to be read, or has no page.
DSV4_DEVICE int64_t offset_of(const SwaView& v, const Segment& g, const KeyRange& r, int at) {
  if (at < r.first || at >= r.last) return -1;
  const int64_t x = r.x0 + at;
  const int64_t column = (x | v.page) >> 32 ? x / v.page : static_cast<uint32_t>(x) / static_cast<uint32_t>(v.page);
  const int64_t page = v.table.at(g.b, column);
  return page >= 0 && page < v.P ? page * v.kv_page + (x - column * v.page) * v.kv_slot : -1;
}

DSV4_DEVICE int nodes_seen(const SwaView& v, int64_t b, int64_t j) {
  const uint8_t* row = v.mask + b * v.mask_b + j * v.mask_j;
  int count = 0;
  for (int i = 0; i < v.n; ++i) count += row[i] != 0;
  return count;
}

DSV4_DEVICE uint32_t bits_below(int64_t n) { return n <= 0 ? 0u : n >= 32 ? ~0u : (1u << n) - 1; }

// What a block works on: of the (query row, head) pairs of a unit, numbered row by row, those from `from` to `to`; and
// of its rows a segment. It lies in shared memory, because registers are scarce while tiles of keys go by.
struct Work {
  int64_t t0, t, end;  // the unit's first row; rows to come
  int from, to;
  bool shared;         // the segment is the unit's, and so are its tiles of keys: all its blocks work on it together
  int first, pairs;    // the block's pairs of the segment, counted from its first row
  Segment segment;
  KeyRange keys;
  DSV4_DEVICE int row(const SwaView& v, int pair) const { return (first + pair) / v.H; }  // of the segment
  DSV4_DEVICE int head(const SwaView& v, int pair) const { return (first + pair) % v.H; }
};
// The rows that the block has pairs of.
DSV4_DEVICE void take_own_rows(const SwaView& v, Work* work) {
  work->shared = false;
  work->t = work->t0 + work->from / v.H;
  work->end = work->to > work->from ? work->t0 + (work->to - 1) / v.H + 1 : work->t;
}
DSV4_DEVICE void begin_work(const SwaView& v, Work* work, int pairs) {
  if (threadIdx.x == 0) {
    work->t0 = work->t = static_cast<int64_t>(blockIdx.x / v.unit_blocks) * v.unit_rows;
    work->end = min(work->t + v.unit_rows, v.T);
    work->from = blockIdx.x % v.unit_blocks * pairs;
    work->to = min(work->from + pairs, static_cast<int>(work->end - work->t) * v.H);
    work->shared = v.clusters;
    if (!v.clusters) take_own_rows(v, work);
  }
  __syncthreads();
}
// Finds the segment at t and moves t to the next. False: the unit has rows of several requests, or of none, and each
// block goes through its own rows from now on.
DSV4_DEVICE bool next_segment(const SwaView& v, Work* work) {
  const Segment g = segment_at(v, work->t, work->end);
  const bool found = !work->shared || (g.b >= 0 && g.t + g.rows == work->end);
  __syncthreads();  // all have read t, and are done with the segment before
  if (threadIdx.x == 0) {
    if (found) {
      const int skipped = static_cast<int>(g.t - work->t0) * v.H;
      work->t = g.t + g.rows;
      work->first = max(work->from - skipped, 0);
      work->pairs = max(min(work->to - skipped, g.rows * v.H) - work->first, 0);
      work->segment = g;
      if (g.b >= 0) work->keys = keys_of(v, g);
    } else {
      take_own_rows(v, work);
    }
  }
  __syncthreads();
  return found;
}

// What one row sees: keys [first, last), counted from x0, and, with a tree, the nodes that it marks.
struct Sight {
  int first = 0, last = -1;  // last < 0: nothing, nodes included
  int row = 0;               // of the segment
};
// That of the segment's row, and where its angles begin (a position beyond the table takes its last row).
DSV4_DEVICE Sight sight_of(const SwaView& v, const Segment& g, const KeyRange& r, int row, int64_t* angle_at) {
  const int64_t position = v.n ? g.s + nodes_seen(v, g.b, g.j + row) - 1 : g.s + g.j + row;
  *angle_at = v.R ? min(max(position, static_cast<int64_t>(0)), v.max_pos - 1) * v.angle_row : 0;
  constexpr int64_t kMost = INT32_MAX;
  Sight sight;
  sight.row = row;
  sight.first = static_cast<int>(min(first_key(v, position) - r.x0, kMost));
  sight.last = static_cast<int>(min((v.n ? g.s : position + 1) - r.x0, kMost));
  return sight;
}
// Bit k: the row sees key x0 + at + k. Only keys in `wanted` are looked at.
DSV4_DEVICE uint32_t seen(const SwaView& v, const Segment& g, const KeyRange& r, const Sight& sight, int at,
                          uint32_t wanted) {
  uint32_t bits = bits_below(sight.last - at) & ~bits_below(sight.first - at) & wanted;
  if (v.n == 0 || at + kKeys <= r.committed || sight.last < 0) return bits;
  const uint8_t* nodes = v.mask + g.b * v.mask_b + (g.j + sight.row) * v.mask_j;
  for (uint32_t left = wanted; left != 0; left &= left - 1) {
    const int k = __ffs(static_cast<int>(left)) - 1, i = at + k - r.committed;
    if (i < 0 || i >= v.n || nodes[i] == 0) continue;
    // Two positions differ by at most n: only a window this narrow can hide a marked node.
    if (v.window <= v.n && nodes_seen(v, g.b, g.j + sight.row) - nodes_seen(v, g.b, i) >= v.window) continue;
    bits |= 1u << k;
  }
  return bits;
}

// Brings rows of D elements into shared memory, `pitch` elements apart; offset < 0: zeros. Asynchronous where aligned.
template <class T, int kThreads>
DSV4_DEVICE void load_rows(T* to, int pitch, const void* from, const int64_t* offsets, int rows, int D, bool vector) {
  constexpr int kVector = 16 / sizeof(T);
  const T* source = static_cast<const T*>(from);
  const int chunks = D / kVector;
  if (vector) {
#pragma unroll 4
    for (int i = threadIdx.x; i < rows * chunks; i += kThreads) {
      const int row = i / chunks, d = i % chunks * kVector;
      const int64_t offset = offsets[row];
      cp_async16(to + row * pitch + d, source + (offset < 0 ? 0 : offset + d), offset >= 0);
    }
  } else {
    for (int i = threadIdx.x; i < rows * chunks; i += kThreads) {
      const int row = i / chunks, d = i % chunks * kVector;
      const int64_t offset = offsets[row];
#pragma unroll
      for (int e = 0; e < kVector; ++e)
        to[row * pitch + d + e] = offset < 0 ? from_float<T>(0.f) : source[offset + d + e];
    }
  }
}

// Where a pair's query lies, and its result.
DSV4_DEVICE int64_t query_at(const SwaView& v, const Work& work, int pair) {
  return (work.segment.t + work.row(v, pair)) * v.q_t + work.head(v, pair) * v.q_h;
}
template <class T>
DSV4_DEVICE T* result_at(const SwaView& v, const Work& work, int pair) {
  return static_cast<T*>(v.out) + (work.segment.t + work.row(v, pair)) * v.out_t + work.head(v, pair) * v.out_h;
}

// Writes the zeros of a padding segment.
template <class T, int kThreads>
DSV4_DEVICE void zero_rows(const SwaView& v, const Work& work) {
  constexpr int kVector = 16 / sizeof(T);
  const int chunks = v.D / kVector;
  for (int i = threadIdx.x; i < work.pairs * chunks; i += kThreads) {
    T* out = result_at<T>(v, work, i / chunks) + i % chunks * kVector;
    if (v.vector_out) {
      *reinterpret_cast<uint4*>(out) = make_uint4(0, 0, 0, 0);
    } else {
#pragma unroll
      for (int e = 0; e < kVector; ++e) out[e] = from_float<T>(0.f);
    }
  }
}

}  // namespace dsv4::cuda
