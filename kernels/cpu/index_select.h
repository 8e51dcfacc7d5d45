// SPDX-License-Identifier: Apache-2.0
// The largest of many scores: scores as integers of the same order, and a radix selection of those.
#pragma once
#include "shuffle.h"

namespace dsv4::cpu {

// Unsigned integers in the order of the scores; NaN above infinity. 0 is below them all: no score.
inline vu rank_of(vf score) {
  const vu is_nan = reinterpret_cast<vu>(score != score), bits = reinterpret_cast<vu>(score);
  const vu u = (is_nan & 0x7fffffffu) | (~is_nan & bits);
  return u ^ (reinterpret_cast<vu>(reinterpret_cast<vi>(u) >> 31) | 0x80000000u);
}

// Indices of the `most` largest ranks that are not 0, in ascending order; of equal ranks the first ones. Returns their
// number, which is less than `most` only if there are no more. Three passes find the least rank to take, one takes.
inline int64_t select_largest(const uint32_t* rank, int64_t n, int64_t most, int32_t* out) {
  constexpr struct { int shift, bits; } digits[] = {{21, 11}, {10, 11}, {0, 10}};
  int64_t there = 0;
  for (int64_t i = 0; i < n; ++i) there += rank[i] != 0;
  int64_t left = most < there ? most : there;
  uint32_t least = 0, known = 0;  // the digits found so far, and their bits
  for (const auto& digit : digits) {
    const uint32_t values = 1u << digit.bits;
    int32_t histogram[2048] = {};
    for (int64_t i = 0; i < n; ++i)
      if ((rank[i] & known) == least) ++histogram[rank[i] >> digit.shift & (values - 1)];
    uint32_t value = values - 1;
    while (value > 0 && histogram[value] < left) left -= histogram[value--];
    least |= value << digit.shift;
    known |= (values - 1) << digit.shift;
  }
  int64_t found = 0;
  for (int64_t i = 0; i < n; ++i)
    if (rank[i] > least || (rank[i] == least && rank[i] != 0 && left-- > 0)) out[found++] = static_cast<int32_t>(i);
  return found;
}

}  // namespace dsv4::cpu
