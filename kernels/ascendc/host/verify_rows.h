// SPDX-License-Identifier: Apache-2.0
#pragma once
#include "../verify_rows_tiling.h"
#include "ints.h"

namespace dsv4::ascend {

constexpr int64_t kGroupEntries = 64;       // entries that make a group worth a core
constexpr int64_t kMostVectorRows = 65536;  // rows of a request up to which sums of counts are exact in fp32

inline WindowTiling window_of(const TensorView& live, int64_t B, int64_t n) { return {B, n, int_rows(live)}; }

inline PoolTiling pool_of(int64_t ratio, int64_t page, const WindowTiling& w, const TensorView& table,
                          const TensorView& value, const TensorView& slot) {
  PoolTiling t{};
  t.entries = split_lines(value.shape[0], kGroupEntries, {{value.data, 8}, {slot.data, 8}});
  t.ratio = division(std::max<int64_t>(ratio, 1)), t.page = division(std::max<int64_t>(page, 1));
  t.emits = ratio > 1 && page > 0;
  t.vector = !w.live.wide && t.ratio.shift > 0 && t.ratio.shift < 31 && w.n <= kMostVectorRows;
  t.table = int_rows(table), t.width = table.data ? table.shape[1] : 0;
  return t;
}

inline bool countable(const Launch& l, int64_t n, int32_t& status) {
  if (n <= INT32_MAX) return true;
  status = refuse(l, "num_draft_tokens: expected at most 2147483647, got %lld", static_cast<long long>(n));
  return false;
}

}  // namespace dsv4::ascend
