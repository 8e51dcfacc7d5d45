// SPDX-License-Identifier: Apache-2.0
// build_tree: parents, links, positions and attention mask of the chosen draft nodes.
// One request a work item. Nodes are in ascending flat order, so a parent is found by binary search among the nodes before it
// (with AVX-512 by eight comparisons at once) and its finished bit row is one OR away: n*n/8 bytes of scratch a request, all on
// the stack. The mask is the only large output; 8 of its bytes are spread from 8 bits at a time. Trees of up to eight nodes:
// build_tree_small.h.
// Contract: include/dsv4spec/tree.h.
#include <algorithm>
#include <atomic>

#include "build_tree_small.h"
#include "dsv4spec/tree.h"
#include "ints.h"
#include "kernel.h"

namespace dsv4::cpu {
namespace {

#if defined(__AVX512F__)
// The place of the first `wanted` among `count` numbers, or `count`: eight compared at once beat a binary search.
int place_of(const int64_t* numbers, int count, int64_t wanted, bool) {
  for (int c = 0; c < count; c += 8) {
    const __mmask8 there = static_cast<__mmask8>(count - c >= 8 ? 0xff : (1 << (count - c)) - 1);
    const __mmask8 equal =
        _mm512_mask_cmpeq_epi64_mask(there, _mm512_maskz_loadu_epi64(there, numbers + c), _mm512_set1_epi64(wanted));
    if (equal) return c + __builtin_ctz(equal);
  }
  return count;
}
bool ascends(const int64_t*, int) { return false; }  // nobody asks
#else
int place_of(const int64_t* numbers, int count, int64_t wanted, bool ascending) {
  const int64_t* end = numbers + count;
  const int64_t* at = ascending ? std::lower_bound(numbers, end, wanted) : std::find(numbers, end, wanted);
  return static_cast<int>(at != end && *at == wanted ? at - numbers : count);
}
bool ascends(const int64_t* numbers, int count) { return std::is_sorted(numbers, numbers + count); }
#endif

// parent[i] of nodes 1..n-1, -1 where there is none. Returns the first such node, or 0.
int find_parents(const BuildTreeParams& p, int64_t b, int16_t* parent) {
  const int64_t* selected = p.selected_index.at<int64_t>(b);
  const int64_t* list = p.parent_list.at<int64_t>(b);
  const int64_t width = p.parent_list.shape[1];
  const Divisor topk(p.topk);
  const int n = static_cast<int>(p.n);
  const bool ascending = ascends(selected, n - 1);
  int missing = 0;
  for (int i = 1; i < n; ++i) {
    const int64_t flat = selected[i - 1], group = flat < 0 ? -1 : topk.quotient(flat);
    int found = -1;
    if (group == 0) {
      found = 0;
    } else if (group > 0 && group < width) {
      const int at = place_of(selected, i - 1, list[group], ascending);
      if (at < i - 1) found = at + 1;
    }
    parent[i] = static_cast<int16_t>(found);
    if (found < 0 && !missing) missing = i;
  }
  return missing;
}

// n bits to n bytes of 0 or 1 (little-endian, as every host this package builds for).
inline void spread(const uint64_t* bits, int n, uint8_t* out) {
  for (int c = 0; c < n; c += 8) {
    const uint64_t byte = bits[c / 64] >> (c % 64) & 0xff;
    const uint64_t one_each = (byte * 0x0101010101010101u) & 0x8040201008040201u;
    uint64_t bytes = (one_each + 0x7f7f7f7f7f7f7f7fu) >> 7 & 0x0101010101010101u;
    const int left = n - c;
    if (left >= 8) {
      std::memcpy(out + c, &bytes, 8);
      continue;
    }
    uint8_t* at = out + c;  // sizes that are constants: a copy of 1 to 7 bytes would be a call
    if (left & 4) std::memcpy(at, &bytes, 4), at += 4, bytes >>= 32;
    if (left & 2) std::memcpy(at, &bytes, 2), at += 2, bytes >>= 16;
    if (left & 1) *at = static_cast<uint8_t>(bytes);
  }
}

// Row i of request b of the mask.
inline void write_mask_row(int32_t mode, uint8_t* memory, int n, int64_t b, int i, const uint64_t* bits, int64_t s,
                           int64_t full_offset) {
  switch (mode) {
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

// words: of a bit row.
template <int words>
void build(const BuildTreeParams& p, int64_t b, int64_t s, int64_t full_offset) {
  const int n = static_cast<int>(p.n);
  int16_t parent[64 * words], depth[64 * words];
  uint64_t rows[64 * words][words];
  const int missing = find_parents(p, b, parent);
  if (p.status) *p.status.at<int32_t>(b) = missing != 0;

  // In locals: after every store of an integer the views would be read again.
  const auto mode = p.mask_mode;
  uint8_t* mask = static_cast<uint8_t*>(p.tree_mask.data);
  const int64_t* drafts = p.draft_tokens.at<int64_t>(b);
  int64_t *tokens = p.tokens.at<int64_t>(b), *positions = p.positions.at<int64_t>() + b * n;
  int64_t *retrieve = p.retrieve_index.at<int64_t>(b);
  int64_t *next = p.next_token.at<int64_t>(b), *sibling = p.next_sibling.at<int64_t>(b);
  tokens[0] = *p.bonus_tokens.at<int64_t>(b);
  parent[0] = -1;
  for (int i = 0; i < n; ++i) {
    const int up = parent[i];
    for (int w = 0; w < words; ++w) rows[i][w] = up >= 0 ? rows[up][w] : 0;
    rows[i][0] |= 1;
    rows[i][i / 64] |= uint64_t{1} << (i % 64);
    depth[i] = static_cast<int16_t>(up >= 0 ? depth[up] + 1 : 0);
    if (i) tokens[i] = drafts[i - 1];
    positions[i] = s + depth[i];
    retrieve[i] = b * n + i;
    next[i] = sibling[i] = -1;
    write_mask_row(mode, mask, n, b, i, rows[i], s, full_offset);
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
  parallel(p.B, grain_for(p.n * (100 + p.n)), [&](int64_t begin, int64_t end) {
    if (is_small(p)) return build_small(p, begin, end);
    int64_t full_offset = 0;
    for (int64_t b = 0; b < end; ++b) {
      const int64_t s = int_at(p.live_seq_lens, b);
      if (b >= begin && s > 0) p.n <= 64 ? build<1>(p, b, s, full_offset) : build<kMaxTreeNodes / 64>(p, b, s, full_offset);
      if (b >= begin && s <= 0 && p.status) *p.status.at<int32_t>(b) = 0;
      full_offset += p.n * (p.n + std::max<int64_t>(s, 0));
    }
  });
  return DSV4_OK;
}

}  // namespace
DSV4_CPU_KERNEL(build_tree, BuildTreeParams, launch)
}  // namespace dsv4::cpu
