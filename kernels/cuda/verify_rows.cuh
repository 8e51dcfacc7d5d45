// SPDX-License-Identifier: Apache-2.0
// The rule of include/dsv4spec/verify.h, which rows of a verify window emit a compressed entry, and the packing of
// those entries in request order. A request's emitting rows are `ratio` apart, so their number has a closed form and
// every block sums those of all requests for itself: B lengths from L2 in place of a second launch.
#pragma once
#include "ints.cuh"

namespace dsv4::cuda {

constexpr int kPackWarps = 8;  // requests of a block, a warp each
constexpr int kPackThreads = kPackWarps * kWarp;

struct Window {
  const int64_t* positions;
  Ints live;
  int64_t B, n;
};

// The entries of one ratio.
struct Pool {
  Divisor ratio, page;
  bool emits;      // false: no such pool
  int64_t* value;  // [size]
  int64_t* loc;    // [size], or nullptr
  int64_t size;
  Ints table;
  int64_t width;

  DSV4_DEVICE int64_t count(const Window& w, int64_t s) const {
    return emits && s > 0 ? ratio.quotient(wrapping_sum(s, w.n)) - ratio.quotient(s) : 0;
  }
  // Where the entry of group `group` of request b goes; -1 where the table names no page.
  DSV4_DEVICE int64_t slot(int64_t b, int64_t group) const {
    const int64_t column = page.quotient(group);
    const int64_t id = column < width ? table(b, column) : -1;
    return id >= 0 && id <= kMaxPageId ? id * static_cast<int64_t>(page.value) + page.remainder(group) : -1;
  }
};

// This block's share of the entries and of the padding behind them.
DSV4_DEVICE void pack_entries(const Window& w, const Pool& pool) {
  __shared__ int64_t partial[2][kPackWarps];
  const int warp = threadIdx.x / kWarp, lane = threadIdx.x % kWarp;
  const int64_t first = static_cast<int64_t>(blockIdx.x) * kPackWarps, b = first + warp;
  int64_t before = 0, all = 0;  // entries of the requests in front of this block, and of all
  for (int64_t i = threadIdx.x; i < w.B; i += kPackThreads) {
    const int64_t count = pool.count(w, w.live(i));
    all += count;
    if (i < first) before += count;
  }
  before = block_sum<kPackWarps>(before, partial[0]);
  all = block_sum<kPackWarps>(all, partial[1]);

  int64_t mine = lane <= warp && first + lane < w.B ? pool.count(w, w.live(first + lane)) : 0;
  const int64_t place = before + warp_sum(lane < warp ? mine : int64_t{0});
  mine = __shfl_sync(kAllLanes, mine, warp);
  if (mine) {
    const int64_t s = w.live(b), r = static_cast<int64_t>(pool.ratio.value);
    const int64_t row = r - 1 - pool.ratio.remainder(s), group = pool.ratio.quotient(s);
    for (int64_t i = lane; i < mine; i += kWarp) {
      pool.value[place + i] = wrapping_sum(w.positions[b * w.n + row + i * r], 1 - r);
      if (pool.loc) pool.loc[place + i] = pool.slot(b, group + i);
    }
  }
  const int64_t step = static_cast<int64_t>(gridDim.x) * kPackThreads;
  for (int64_t i = all + static_cast<int64_t>(blockIdx.x) * kPackThreads + threadIdx.x; i < pool.size; i += step) {
    pool.value[i] = 0;
    if (pool.loc) pool.loc[i] = -1;
  }
}

inline unsigned pack_blocks(int64_t B) { return static_cast<unsigned>(B ? ceil_div<int64_t>(B, kPackWarps) : 1); }

}  // namespace dsv4::cuda
