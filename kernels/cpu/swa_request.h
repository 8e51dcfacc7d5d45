// SPDX-License-Identifier: Apache-2.0
// What swa_paged_attention reads from its integer tensors: lengths, the tree, pages; and the refusal of those that
// lead nowhere.
#pragma once
#include "packed_rows.h"

namespace dsv4::cpu {

inline int64_t nodes_seen(const SwaPagedAttentionParams& p, int64_t b, int64_t j) {
  const uint8_t* row = p.tree_mask.at<uint8_t>(b, j);
  int64_t count = 0;
  for (int64_t i = 0; i < p.n; ++i) count += row[i] != 0;
  return count;
}

inline int64_t position_of(const SwaPagedAttentionParams& p, const PackedRequest& r, int64_t j) {
  return p.n ? r.committed() + nodes_seen(p, r.b, j) - 1 : r.committed() + j;
}

// The first window key of a row at `position`.
inline int64_t first_key(const SwaPagedAttentionParams& p, int64_t position) {
  return position >= p.window ? position - p.window + 1 : 0;
}

inline int32_t check_request(const SwaPagedAttentionParams& p, const PackedRequest& r, const Launch& launch) {
  if (r.length < 0) return refuse(launch, "seq_lens: expected >= 0 for request %lld, got %lld", (long long)r.b, (long long)r.length);
  if (r.length == 0 || r.rows == 0) return DSV4_OK;
  if (p.tree_mask && r.rows != p.n)
    return refuse(launch, "query_start_loc: expected n=%lld rows for request %lld, got %lld", (long long)p.n,
                  (long long)r.b, (long long)r.rows);
  if (r.length < r.rows)
    return refuse(launch, "seq_lens: expected at least the %lld query rows of request %lld, got %lld",
                  (long long)r.rows, (long long)r.b, (long long)r.length);

  int64_t least = r.committed(), most = r.length - 1;  // positions of the rows
  if (p.tree_mask) {
    least = r.length, most = -1;
    for (int64_t j = 0; j < p.n; ++j) {
      const int64_t position = position_of(p, r, j);
      least = position < least ? position : least;
      most = position > most ? position : most;
    }
  }
  if (p.cos_sin && most >= p.max_pos)
    return refuse(launch, "cos_sin: expected at least %lld rows for request %lld, got %lld", (long long)(most + 1),
                  (long long)r.b, (long long)p.max_pos);
  for (int64_t c = first_key(p, least) / p.page; c <= (r.length - 1) / p.page; ++c) {
    if (c >= p.maxp)
      return refuse(launch, "block_table: expected a column for logical page %lld of request %lld, got %lld columns",
                    (long long)c, (long long)r.b, (long long)p.maxp);
    const int64_t page = int_at(p.block_table, r.b, c);
    if (page < 0 || page >= p.P)
      return refuse(launch, "block_table: expected a page in [0, %lld) as logical page %lld of request %lld, got %lld",
                    (long long)p.P, (long long)c, (long long)r.b, (long long)page);
  }
  return DSV4_OK;
}

inline int32_t check_swa_requests(const SwaPagedAttentionParams& p, const Launch& launch) {
  return check_requests(p, launch, [&](const PackedRequest& r) { return check_request(p, r, launch); });
}

}  // namespace dsv4::cpu
