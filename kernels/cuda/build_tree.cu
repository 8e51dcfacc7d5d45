// SPDX-License-Identifier: Apache-2.0
// build_tree: parents, links, positions and attention mask of the chosen draft nodes.
// 16 bytes read and 40 written a node, and the mask: n*n bytes a request, n*(s + n) in mode full, which is all that can
// take longer than a launch. Grid (B, parts): a thread a node (n rounded up to warps); the parts of a request all build
// its tree, about a microsecond, and share the rows of its mask. Ancestors are bit rows, joined along paths whose length
// doubles; children are bit rows too, in which links are the lowest and the next bit.
// Contract: include/dsv4spec/tree.h.
#include <algorithm>

#include "dsv4spec/tree.h"
#include "ints.cuh"

namespace dsv4::cuda {
namespace {

constexpr int kPartBytes = 32 * 1024;  // of the mask, for one block

struct Tree {
  const int64_t* bonus;
  Rows<const int64_t> parent_list, selected, drafts;
  Ints live;
  Rows<int64_t> tokens, retrieve, next, sibling;
  int64_t *positions, mask_size;
  uint8_t* mask;
  int32_t* status;
  int64_t width;
  int n, topk, mask_mode;
};

template <int W>  // words of a bit row
struct Scratch {
  static constexpr int kNodes = W * 32;
  int64_t selected[kNodes];  // of nodes 1.., so [0] is node 1's
  uint32_t reach[2][W][kNodes], children[W][kNodes];
  int16_t jump[2][kNodes];
  int64_t sums[W];
};

// The parent of node i, -1 without one: the lowest node before it that has the flat number its group hangs on.
template <int W>
DSV4_DEVICE int parent_of(const Tree& t, const Scratch<W>& s, int64_t b, int i, bool ascending) {
  const int64_t flat = s.selected[i - 1];
  const int group = flat < 0 || flat > INT32_MAX ? -1 : static_cast<int>(flat) / t.topk;
  if (group == 0) return 0;
  if (group < 0 || group >= t.width) return -1;
  const int64_t wanted = t.parent_list[b][group];
  int at = 0;
  if (ascending) {
    for (int end = i - 1; at < end;) {
      const int middle = (at + end) / 2;
      if (s.selected[middle] < wanted) at = middle + 1;
      else end = middle;
    }
  } else {
    while (at < i - 1 && s.selected[at] != wanted) ++at;
  }
  return at < i - 1 && s.selected[at] == wanted ? at + 1 : -1;
}

// The lowest set bit from bit `from` on, -1 without one.
template <int W>
DSV4_DEVICE int next_bit(const uint32_t (&rows)[W][W * 32], int row, int from) {
#pragma unroll
  for (int w = 0; w < W; ++w) {
    if (from >= w * 32 + 32) continue;
    const uint32_t bits = rows[w][row] & (from > w * 32 ? kAllLanes << (from - w * 32) : kAllLanes);
    if (bits) return w * 32 + __ffs(static_cast<int>(bits)) - 1;
  }
  return -1;
}

// Ones in [begin, end) by one warp, 16 bytes a lane where they fit.
DSV4_DEVICE void fill_ones(uint8_t* begin, uint8_t* end, int lane) {
  uint8_t* at = begin + (16 - reinterpret_cast<uintptr_t>(begin) % 16) % 16;
  if (end - begin < 64) at = end;
  for (uint8_t* p = begin + lane; p < at; p += kWarp) *p = 1;
  const int64_t whole = (end - at) / 16;
  const uint4 ones = make_uint4(0x01010101u, 0x01010101u, 0x01010101u, 0x01010101u);
  for (int64_t i = lane; i < whole; i += kWarp) reinterpret_cast<uint4*>(at)[i] = ones;
  for (uint8_t* p = at + whole * 16 + lane; p < end; p += kWarp) *p = 1;
}

// Row i of a byte mask by one warp: `prefix` ones and the n bits; nothing at or past `end`.
template <int W>
DSV4_DEVICE void write_row(const uint32_t (&rows)[W][W * 32], int i, int n, uint8_t* row, int64_t prefix, uint8_t* end,
                           int lane) {
  if (end - row < prefix) return fill_ones(row, end, lane);
  if (prefix) fill_ones(row, row + prefix, lane);
  row += prefix;
  const int count = end - row < n ? static_cast<int>(end - row) : n;
  if (count == n && n % 4 == 0 && reinterpret_cast<uintptr_t>(row) % 4 == 0) {
    for (int c = lane; c < n / 4; c += kWarp) {
      const uint32_t four = rows[c / 8][i] >> (c % 8 * 4) & 15u;
      reinterpret_cast<uint32_t*>(row)[c] = four * 0x00204081u & 0x01010101u;  // bit j to byte j
    }
  } else {
#pragma unroll
    for (int w = 0; w < W; ++w)
      if (w * 32 + lane < count) row[w * 32 + lane] = rows[w][i] >> lane & 1;
  }
}

template <int W>
__global__ void __launch_bounds__(W * 32) tree_kernel(Tree t) {
  __shared__ Scratch<W> s;
  const int64_t b = blockIdx.x, length = t.live(b);
  const int i = threadIdx.x, lane = i % kWarp, n = t.n;
  const bool first_part = blockIdx.y == 0;
  if (length <= 0) {
    if (first_part && t.status && i == 0) t.status[b] = 0;
    return;
  }
  if (i < n - 1) s.selected[i] = t.selected[b][i];
  const int64_t token = i == 0 ? t.bonus[b] : i < n ? t.drafts[b][i - 1] : 0;
#pragma unroll
  for (int w = 0; w < W; ++w) s.children[w][i] = 0;
  __syncthreads();
  const bool ascending = __syncthreads_and(i + 1 >= n - 1 || s.selected[i] <= s.selected[i + 1]);
  const bool child = i > 0 && i < n;
  const int parent = child ? parent_of(t, s, b, i, ascending) : -1;
  if (parent >= 0) atomicOr(&s.children[i / 32][parent], 1u << (i % 32));
#pragma unroll
  for (int w = 0; w < W; ++w) s.reach[0][w][i] = i / 32 == w ? 1u << (i % 32) : 0u;
  s.jump[0][i] = static_cast<int16_t>(parent);
  const bool broken = __syncthreads_or(child && parent < 0);

  int now = 0;  // reach[now]: the node and its ancestors up to a distance below `path`; jump[now]: the one at `path`
  for (int path = 1; path < n; path *= 2, now ^= 1) {
    const int up = s.jump[now][i];
#pragma unroll
    for (int w = 0; w < W; ++w) s.reach[now ^ 1][w][i] = s.reach[now][w][i] | (up >= 0 ? s.reach[now][w][up] : 0u);
    s.jump[now ^ 1][i] = up >= 0 ? s.jump[now][up] : static_cast<int16_t>(-1);
    __syncthreads();
  }
  const uint32_t(&rows)[W][W * 32] = s.reach[now];
  int depth = -1;
#pragma unroll
  for (int w = 0; w < W; ++w) depth += __popc(rows[w][i]);

  if (first_part && i < n) {
    t.tokens[b][i] = token;
    t.positions[b * n + i] = wrapping_sum(length, depth);
    t.retrieve[b][i] = b * n + i;
    t.next[b][i] = next_bit<W>(s.children, i, 0);
    t.sibling[b][i] = parent >= 0 ? next_bit<W>(s.children, parent, i + 1) : -1;
    if (t.status && i == 0) t.status[b] = broken;
    if (t.mask_mode == DSV4_TREE_MASK_QLEN_BITS) {
      const uint32_t bits = rows[0][i] | 1u;
      if (n <= 8) t.mask[b * n + i] = static_cast<uint8_t>(bits);
      else if (n <= 16) reinterpret_cast<uint16_t*>(t.mask)[b * n + i] = static_cast<uint16_t>(bits);
      else reinterpret_cast<uint32_t*>(t.mask)[b * n + i] = bits;
    }
  }
  if (t.mask_mode == DSV4_TREE_MASK_QLEN_BITS) return;

  // Every row sees the root, also below a node without parent.
  s.reach[now][0][i] |= 1u;
  int64_t prefix = 0, offset = b * n * n;
  if (t.mask_mode == DSV4_TREE_MASK_FULL) {
    // Lengths beyond the mask's size are as good as that size: nothing behind the end is written.
    auto bounded = [&](int64_t x) { return x < 0 ? 0 : x > t.mask_size ? t.mask_size : x; };
    int64_t sum = 0;
    for (int64_t r = i; r < b; r += W * 32) {
      sum += bounded(t.live(r));
      sum = bounded(sum);
    }
    sum = bounded(block_sum<W>(sum, s.sums));
    prefix = bounded(length);
    offset += n * sum;
  }
  __syncthreads();
  uint8_t* const end = t.mask + t.mask_size;
  for (int row = blockIdx.y * W + i / kWarp; row < n; row += gridDim.y * W) {
    const int64_t at = offset + row * (prefix + n);
    if (at < t.mask_size) write_row<W>(rows, row, n, t.mask + at, prefix, end, lane);
  }
}

int32_t launch_op(const BuildTreeParams& p, const Launch& l) {
  const int n = static_cast<int>(p.n), mode = static_cast<int>(p.mask_mode);
  const int64_t mask_size = mode == DSV4_TREE_MASK_FULL ? p.tree_mask.shape[0] : p.B * n * n;
  const Tree t{p.bonus_tokens.at<const int64_t>(), rows_of<const int64_t>(p.parent_list),
               rows_of<const int64_t>(p.selected_index), rows_of<const int64_t>(p.draft_tokens),
               ints_of(p.live_seq_lens), rows_of<int64_t>(p.tokens), rows_of<int64_t>(p.retrieve_index),
               rows_of<int64_t>(p.next_token), rows_of<int64_t>(p.next_sibling), p.positions.at<int64_t>(), mask_size,
               p.tree_mask.at<uint8_t>(), p.status.at<int32_t>(), p.parent_list.shape[1], n,
               static_cast<int>(p.topk), mode};
  const int words = n <= 32 ? 1 : n <= 64 ? 2 : 8;
  int64_t parts = 1;
  if (mode != DSV4_TREE_MASK_QLEN_BITS)
    parts = std::min(ceil_div<int64_t>(n, words), std::max<int64_t>(1, mask_size / p.B / kPartBytes));
  const dim3 grid(static_cast<unsigned>(p.B), static_cast<unsigned>(parts));
  auto* kernel = words == 1 ? &tree_kernel<1> : words == 2 ? &tree_kernel<2> : &tree_kernel<8>;
  return status_of(l, launch(kernel, grid, words * kWarp, 0, stream_of(l), t));
}

}  // namespace
DSV4_CUDA_KERNEL(build_tree, BuildTreeParams, launch_op)
}  // namespace dsv4::cuda
