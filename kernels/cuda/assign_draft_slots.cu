// SPDX-License-Identifier: Apache-2.0
// assign_draft_slots: where the draft steps store their KV, k branches of num_steps slots a request.
// 8 bytes written a slot, one table entry read: a launch's latency is the floor. A thread a slot, 256 a block.
// Contract: include/dsv4spec/paging.h.
#include <algorithm>

#include "ints.cuh"

namespace dsv4::cuda {
namespace {

constexpr int kThreads = 256;

struct Drafts {
  Ints table, live;
  Rows<int64_t> slots;
  int64_t total, width;
  Divisor page, steps, per_request;
};

__global__ void __launch_bounds__(kThreads) assign_kernel(Drafts v) {
  const int64_t P = static_cast<int64_t>(v.page.value);
  const int64_t stride = static_cast<int64_t>(gridDim.x) * kThreads;
  for (int64_t i = static_cast<int64_t>(blockIdx.x) * kThreads + threadIdx.x; i < v.total; i += stride) {
    const int64_t b = v.per_request.quotient(i), at = v.per_request.remainder(i);
    const int64_t branch = v.steps.quotient(at), step = v.steps.remainder(at);
    const int64_t s = v.live(b);
    int64_t slot = -1;
    if (s > 0) {
      const int64_t start = v.page.remainder(s), offset = start + step;
      const int64_t pages = v.page.rounded_up(start + static_cast<int64_t>(v.steps.value));  // of a branch
      const int64_t more = v.page.quotient(offset);
      // Columns beyond the table are alike: bounded, the sum cannot overflow.
      const int64_t column = min(v.page.quotient(s), v.width) + min(branch * pages, v.width) + more;
      const int64_t id = column < v.width ? v.table(b, column) : -1;
      if (id >= 0 && id <= kMaxPageId) slot = id * P + offset - more * P;
    }
    v.slots[b][at] = slot;
  }
}

int32_t launch_op(const AssignDraftSlotsParams& p, const Launch& l) {
  const int64_t per_request = p.topk * p.num_steps, total = p.B * per_request;
  const Drafts v{ints_of(p.block_table), ints_of(p.live_seq_lens), rows_of<int64_t>(p.slots), total,
                 p.block_table.shape[1], Divisor(p.page_size), Divisor(p.num_steps), Divisor(per_request)};
  const unsigned blocks = static_cast<unsigned>(std::min<int64_t>(ceil_div<int64_t>(total, kThreads), 1 << 20));
  return status_of(l, launch(assign_kernel, blocks, kThreads, 0, stream_of(l), v));
}

}  // namespace
DSV4_CUDA_KERNEL(assign_draft_slots, AssignDraftSlotsParams, launch_op)
}  // namespace dsv4::cuda
