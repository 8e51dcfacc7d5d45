// SPDX-License-Identifier: Apache-2.0
#pragma once
#include "ints_tiling.h"

struct VerifyTreeGreedyTiling {
  LineSplit requests;
  int64_t n, num_steps;
  int64_t tokens_stride, row_stride, next_stride, sibling_stride, target_stride, accepted_stride;  // bytes
  int64_t rows;  // requests at a time
};

constexpr int64_t kGreedyBytes = 160 * 1024;  // for them
constexpr int64_t kGreedyRequests = 128;
constexpr int64_t kGreedyPath =
    512;  // entries of accept_index that are written from memory of their own; -1 follows

// Local bytes of a request: five rows in, predicts and accept_index out, its count.
inline constexpr int64_t greedy_in(int64_t n) { return (n * 8 + 31) / 32 * 32; }
inline constexpr int64_t greedy_predicts(int64_t n) { return (n * 4 + 31) / 32 * 32; }
inline constexpr int64_t greedy_path(int64_t num_steps) {
  return num_steps + 1 < kGreedyPath ? ((num_steps + 1) * 4 + 31) / 32 * 32 : kGreedyPath * 4;
}
inline constexpr int64_t greedy_bytes(int64_t n, int64_t num_steps) {
  return 5 * greedy_in(n) + greedy_predicts(n) + greedy_path(num_steps);
}
