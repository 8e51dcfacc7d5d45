// SPDX-License-Identifier: Apache-2.0
// verify_tree_greedy: walks each tree along the target's argmax.
// One request a work item. All requests are checked before any output is written: every node is linked to at
// most once and none to the root, so every walk ends. Contract: include/dsv4spec/tree.h.
#include <atomic>

#include "ints.h"
#include "kernel.h"

namespace dsv4::cpu {
namespace {

struct Tree {
  int n;
  const int64_t *tokens, *row, *next, *sibling, *target;

  Tree(const VerifyTreeGreedyParams& p, int64_t b)
      : n(static_cast<int>(p.n)), tokens(p.candidates.at<int64_t>(b)), row(p.retrieve_index.at<int64_t>(b)),
        next(p.next_token.at<int64_t>(b)), sibling(p.next_sibling.at<int64_t>(b)),
        target(p.target_predict.at<int64_t>(b)) {}
  bool padding() const { return next[0] == 0; }

  // Nodes of the accepted path, the root first; returns their number. Links have been checked.
  int walk(int64_t num_steps, int16_t* path) const {
    int count = 0, node = 0;
    path[count++] = 0;
    for (int64_t child = next[0]; child > 0 && count <= num_steps;) {
      if (tokens[child] >= 0 && tokens[child] == target[node]) {
        node = static_cast<int>(child);
        path[count++] = static_cast<int16_t>(node);
        child = next[node];
      } else {
        child = sibling[child];
      }
    }
    return count;
  }
};

// Text of the first fault of request b, or "" (writes into `text`).
bool faulty(const VerifyTreeGreedyParams& p, int64_t b, char* text, size_t size) {
  const Tree t(p, b);
  if (t.padding()) return false;
  uint64_t linked[kMaxTreeNodes / 64] = {};
  for (int i = 0; i < t.n; ++i) {
    const struct { const char* name; int64_t to; } links[] = {{"next_token", t.next[i]}, {"next_sibling", t.sibling[i]}};
    for (const auto& link : links) {
      if (link.to == -1) continue;
      const bool inside = link.to > 0 && link.to < t.n;
      if (inside && !(linked[link.to / 64] >> (link.to % 64) & 1)) {
        linked[link.to / 64] |= uint64_t{1} << (link.to % 64);
        continue;
      }
      std::snprintf(text, size, "%s: expected -1 or %s, got %lld at node %d of request %lld", link.name,
                    inside ? "a node no other link leads to" : "a node from 1 to n-1", static_cast<long long>(link.to), i,
                    static_cast<long long>(b));
      return true;
    }
    if (t.row[i] < b * t.n || t.row[i] >= (b + 1) * t.n) {
      std::snprintf(text, size, "retrieve_index: expected a row of request %lld (%lld to %lld), got %lld",
                    static_cast<long long>(b), static_cast<long long>(b * t.n), static_cast<long long>((b + 1) * t.n - 1),
                    static_cast<long long>(t.row[i]));
      return true;
    }
  }
  int16_t path[kMaxTreeNodes];
  const int count = t.walk(p.num_steps, path);
  for (int i = 0; i < count; ++i) {
    const int64_t token = t.target[path[i]];
    if (token == static_cast<int32_t>(token)) continue;
    std::snprintf(text, size, "target_predict: expected token ids below 2^31, got %lld", static_cast<long long>(token));
    return true;
  }
  return false;
}

// Is nothing wrong with request b? "No" may be wrong: where the level has no such vectors, a tree has more than 64 nodes, or
// a token off the path does not fit 32 bits.
#if defined(__AVX512F__)
bool sound(const VerifyTreeGreedyParams& p, int64_t b) {
  const Tree t(p, b);
  if (t.n > 64) return t.padding();
  const __m512i n = _mm512_set1_epi64(t.n), one = _mm512_set1_epi64(1), none = _mm512_set1_epi64(-1);
  const __m512i first_row = _mm512_set1_epi64(b * t.n);
  __m512i linked = _mm512_setzero_si512();
  int links = 0;
  uint32_t wrong = 0;
  for (int c = 0; c < t.n; c += 8) {
    const uint32_t there = t.n - c >= 8 ? 0xff : (1u << (t.n - c)) - 1;  // lanes that are nodes
    // Differences of any numbers by intrinsics, which may wrap around, as __m512i's operators may not.
    auto nodes = [=](const int64_t* v) { return _mm512_maskz_loadu_epi64(static_cast<__mmask8>(there), v + c); };
    for (const __m512i to : {nodes(t.next), nodes(t.sibling)}) {
      const uint32_t inside = _mm512_cmplt_epu64_mask(_mm512_sub_epi64(to, one), n - one) & there;
      wrong |= there & ~(inside | _mm512_cmpeq_epi64_mask(to, none));
      linked |= _mm512_maskz_sllv_epi64(static_cast<__mmask8>(inside), one, to);
      links += __builtin_popcount(inside);
    }
    const __m512i target = nodes(t.target);
    wrong |= there & ~(_mm512_cmplt_epu64_mask(_mm512_sub_epi64(nodes(t.row), first_row), n) &
                       _mm512_cmpeq_epi64_mask(target, (target << 32) >> 32));
  }
  linked |= _mm512_maskz_shuffle_i64x2(0xff, linked, linked, 0x4e);
  linked |= _mm512_maskz_shuffle_i64x2(0xff, linked, linked, 0xb1);
  // As many nodes as links: none is linked to twice.
  return t.padding() || (!wrong && __builtin_popcountll(static_cast<uint64_t>(linked[0] | linked[1])) == links);
}
#else
bool sound(const VerifyTreeGreedyParams&, int64_t) { return false; }
#endif

void verify(const VerifyTreeGreedyParams& p, int64_t b) {
  const Tree t(p, b);
  if (t.padding()) return;
  int16_t path[kMaxTreeNodes];
  const int count = t.walk(p.num_steps, path);
  int32_t* predicts = p.predicts.at<int32_t>();
  int32_t* accepted = p.accept_index.at<int32_t>(b);
  fill_run(predicts + b * t.n, t.n, -1);
  for (int i = 0; i < count; ++i) {
    predicts[t.row[path[i]]] = static_cast<int32_t>(t.target[path[i]]);
    accepted[i] = static_cast<int32_t>(t.row[path[i]]);
  }
  fill_run(accepted + count, p.num_steps + 1 - count, -1);
  *p.accept_token_num.at<int32_t>(b) = count - 1;
}

int32_t launch(const VerifyTreeGreedyParams& p, const Launch& launch) {
  const int64_t grain = grain_for(p.n * 104);
  std::atomic<int64_t> first{p.B};
  parallel(p.B, grain, [&](int64_t begin, int64_t end) {
    char text[192];
    for (int64_t b = begin; b < end; ++b) {
      if (sound(p, b) || !faulty(p, b, text, sizeof text)) continue;
      for (int64_t seen = first; b < seen && !first.compare_exchange_weak(seen, b);) {}
      break;
    }
  });
  if (first < p.B) {
    faulty(p, first, launch.error, launch.error_size);
    return DSV4_INVALID_ARGUMENT;
  }
  parallel(p.B, grain, [&](int64_t begin, int64_t end) {
    for (int64_t b = begin; b < end; ++b) verify(p, b);
  });
  return DSV4_OK;
}

}  // namespace
DSV4_CPU_KERNEL(verify_tree_greedy, VerifyTreeGreedyParams, launch)
}  // namespace dsv4::cpu
