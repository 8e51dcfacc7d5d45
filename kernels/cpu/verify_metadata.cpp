// SPDX-License-Identifier: Apache-2.0
// verify_metadata: positions and destinations of the C4 and C128 entries that a verify window emits.
// A pass over the needed table entries refuses missing pages before anything is written; then one serial pass
// a ratio (at most T/r + B entries, a few hundred in practice). Contract: include/dsv4spec/verify.h.
#include <algorithm>

#include "kernel.h"
#include "verify_rows.h"

namespace dsv4::cpu {
namespace {

template <int64_t kRatio>  // a constant, so that the division of every request is a shift
struct Pool {
  const char* name;  // of the table argument
  const TensorView &table, &positions, &loc;
  int64_t page;
  static constexpr int64_t ratio = kRatio;

  template <class Fn>
  int64_t for_each_entry(const VerifyMetadataParams& p, Fn&& fn) const {
    return page > 0 ? for_each_emitting_row(p.live_seq_lens, p.B, p.n, kRatio, fn) : 0;
  }
};

template <int64_t kRatio>
int32_t check(const VerifyMetadataParams& p, const Pool<kRatio>& pool, const Launch& launch) {
  int64_t bad_request = -1, bad_index = 0;
  pool.for_each_entry(p, [&](int64_t b, int64_t j, int64_t) {
    const int64_t index = (int_at(p.live_seq_lens, b) + j) / pool.ratio / pool.page;
    if (bad_request >= 0) return;
    const int64_t entry = index < pool.table.shape[1] ? int_at(pool.table, b, index) : -1;
    if (entry < 0 || entry > kMaxPageId) bad_request = b, bad_index = index;
  });
  if (bad_request < 0) return DSV4_OK;
  return refuse(launch, "%s: expected a page in column %lld of request %lld, got %s", pool.name,
                static_cast<long long>(bad_index), static_cast<long long>(bad_request),
                bad_index >= pool.table.shape[1]                     ? "a table that ends before it"
                : int_at(pool.table, bad_request, bad_index) < 0 ? "a negative entry"
                                                                 : "an entry of 2^31 or more");
}

template <int64_t kRatio>
void write(const VerifyMetadataParams& p, const Pool<kRatio>& pool) {
  const int64_t* positions = p.positions.at<int64_t>();
  int64_t* value = static_cast<int64_t*>(pool.positions.data);
  int64_t* loc = static_cast<int64_t*>(pool.loc.data);
  const int64_t size = pool.loc.shape[0];
  const int64_t count = pool.for_each_entry(p, [&](int64_t b, int64_t j, int64_t place) {
    const int64_t group = (int_at(p.live_seq_lens, b) + j) / pool.ratio;
    value[place] = group_start(positions[b * p.n + j], pool.ratio);
    loc[place] = int_at(pool.table, b, group / pool.page) * pool.page + group % pool.page;
  });
  std::fill(value + count, value + size, 0);
  std::fill(loc + count, loc + size, -1);
}

int32_t launch(const VerifyMetadataParams& p, const Launch& launch) {
  const Pool<4> c4{"c4_table", p.c4_table, p.c4_positions, p.c4_loc, p.c4_page};
  const Pool<128> c128{"c128_table", p.c128_table, p.c128_positions, p.c128_loc, p.c128_page};
  for (int64_t b = 0; b < p.B; ++b)  // start_pos is int32
    if (const int64_t s = int_at(p.live_seq_lens, b); s > INT32_MAX - p.n)
      return refuse(launch, "live_seq_lens: expected lengths below 2^31 - n for request %lld, got %lld",
                    static_cast<long long>(b), static_cast<long long>(s));
  if (int32_t status = check(p, c4, launch)) return status;
  if (int32_t status = check(p, c128, launch)) return status;
  write(p, c4);
  write(p, c128);
  for (int64_t b = 0; b < p.B; ++b) {
    const int64_t s = int_at(p.live_seq_lens, b);
    *p.start_pos.at<int32_t>(b) = static_cast<int32_t>(std::max<int64_t>(s, 0));
    *p.seqused.at<int32_t>(b) = s > 0 ? static_cast<int32_t>(p.n) : 0;
  }
  return DSV4_OK;
}

}  // namespace
DSV4_CPU_KERNEL(verify_metadata, VerifyMetadataParams, launch)
}  // namespace dsv4::cpu
