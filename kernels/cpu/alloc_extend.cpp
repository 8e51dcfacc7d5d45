// SPDX-License-Identifier: Apache-2.0
// alloc_extend: slots of newly cached tokens, from the old partial page and from fresh pages.
// A checking pass over the requests, then one pass that writes runs of consecutive slots. Serial: 8 bytes a
// token.
// Contract: include/dsv4spec/paging.h.
#include <algorithm>

#include "ints.h"
#include "kernel.h"

namespace dsv4::cpu {
namespace {

int64_t pages_of(int64_t tokens, Divisor page) { return page.quotient(tokens) + (page.rest(tokens) != 0); }

struct Totals {
  int64_t tokens = 0, pages = 0;
};

// Refuses what no status can report; adds up what the requests need.
int32_t check(const AllocExtendParams& p, const Launch& launch, Totals* total) {
  const Ints seq_lens(p.seq_lens), prefix_lens(p.prefix_lens), free_pages(p.free_pages);
  const int64_t* last_slots = p.last_slots.at<int64_t>();
  const Divisor page(p.page_size);
  Totals sum;
  for (int64_t b = 0; b < p.B; ++b) {
    const int64_t seq = seq_lens[b];
    if (seq <= 0) continue;
    const int64_t prefix = prefix_lens[b];
    if (prefix < 0 || prefix > seq)
      return refuse(launch, "prefix_lens: expected 0 to seq_lens = %lld for request %lld, got %lld",
                    static_cast<long long>(seq), static_cast<long long>(b), static_cast<long long>(prefix));
    const int64_t last = page.rest(prefix) && seq > prefix ? last_slots[b] : prefix - 1;
    // Slots of a page that can be: last + 1 does not overflow.
    if (last < -1 || last == INT64_MAX || page.rest(last + 1) != page.rest(prefix))
      return refuse(launch, "last_slots: expected a slot in which position %lld of request %lld can lie, got %lld",
                    static_cast<long long>(prefix - 1), static_cast<long long>(b), static_cast<long long>(last));
    const int64_t pages = pages_of(seq, page) - pages_of(prefix, page);
    sum.tokens = sum.tokens > INT64_MAX - (seq - prefix) ? INT64_MAX : sum.tokens + (seq - prefix);
    sum.pages = sum.pages > INT64_MAX - pages ? INT64_MAX : sum.pages + pages;
  }
  *total = sum;
  const bool enough = total->pages <= p.free_count;
  for (int64_t i = 0; enough && i < total->pages; ++i)
    if (const int64_t id = free_pages[i]; id < 0 || id > kMaxPageId)
      return refuse(launch, "free_pages: expected page ids from 0 to 2^31 - 1, got %lld", static_cast<long long>(id));
  if (p.status) return DSV4_OK;
  if (!enough)
    return refuse(launch, "free_pages: expected at least %lld pages, got %lld", static_cast<long long>(total->pages),
                  static_cast<long long>(p.free_count));
  if (total->tokens > p.extend_num_tokens)
    return refuse(launch, "extend_num_tokens: expected at least %lld (the sum of seq_lens - prefix_lens), got %lld",
                  static_cast<long long>(total->tokens), static_cast<long long>(p.extend_num_tokens));
  return DSV4_OK;
}

int32_t launch(const AllocExtendParams& p, const Launch& launch) {
  Totals total;
  if (int32_t status = check(p, launch, &total)) return status;
  const bool ok = total.pages <= p.free_count && total.tokens <= p.extend_num_tokens;
  if (p.status) *p.status.at<int32_t>() = ok ? 0 : 1;
  if (!ok) return DSV4_OK;

  const Ints seq_lens(p.seq_lens), prefix_lens(p.prefix_lens), free_pages(p.free_pages);
  const int64_t* last_slots = p.last_slots.at<int64_t>();
  const Divisor page(p.page_size);
  int64_t *out = p.slots.at<int64_t>(), *const end = out + p.extend_num_tokens;
  int64_t taken = 0;
  auto run = [&](int64_t first_slot, int64_t count) {
    write_run(out, count, first_slot);
    out += count;
  };
  for (int64_t b = 0; b < p.B; ++b) {
    const int64_t seq = seq_lens[b];
    if (seq <= 0) continue;
    int64_t at = prefix_lens[b];
    if (const int64_t used = page.rest(at); used && at < seq) {
      const int64_t rest = std::min(page - used, seq - at);
      run(last_slots[b] + 1, rest);
      at += rest;
    }
    for (int64_t count; at < seq; at += count) {
      count = std::min<int64_t>(page, seq - at);
      run(free_pages[taken++] * page, count);
    }
  }
  std::fill(out, end, -1);
  *p.num_new_pages.at<int32_t>() = static_cast<int32_t>(total.pages);
  return DSV4_OK;
}

}  // namespace
DSV4_CPU_KERNEL(alloc_extend, AllocExtendParams, launch)
}  // namespace dsv4::cpu
