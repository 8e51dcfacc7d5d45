// SPDX-License-Identifier: Apache-2.0
// assign_draft_slots: where the draft steps store their KV, k branches of num_steps slots a request.
// One request a work item; 8 bytes a slot. Contract: include/dsv4spec/paging.h.
#include <algorithm>

#include "ints.h"
#include "kernel.h"

namespace dsv4::cpu {
namespace {

void assign(const AssignDraftSlotsParams& p, int64_t b) {
  const int64_t P = p.page_size, width = p.block_table.shape[1];
  // Beyond the table there are no pages, however far: a bounded length keeps the sums from overflowing.
  const int64_t s = std::min(int_at(p.live_seq_lens, b), (width + 1) * P);
  const int64_t pages_a_branch = s > 0 ? (s % P + p.num_steps + P - 1) / P : 0;
  int64_t* out = p.slots.at<int64_t>(b);
  for (int64_t c = 0; c < p.topk; ++c) {
    int64_t column = s > 0 ? s / P + c * pages_a_branch : width, offset = s > 0 ? s % P : 0;
    for (int64_t step = 0; step < p.num_steps; ++step, ++offset) {
      if (offset == P) offset = 0, ++column;
      const int64_t page = column < width ? int_at(p.block_table, b, column) : -1;
      *out++ = page >= 0 ? page * P + offset : -1;
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
    for (int64_t b = begin; b < end; ++b) assign(p, b);
  });
  return DSV4_OK;
}

}  // namespace
DSV4_CPU_KERNEL(assign_draft_slots, AssignDraftSlotsParams, launch)
}  // namespace dsv4::cpu
