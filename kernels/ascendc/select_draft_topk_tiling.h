// SPDX-License-Identifier: Apache-2.0
#pragma once
#include "ints_tiling.h"

struct SelectDraftTopkTiling {
  LineSplit requests;
  int64_t k, first_parent;
  // bytes from row to row
  int64_t prob_stride, token_stride, score_stride, scores_out_stride, parents_stride, cand_tokens_stride;
  int64_t cand_stride, cand_row_stride;  // of cand_scores: from request to request, from parent to parent
  int64_t rows;                          // step 0: requests at a time; later: rows of candidates
};

constexpr int64_t kSelectBytes = 140 * 1024;  // local memory for those rows
constexpr int64_t kSelectRequests = 128;

// A row of candidates is whole vector repeats long.
inline constexpr int64_t select_width(int64_t k) { return (k + 63) / 64 * 64; }
inline constexpr int64_t select_ids(int64_t k) { return (k * 8 + 31) / 32 * 32; }
inline constexpr int64_t select_first_bytes(
    int64_t k) {  // tokens, parents, hidden rows; probabilities, a work row
  return 2 * select_ids(k) + select_ids(k + 1) + (k * 4 + 31) / 32 * 32;
}
inline constexpr int64_t select_next_bytes(int64_t k) { return 2 * 4 * select_width(k) + select_ids(k); }
