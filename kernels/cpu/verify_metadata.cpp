// SPDX-License-Identifier: Apache-2.0
// verify_metadata: positions and destinations of the C4 and C128 entries that a verify window emits.
// A pass over the needed table entries refuses missing pages before anything is written; then one serial pass
// a ratio (at most T/r + B entries, a few hundred in practice). Contract: include/dsv4spec/verify.h.
#include <algorithm>

#include "kernel.h"
#include "verify_metadata_vector.h"
#include "verify_rows.h"

namespace dsv4::cpu {
namespace {

template <int64_t kRatio>  // a constant, so that the division of every request is a shift
struct Pool {
  const char* name;  // of the table argument
  const TensorView &table, &positions, &loc;
  int64_t page;  // 0: the pool is absent

  // fn(b, j, place, group): the number of the entry among those of its request.
  template <class Fn>
  int64_t for_each_entry(const VerifyMetadataParams& p, Fn&& fn) const {
    if (page <= 0) return 0;
    return for_each_emitting_row(Ints(p.live_seq_lens), p.B, p.n, Divisor(kRatio),
                                 [&](int64_t b, int64_t s, int64_t j, int64_t place) { fn(b, j, place, (s + j) / kRatio); });
  }
};

template <int64_t kRatio>
int32_t check(const VerifyMetadataParams& p, const Pool<kRatio>& pool, const Launch& launch) {
  const Sixteens<kRatio> sixteens{p, pool.table, pool.page};
  if (sixteens.suit() && sixteens.sound()) return DSV4_OK;
  int64_t bad_request = -1, bad_index = 0;
  const Ints table(pool.table);
  const int64_t width = pool.table.shape[1];
  const Divisor page(std::max<int64_t>(pool.page, 1));
  pool.for_each_entry(p, [&](int64_t b, int64_t, int64_t, int64_t group) {
    const int64_t index = page.quotient(group);
    const int64_t entry = index < width ? table.at(b, index) : -1;
    if ((entry < 0 || entry > kMaxPageId) && bad_request < 0) bad_request = b, bad_index = index;
  });
  if (bad_request < 0) return DSV4_OK;
  return refuse(launch, "%s: expected a page in column %lld of request %lld, got %s", pool.name,
                static_cast<long long>(bad_index), static_cast<long long>(bad_request),
                bad_index >= width                     ? "a table that ends before it"
                : table.at(bad_request, bad_index) < 0 ? "a negative entry"
                                                       : "an entry of 2^31 or more");
}

template <int64_t kRatio>
void write(const VerifyMetadataParams& p, const Pool<kRatio>& pool) {
  const int64_t *positions = p.positions.at<int64_t>(), n = p.n, size = pool.loc.shape[0];
  int64_t* value = static_cast<int64_t*>(pool.positions.data);
  int64_t* loc = static_cast<int64_t*>(pool.loc.data);
  const Sixteens<kRatio> sixteens{p, pool.table, pool.page};
  int64_t count;
  if (sixteens.suit()) {
    count = sixteens.write(value, loc);
  } else {
    const Ints table(pool.table);
    const Divisor page(std::max<int64_t>(pool.page, 1));
    count = pool.for_each_entry(p, [=](int64_t b, int64_t j, int64_t place, int64_t group) {
      value[place] = group_start(positions[b * n + j], kRatio);
      loc[place] = table.at(b, page.quotient(group)) * page + page.rest(group);
    });
  }
  std::fill(value + count, value + size, 0);
  std::fill(loc + count, loc + size, -1);
}

int32_t launch(const VerifyMetadataParams& p, const Launch& launch) {
  const Pool<4> c4{"c4_table", p.c4_table, p.c4_positions, p.c4_loc, p.c4_page};
  const Pool<128> c128{"c128_table", p.c128_table, p.c128_positions, p.c128_loc, p.c128_page};
  const Ints lengths(p.live_seq_lens);
  const int64_t n = p.n;
  int64_t longest = 0;
  for (int64_t b = 0; b < p.B; ++b) longest = std::max(longest, lengths[b]);
  for (int64_t b = 0; longest > INT32_MAX - n && b < p.B; ++b)  // start_pos is int32
    if (const int64_t s = lengths[b]; s > INT32_MAX - n)
      return refuse(launch, "live_seq_lens: expected lengths below 2^31 - n for request %lld, got %lld",
                    static_cast<long long>(b), static_cast<long long>(s));
  if (int32_t status = check(p, c4, launch)) return status;
  if (int32_t status = check(p, c128, launch)) return status;
  write(p, c4);
  write(p, c128);
  int32_t *start = p.start_pos.at<int32_t>(), *used = p.seqused.at<int32_t>();
  for (int64_t b = 0; b < p.B; ++b) {
    const int64_t s = lengths[b];
    start[b] = static_cast<int32_t>(std::max<int64_t>(s, 0));
    used[b] = s > 0 ? static_cast<int32_t>(n) : 0;
  }
  return DSV4_OK;
}

}  // namespace
DSV4_CPU_KERNEL(verify_metadata, VerifyMetadataParams, launch)
}  // namespace dsv4::cpu
