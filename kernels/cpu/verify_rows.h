// SPDX-License-Identifier: Apache-2.0
// The rule of include/dsv4spec/verify.h: which rows of a verify window emit a compressed entry.
#pragma once
#include "ints.h"

namespace dsv4::cpu {

// The first position of the group that ends at `position` (any number: sums wrap around).
inline int64_t group_start(int64_t position, int64_t ratio) {
  return static_cast<int64_t>(static_cast<uint64_t>(position) + 1 - static_cast<uint64_t>(ratio));
}

// fn(b, s, j, place) for every emitting row j of every request b of length s, in request-major order; returns their number.
// A request's emitting rows are r apart, so the cost is one step an entry and one a request, not one a row.
template <class Fn>
inline int64_t for_each_emitting_row(Ints live_seq_lens, int64_t B, int64_t n, Divisor ratio, Fn&& fn) {
  if (ratio <= 1) return 0;
  int64_t place = 0;
  for (int64_t b = 0; b < B; ++b) {
    const int64_t s = live_seq_lens[b];
    if (s <= 0) continue;
    for (int64_t j = ratio - 1 - ratio.rest(s); j < n; j += ratio) {
      fn(b, s, j, place++);
      if (ratio >= n) break;  // also keeps j from overflowing
    }
  }
  return place;
}

}  // namespace dsv4::cpu
