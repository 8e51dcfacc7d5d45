// SPDX-License-Identifier: Apache-2.0
// build_tree: parents, links, positions and attention mask of the chosen draft nodes.
// One request a work item. Nodes are in ascending flat order, so a parent is found by binary search among the
// nodes before it and its finished bit row is one OR away: n*log(n) steps and n*n/8 bytes of scratch a
// request, all on the stack. The mask is the only large output; 8 of its bytes are spread from 8 bits at a
// time.
// Contract: include/dsv4spec/tree.h.
#include <algorithm>
#include <atomic>

#include "dsv4spec/tree.h"
#include "ints.h"
#include "kernel.h"

namespace dsv4::cpu {
namespace {

constexpr int kWords = kMaxTreeNodes / 64;

// parent[i] of nodes 1..n-1, -1 where there is none. Returns the first such node, or 0.
int find_parents(const BuildTreeParams& p, int64_t b, int16_t* parent) {
  const int64_t* selected = p.selected_index.at<int64_t>(b);
  const int64_t* list = p.parent_list.at<int64_t>(b);
  const int64_t width = p.parent_list.shape[1];
  const int n = static_cast<int>(p.n);
  const bool ascending = std::is_sorted(selected, selected + n - 1);
  int missing = 0;
  for (int i = 1; i < n; ++i) {
    const int64_t flat = selected[i - 1], group = flat < 0 ? -1 : flat / p.topk;
    const int64_t* end = selected + i - 1;
    int found = -1;
    if (group == 0) {
      found = 0;
    } else if (group > 0 && group < width) {
      const int64_t wanted = list[group];
      const int64_t* at = ascending ? std::lower_bound(selected, end, wanted) : std::find(selected, end, wanted);
      if (at != end && *at == wanted) found = static_cast<int>(at - selected) + 1;
    }
    parent[i] = static_cast<int16_t>(found);
    if (found < 0 && !missing) missing = i;
  }
  return missing;
}

// n bits to n bytes of 0 or 1 (little-endian, as every host this package builds for).
void spread(const uint64_t* bits, int n, uint8_t* out) {
  for (int c = 0; c < n; c += 8) {
    const uint64_t byte = bits[c / 64] >> (c % 64) & 0xff;
    const uint64_t one_each = (byte * 0x0101010101010101u) & 0x8040201008040201u;
    const uint64_t bytes = (one_each + 0x7f7f7f7f7f7f7f7fu) >> 7 & 0x0101010101010101u;
    std::memcpy(out + c, &bytes, std::min(n - c, 8));
  }
}

void write_mask_row(const BuildTreeParams& p, int64_t b, int i, const uint64_t* bits, int64_t s, int64_t full_offset) {
  const int n = static_cast<int>(p.n);
  uint8_t* memory = static_cast<uint8_t*>(p.tree_mask.data);
  switch (p.mask_mode) {
    case DSV4_TREE_MASK_FULL: {
      uint8_t* row = memory + full_offset + i * (s + n);
      std::memset(row, 1, s);
      spread(bits, n, row + s);
      break;
    }
    case DSV4_TREE_MASK_QLEN: spread(bits, n, memory + (b * n + i) * n); break;
    default:
      if (n <= 8) memory[b * n + i] = static_cast<uint8_t>(bits[0]);
      else if (n <= 16) reinterpret_cast<uint16_t*>(memory)[b * n + i] = static_cast<uint16_t>(bits[0]);
      else reinterpret_cast<uint32_t*>(memory)[b * n + i] = static_cast<uint32_t>(bits[0]);
  }
}

void build(const BuildTreeParams& p, int64_t b, int64_t s, int64_t full_offset) {
  const int n = static_cast<int>(p.n), words = (n + 63) / 64;
  int16_t parent[kMaxTreeNodes], depth[kMaxTreeNodes];
  uint64_t rows[kMaxTreeNodes][kWords];
  const int missing = find_parents(p, b, parent);
  if (p.status) *p.status.at<int32_t>(b) = missing != 0;

  int64_t* tokens = p.tokens.at<int64_t>(b);
  int64_t* next = p.next_token.at<int64_t>(b);
  int64_t* sibling = p.next_sibling.at<int64_t>(b);
  parent[0] = -1;
  for (int i = 0; i < n; ++i) {
    const int up = parent[i];
    for (int w = 0; w < words; ++w) rows[i][w] = up >= 0 ? rows[up][w] : 0;
    rows[i][0] |= 1;
    rows[i][i / 64] |= uint64_t{1} << (i % 64);
    depth[i] = static_cast<int16_t>(up >= 0 ? depth[up] + 1 : 0);
    tokens[i] = i ? p.draft_tokens.at<int64_t>(b)[i - 1] : *p.bonus_tokens.at<int64_t>(b);
    p.positions.at<int64_t>()[b * n + i] = s + depth[i];
    p.retrieve_index.at<int64_t>(b)[i] = b * n + i;
    next[i] = sibling[i] = -1;
    write_mask_row(p, b, i, rows[i], s, full_offset);
  }
  for (int i = n - 1; i > 0; --i) {  // downward, so that a child list begins with its lowest node
    if (parent[i] < 0) continue;
    sibling[i] = next[parent[i]];
    next[parent[i]] = i;
  }
}

int32_t check(const BuildTreeParams& p, const Launch& launch) {
  if (p.mask_mode == DSV4_TREE_MASK_FULL) {
    const int64_t most = INT64_MAX / p.n - p.n * p.B;  // the sum of the lengths that still can be counted
    int64_t sum = 0;
    for (int64_t b = 0; b < p.B; ++b)
      sum += std::min(std::max<int64_t>(int_at(p.live_seq_lens, b), 0), most - sum);
    const int64_t needed = p.n * (p.n * p.B + sum);
    if (p.tree_mask.shape[0] < needed)
      return refuse(launch, "tree_mask: expected at least %lld elements, got %lld", static_cast<long long>(needed),
                    static_cast<long long>(p.tree_mask.shape[0]));
  }
  for (int64_t b = 0; b < p.B; ++b)
    if (const int64_t s = int_at(p.live_seq_lens, b); s > INT64_MAX - p.n)
      return refuse(launch, "live_seq_lens: expected a length whose positions fit 64 bits, got %lld for request %lld",
                    static_cast<long long>(s), static_cast<long long>(b));
  if (p.status) return DSV4_OK;
  std::atomic<int64_t> first{p.B};
  parallel(p.B, grain_for(p.n * 64), [&](int64_t begin, int64_t end) {
    int16_t parent[kMaxTreeNodes];
    for (int64_t b = begin; b < end; ++b) {
      if (int_at(p.live_seq_lens, b) <= 0 || !find_parents(p, b, parent)) continue;
      for (int64_t seen = first; b < seen && !first.compare_exchange_weak(seen, b);) {}
      break;
    }
  });
  if (first == p.B) return DSV4_OK;
  int16_t parent[kMaxTreeNodes];
  return refuse(launch, "selected_index: expected the parent of every node among the nodes before it, got none for node "
                "%d of request %lld", find_parents(p, first, parent), static_cast<long long>(first.load()));
}

int32_t launch(const BuildTreeParams& p, const Launch& launch) {
  if (int32_t status = check(p, launch)) return status;
  parallel(p.B, grain_for(p.n * (64 + p.n)), [&](int64_t begin, int64_t end) {
    int64_t full_offset = 0;
    for (int64_t b = 0; b < end; ++b) {
      const int64_t s = int_at(p.live_seq_lens, b);
      if (b >= begin && s > 0) build(p, b, s, full_offset);
      if (b >= begin && s <= 0 && p.status) *p.status.at<int32_t>(b) = 0;
      full_offset += p.n * (p.n + std::max<int64_t>(s, 0));
    }
  });
  return DSV4_OK;
}

}  // namespace
DSV4_CPU_KERNEL(build_tree, BuildTreeParams, launch)
}  // namespace dsv4::cpu
