// SPDX-License-Identifier: Apache-2.0
// What swa_paged_attention reads from its integer tensors: lengths, the tree, pages; and the refusal of those that
// lead nowhere.
#pragma once
#include "kernel.h"

namespace dsv4::cpu {

inline int64_t integer(const TensorView& v, int64_t i, int64_t j = 0) {
  const int64_t at = i * v.stride[0] + (v.ndim > 1 ? j * v.stride[1] : 0);
  return v.dtype == kI32 ? static_cast<int32_t*>(v.data)[at] : static_cast<int64_t*>(v.data)[at];
}

struct Request {
  int64_t b, start, rows, len;  // len = 0: padding
  int64_t committed() const { return len - rows; }
};

inline Request request_of(const SwaPagedAttentionParams& p, int64_t b) {
  const int64_t start = integer(p.query_start_loc, b);
  return {b, start, integer(p.query_start_loc, b + 1) - start, integer(p.seq_lens, b)};
}

inline int64_t nodes_seen(const SwaPagedAttentionParams& p, int64_t b, int64_t j) {
  const uint8_t* row = p.tree_mask.at<uint8_t>(b, j);
  int64_t count = 0;
  for (int64_t i = 0; i < p.n; ++i) count += row[i] != 0;
  return count;
}

inline int64_t position_of(const SwaPagedAttentionParams& p, const Request& r, int64_t j) {
  return p.n ? r.committed() + nodes_seen(p, r.b, j) - 1 : r.committed() + j;
}

// The first window key of a row at `position`.
inline int64_t first_key(const SwaPagedAttentionParams& p, int64_t position) {
  return position >= p.window ? position - p.window + 1 : 0;
}

inline int32_t check_request(const SwaPagedAttentionParams& p, const Request& r, const Launch& launch) {
  if (r.len < 0) return refuse(launch, "seq_lens: expected >= 0 for request %lld, got %lld", (long long)r.b, (long long)r.len);
  if (r.len == 0 || r.rows == 0) return DSV4_OK;
  if (p.tree_mask && r.rows != p.n)
    return refuse(launch, "query_start_loc: expected n=%lld rows for request %lld, got %lld", (long long)p.n,
                  (long long)r.b, (long long)r.rows);
  if (r.len < r.rows)
    return refuse(launch, "seq_lens: expected at least the %lld query rows of request %lld, got %lld",
                  (long long)r.rows, (long long)r.b, (long long)r.len);

  int64_t least = r.committed(), most = r.len - 1;  // positions of the rows
  if (p.tree_mask) {
    least = r.len, most = -1;
    for (int64_t j = 0; j < p.n; ++j) {
      const int64_t position = position_of(p, r, j);
      least = position < least ? position : least;
      most = position > most ? position : most;
    }
  }
  if (p.cos_sin && most >= p.max_pos)
    return refuse(launch, "cos_sin: expected at least %lld rows for request %lld, got %lld", (long long)(most + 1),
                  (long long)r.b, (long long)p.max_pos);
  for (int64_t c = first_key(p, least) / p.page; c <= (r.len - 1) / p.page; ++c) {
    if (c >= p.maxp)
      return refuse(launch, "block_table: expected a column for logical page %lld of request %lld, got %lld columns",
                    (long long)c, (long long)r.b, (long long)p.maxp);
    const int64_t page = integer(p.block_table, r.b, c);
    if (page < 0 || page >= p.P)
      return refuse(launch, "block_table: expected a page in [0, %lld) as logical page %lld of request %lld, got %lld",
                    (long long)p.P, (long long)c, (long long)r.b, (long long)page);
  }
  return DSV4_OK;
}

inline int32_t check_requests(const SwaPagedAttentionParams& p, const Launch& launch) {
  int64_t before = integer(p.query_start_loc, 0);
  if (before != 0)
    return refuse(launch, "query_start_loc: expected 0 as its first value, got %lld", (long long)before);
  for (int64_t b = 0; b < p.B; ++b) {
    const int64_t after = integer(p.query_start_loc, b + 1);
    if (after < before || after > p.T)
      return refuse(launch, "query_start_loc: expected values rising to at most T=%lld, got %lld after %lld",
                    (long long)p.T, (long long)after, (long long)before);
    if (const int32_t status = check_request(p, request_of(p, b), launch)) return status;
    before = after;
  }
  return DSV4_OK;
}

}  // namespace dsv4::cpu
