// SPDX-License-Identifier: Apache-2.0
#pragma once
#include <algorithm>
#include <cstdint>
#include <cstring>

namespace dsv4 {

// Four values (what every processor has vectors of), or answers to a comparison of them.
typedef float Four __attribute__((vector_size(16)));
typedef int32_t Answers __attribute__((vector_size(16)));
constexpr int64_t kBlock = 128;

// The largest of kBlock values; `nan`: whether one is NaN.
inline float largest(const float* x, bool& nan) {
  Four most[4], now;
  Answers wrong = {};
  std::memcpy(most, x, sizeof most);
  for (const Four& m : most) wrong |= m != m;
  for (int64_t i = 16; i < kBlock; i += 16)
    for (int64_t j = 0; j < 4; ++j) {
      std::memcpy(&now, x + i + 4 * j, sizeof now);
      most[j] = now > most[j] ? now : most[j];
      wrong |= now != now;
    }
  for (int64_t j = 1; j < 4; ++j) most[0] = most[j] > most[0] ? most[j] : most[0];
  nan = wrong[0] | wrong[1] | wrong[2] | wrong[3];
  return std::max(std::max(most[0][0], most[0][1]), std::max(most[0][2], most[0][3]));
}

// The first of the largest of n values; the first NaN, if there is one.
inline int64_t argmax(const float* x, int64_t n) {
  float best = x[0];
  int64_t at = 0;  // of the block
  for (int64_t start = 0; start < n; start += kBlock) {
    float padded[kBlock];
    const float* block = x + start;
    if (n - start < kBlock) {  // filled up with one of its own
      std::fill(std::copy(block, x + n, padded), padded + kBlock, block[0]);
      block = padded;
    }
    bool nan;
    const float most = largest(block, nan);
    if (nan) return std::find_if(x + start, x + n, [](float v) { return v != v; }) - x;
    if (most > best) best = most, at = start;
  }
  return std::find(x + at, x + n, best) - x;
}

}  // namespace dsv4
