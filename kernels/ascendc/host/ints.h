// SPDX-License-Identifier: Apache-2.0
// Host side of what the integer kernels share.
#pragma once
#include <algorithm>
#include <initializer_list>
#include <numeric>

#include "../ints_tiling.h"
#include "../launch.h"

namespace dsv4::ascend {

constexpr int64_t kLine = 64;  // bytes that one core writes alone

// An output that gets `bytes` bytes further from item to item.
struct Written {
  const void* data;
  int64_t bytes;
};

// Groups of at least `least` items that end at line boundaries of every output; one group where no such
// exist.
inline LineSplit split_lines(int64_t total, int64_t least, std::initializer_list<Written> outputs) {
  int64_t unit = 1;
  for (const Written& w : outputs)
    if (w.data) unit = std::lcm(unit, kLine / std::gcd(kLine, w.bytes ? w.bytes : kLine));
  for (int64_t lead = 0; lead < unit; ++lead) {
    bool all = true;
    for (const Written& w : outputs)
      all = all &&
            (!w.data ||
             (reinterpret_cast<uintptr_t>(w.data) + static_cast<uintptr_t>(w.bytes * lead)) % kLine == 0);
    if (!all) continue;
    const int64_t group = (std::max<int64_t>(least, 1) + unit - 1) / unit * unit;
    return {total, lead, group, std::max<int64_t>(1, (total - lead + group - 1) / group)};
  }
  return {total, 0, std::max<int64_t>(total, 1), 1};
}

inline Division division(int64_t value) {
  Division d{value, -1};
  for (int i = 0; i < 63; ++i)
    if (value == int64_t{1} << i) d.shift = i;
  return d;
}

inline int64_t bytes_of(Dtype dtype) {
  switch (dtype) {
    case kI64: return 8;
    case kF32:
    case kI32:
    case kU32: return 4;
    case kU8:
    case kI8:
    case kBool:
    case kF8E4M3:
    case kE8M0: return 1;
    default: return 2;
  }
}
// Blocks for the groups of some splits, which may share the cores.
inline int64_t blocks_for(std::initializer_list<int64_t> groups) {
  return std::min<int64_t>(std::max(groups), vector_cores());
}

// Rows of a tensor, or the elements of one with one dimension.
inline int64_t row_bytes(const TensorView& v) { return v.data ? v.stride[0] * bytes_of(v.dtype) : 0; }
inline IntRows int_rows(const TensorView& v) { return {row_bytes(v), v.dtype == kI64}; }

}  // namespace dsv4::ascend
