// SPDX-License-Identifier: Apache-2.0
// alloc_extend: slots of newly cached tokens, from the old partial page and from fresh pages.
// 8 bytes written a token, 24 read a request: a launch's latency is the floor up to some hundred thousand tokens.
// A block for every 1024 tokens, 256 threads. Nobody waits for a neighbour: every block adds up all requests for itself,
// ceil(B/256) of them a thread, and then finds the request of each of its tokens by binary search in the threads' sums.
// Contract: include/dsv4spec/paging.h.
#include <algorithm>

#include "ints.cuh"

namespace dsv4::cuda {
namespace {

constexpr int kThreads = 256;
constexpr int kTokensPerBlock = 1024;
constexpr int64_t kMaxBlocks = 1024;  // beyond, blocks go on in strides

struct Batch {
  Ints prefix, seq, free_pages;
  const int64_t* last;
  int64_t *slots, B, free_count, extend;
  int64_t share;  // requests that a thread adds up
  int32_t *num_new_pages, *status;
  Divisor page;
};

struct Need {
  int64_t tokens, pages;
};

struct Request {
  int64_t begin, tokens, first_page;  // positions begin .. begin + tokens - 1, those of pages >= first_page on new ones
  Need need;

  DSV4_DEVICE Request(const Batch& v, int64_t b) : begin(0), tokens(0), first_page(0), need{0, 0} {
    const int64_t seq = v.seq(b);
    if (seq <= 0) return;
    const int64_t prefix = v.prefix(b);
    if (prefix < 0 || prefix > seq) return;  // the CPU refuses; here it gets nothing, as padding
    begin = prefix, tokens = seq - prefix, first_page = v.page.rounded_up(prefix);
    need = {tokens, v.page.rounded_up(seq) - first_page};
  }
};

DSV4_DEVICE int64_t at_most(int64_t x, int64_t limit) { return x < limit ? x : limit; }

// Exclusive sums over the block's threads in `sums`, the total in [kThreads].
DSV4_DEVICE void scan(Need mine, Need (&sums)[kThreads + 1]) {
  __shared__ Need warps[kThreads / kWarp];
  const int lane = threadIdx.x % kWarp, warp = threadIdx.x / kWarp;
  Need up = mine;
#pragma unroll
  for (int o = 1; o < kWarp; o *= 2) {
    const int64_t tokens = __shfl_up_sync(kAllLanes, up.tokens, o), pages = __shfl_up_sync(kAllLanes, up.pages, o);
    if (lane >= o) up.tokens += tokens, up.pages += pages;
  }
  if (lane == kWarp - 1) warps[warp] = up;
  __syncthreads();
#pragma unroll
  for (int w = 0; w < kThreads / kWarp; ++w)
    if (w < warp) up.tokens += warps[w].tokens, up.pages += warps[w].pages;
  if (threadIdx.x == 0) sums[0] = {0, 0};
  sums[threadIdx.x + 1] = up;
  __syncthreads();
}

// The slot of position `position` of request b, whose new pages begin at free_pages[page]; -1 where the CPU would
// refuse.
DSV4_DEVICE int64_t slot_of(const Batch& v, int64_t b, const Request& r, int64_t position, int64_t page) {
  const int64_t P = static_cast<int64_t>(v.page.value), index = v.page.quotient(position);
  if (index < r.first_page) {
    const int64_t last = v.last[b];
    if (last < -1 || last == INT64_MAX || v.page.remainder(last + 1) != v.page.remainder(r.begin)) return -1;
    return wrapping_sum(last + 1, position - r.begin);
  }
  const int64_t id = v.free_pages(page + index - r.first_page);
  return id >= 0 && id <= kMaxPageId ? id * P + position - index * P : -1;
}

__global__ void __launch_bounds__(kThreads) alloc_kernel(Batch v) {
  __shared__ Need sums[kThreads + 1];
  const int64_t first = threadIdx.x * v.share;
  Need mine{0, 0};  // bounded by one more than there is, which keeps the sums from overflowing
  for (int64_t b = first; b < first + v.share && b < v.B; ++b) {
    const Need need = Request(v, b).need;
    mine.tokens = at_most(mine.tokens + at_most(need.tokens, v.extend + 1), v.extend + 1);
    mine.pages = at_most(mine.pages + at_most(need.pages, v.free_count + 1), v.free_count + 1);
  }
  scan(mine, sums);
  const Need total = sums[kThreads];
  const bool enough = total.tokens <= v.extend && total.pages <= v.free_count;
  if (blockIdx.x == 0 && threadIdx.x == 0) {
    if (v.status) *v.status = enough ? 0 : 1;
    if (enough) *v.num_new_pages = static_cast<int32_t>(total.pages);
  }
  if (!enough) return;

  const int64_t step = static_cast<int64_t>(gridDim.x) * kThreads;
  for (int64_t i = static_cast<int64_t>(blockIdx.x) * kThreads + threadIdx.x; i < v.extend; i += step) {
    if (i >= total.tokens) {
      v.slots[i] = -1;
      continue;
    }
    int owner = 0;  // the last thread whose requests begin at or before token i; those after it begin behind
    for (int half = kThreads / 2; half; half /= 2)
      if (sums[owner + half].tokens <= i) owner += half;
    int64_t b = owner * v.share, place = i - sums[owner].tokens, page = sums[owner].pages;
    Request r(v, b);
    while (place >= r.tokens) {
      place -= r.tokens, page += r.need.pages;
      r = Request(v, ++b);
    }
    v.slots[i] = slot_of(v, b, r, r.begin + place, page);
  }
}

int32_t launch_op(const AllocExtendParams& p, const Launch& l) {
  const Batch v{ints_of(p.prefix_lens), ints_of(p.seq_lens), ints_of(p.free_pages), p.last_slots.at<const int64_t>(),
                p.slots.at<int64_t>(), p.B, p.free_count, p.extend_num_tokens, ceil_div<int64_t>(p.B, kThreads),
                p.num_new_pages.at<int32_t>(), p.status.at<int32_t>(), Divisor(p.page_size)};
  const int64_t wanted = ceil_div<int64_t>(p.extend_num_tokens, kTokensPerBlock);
  const int64_t blocks = std::min(std::max<int64_t>(1, wanted), kMaxBlocks);
  return status_of(l, launch(alloc_kernel, static_cast<unsigned>(blocks), kThreads, 0, stream_of(l), v));
}

}  // namespace
DSV4_CUDA_KERNEL(alloc_extend, AllocExtendParams, launch_op)
}  // namespace dsv4::cuda
