// SPDX-License-Identifier: Apache-2.0
// Rows packed request-major: which request a row belongs to and where it stands; and the refusal of lengths that
// lead nowhere. Params that have T, B, query_start_loc and seq_lens.
#pragma once
#include "ints.h"
#include "kernel.h"

namespace dsv4::cpu {

struct PackedRequest {
  int64_t b, start, rows, length;  // length 0: padding
  int64_t committed() const { return length - rows; }
};

template <class Params>
inline PackedRequest packed_request(const Params& p, int64_t b) {
  const int64_t start = int_at(p.query_start_loc, b);
  return {b, start, int_at(p.query_start_loc, b + 1) - start, int_at(p.seq_lens, b)};
}

// The request of `row`; length 0 for a row behind the last request.
template <class Params>
inline PackedRequest request_of_row(const Params& p, int64_t row) {
  int64_t low = 0, high = p.B;
  while (low < high) {
    const int64_t middle = (low + high) / 2;
    if (int_at(p.query_start_loc, middle + 1) <= row) low = middle + 1;
    else high = middle;
  }
  return low < p.B ? packed_request(p, low) : PackedRequest{low, row, 1, 0};
}

// query_start_loc rises from 0 to at most T, and `each(request)` has nothing to refuse.
template <class Params, class Each>
inline int32_t check_requests(const Params& p, const Launch& launch, Each&& each) {
  int64_t before = int_at(p.query_start_loc, 0);
  if (before != 0)
    return refuse(launch, "query_start_loc: expected 0 as its first value, got %lld", (long long)before);
  for (int64_t b = 0; b < p.B; ++b) {
    const int64_t after = int_at(p.query_start_loc, b + 1);
    if (after < before || after > p.T)
      return refuse(launch, "query_start_loc: expected values rising to at most T=%lld, got %lld after %lld",
                    (long long)p.T, (long long)after, (long long)before);
    if (const int32_t status = each(packed_request(p, b))) return status;
    before = after;
  }
  return DSV4_OK;
}

template <class Params>
inline int32_t check_packed(const Params& p, const Launch& launch) {
  return check_requests(p, launch, [&](const PackedRequest& r) -> int32_t {
    if (r.length >= 0 && (r.length == 0 || r.length >= r.rows)) return DSV4_OK;
    return refuse(launch, "seq_lens: expected 0 or at least the %lld rows of request %lld, got %lld",
                  (long long)r.rows, (long long)r.b, (long long)r.length);
  });
}

// Pages in columns [begin, end) of a request's table row: -1 or below `pages`.
inline int32_t check_pages(const TensorView& table, const char* name, int64_t b, int64_t begin, int64_t end,
                           int64_t pages, const Launch& launch) {
  if (end > table.shape[1]) end = table.shape[1];
  for (int64_t c = begin; c < end; ++c) {
    const int64_t page = int_at(table, b, c);
    if (page < -1 || page >= pages)
      return refuse(launch, "%s: expected -1 or a page below %lld at column %lld of request %lld, got %lld", name,
                    (long long)pages, (long long)c, (long long)b, (long long)page);
  }
  return DSV4_OK;
}

// A row of cos_sin for every position that is used.
inline int32_t check_positions(const TensorView& cos_sin, const PackedRequest& r, const Launch& launch) {
  if (cos_sin && r.length > cos_sin.shape[0])
    return refuse(launch, "cos_sin: expected at least %lld rows for request %lld, got %lld", (long long)r.length,
                  (long long)r.b, (long long)cos_sin.shape[0]);
  return DSV4_OK;
}

}  // namespace dsv4::cpu
