// SPDX-License-Identifier: Apache-2.0
// assign_draft_slots: where the draft steps store their KV, k branches of num_steps slots a request.
// One request a work item; 8 bytes a slot. Contract: include/dsv4spec/paging.h.
#include <algorithm>

#include "ints.h"
#include "kernel.h"

namespace dsv4::cpu {
namespace {

void assign(const AssignDraftSlotsParams& p, int64_t begin, int64_t end) {
  const Ints lengths(p.live_seq_lens), table(p.block_table);
  const Divisor page(p.page_size);
  constexpr int64_t kAhead = 8;  // requests: a table's rows are long, and of each an entry or two is read
  const int64_t width = p.block_table.shape[1], steps = p.num_steps, branches = p.topk, pitch = p.slots.stride[0];
  int64_t* row = p.slots.at<int64_t>(begin);
  for (int64_t b = begin; b < end; ++b, row += pitch) {
    // Beyond the table there are no pages, however far: a bounded length keeps the sums from overflowing.
    const int64_t s = std::min(lengths[b], (width + 1) * page);
    const int64_t used = s > 0 ? page.rest(s) : 0, pages_a_branch = page.quotient(used + steps + page - 1);
    if (b + kAhead < end) {
      const int64_t column = page.quotient(std::max<int64_t>(lengths[b + kAhead], 0));
      if (column < width) __builtin_prefetch(table.address(b + kAhead, column));
    }
    int64_t* out = row;
    for (int64_t c = 0; c < branches; ++c) {
      int64_t column = s > 0 ? page.quotient(s) + c * pages_a_branch : width, offset = used;
      for (int64_t left = steps; left > 0; ++column, offset = 0) {
        const int64_t count = std::min(left, page - offset), id = column < width ? table.at(b, column) : -1;
        if (id >= 0) write_run(out, count, id * page + offset);
        else std::fill(out, out + count, -1);
        out += count, left -= count;
      }
    }
  }
}

int32_t launch(const AssignDraftSlotsParams& p, const Launch& launch) {
  for (int64_t b = 0; p.block_table.dtype == kI64 && b < p.B; ++b)
    for (int64_t c = 0; c < p.block_table.shape[1]; ++c)
      if (const int64_t page = int_at(p.block_table, b, c); page > kMaxPageId)
        return refuse(launch, "block_table: expected page ids below 2^31 for request %lld, got %lld", (long long)b,
                      (long long)page);
  parallel(p.B, grain_for(p.topk * p.num_steps * 16), [&](int64_t begin, int64_t end) {
    assign(p, begin, end);
  });
  return DSV4_OK;
}

}  // namespace
DSV4_CPU_KERNEL(assign_draft_slots, AssignDraftSlotsParams, launch)
}  // namespace dsv4::cpu
