// SPDX-License-Identifier: Apache-2.0
// build_tree for up to eight nodes: a node a lane, no branch a node. Only with AVX-512, and not for the full mask.
#pragma once
#include "dsv4spec/tree.h"
#include "ints.h"
#include "kernel.h"

namespace dsv4::cpu {

#if defined(__AVX512F__)
inline bool is_small(const BuildTreeParams& p) { return p.n <= 8 && p.mask_mode != DSV4_TREE_MASK_FULL; }

namespace small {

inline __m512i from_lanes(__m512i v, __m512i places) { return _mm512_maskz_permutexvar_epi64(0xff, places, v); }
inline __m512i chosen(__m512i otherwise, __mmask8 where, __m512i v) { return _mm512_mask_mov_epi64(otherwise, where, v); }
// Numbers of nodes have 32 bits: half as much work, and wider only where they are stored.
inline __m256i from_lanes(__m256i v, __m256i places) { return _mm256_maskz_permutexvar_epi32(0xff, places, v); }
inline __m256i chosen(__m256i otherwise, __mmask8 where, __m256i v) { return _mm256_mask_mov_epi32(otherwise, where, v); }
inline __m512i wide(__m256i v) { return _mm512_maskz_cvtepi32_epi64(0xff, v); }

// parent[i] of the lanes that are drafts, -1 where there is none and in the others. `selected`: their flat numbers; inverse:
// 1 / topk.
inline __m256i parents(__m512i selected, const int64_t* flat, const int64_t* list, int64_t width, __m512d inverse, int n,
                       __m512i lane) {
  const __m512i zero = _mm512_setzero_si512(), limit = _mm512_set1_epi64(width);
  const __mmask8 drafts = static_cast<__mmask8>((1 << n) - 2);
  // The half keeps away from whole numbers, so that the product is exact for all groups of a list, which ends below 2^17;
  // what is beyond stays beyond.
  const __m512i group = _mm512_cvttpd_epi64(_mm512_fmadd_pd(_mm512_cvtepi64_pd(selected), inverse, 0.5 * inverse));
  const __mmask8 known = _mm512_mask_cmpge_epi64_mask(drafts, selected, zero);
  const __mmask8 of_root = _mm512_mask_cmpeq_epi64_mask(known, group, zero);
  const __mmask8 listed = _mm512_mask_cmplt_epi64_mask(_mm512_mask_cmpgt_epi64_mask(known, group, zero), group, limit);
  __m512i wanted;
  if (width <= 8) wanted = from_lanes(_mm512_maskz_loadu_epi64(static_cast<__mmask8>((1 << width) - 1), list), group);
  else wanted = _mm512_mask_i64gather_epi64(zero, listed, group, list, 8);
  __m512i first = _mm512_set1_epi64(8);  // the first node whose number is wanted
  for (int c = n - 1; c > 0; --c)
    first = chosen(first, _mm512_cmpeq_epi64_mask(wanted, _mm512_set1_epi64(flat[c - 1])), _mm512_set1_epi64(c));
  const __mmask8 earlier = _mm512_mask_cmplt_epi64_mask(listed, first, lane);
  return _mm512_maskz_cvtepi64_epi32(0xff, chosen(chosen(_mm512_set1_epi64(-1), of_root, zero), earlier, first));
}

// The lanes' bits, those of lane i from places[i] on.
inline uint64_t joined(__m512i rows, __m512i places) {
  __m512i bits = _mm512_maskz_sllv_epi64(0xff, rows, places);
  bits |= _mm512_maskz_shuffle_i64x2(0xff, bits, bits, 0x4e);
  bits |= _mm512_maskz_shuffle_i64x2(0xff, bits, bits, 0xb1);
  return static_cast<uint64_t>(bits[0] | bits[1]);
}

}  // namespace small

inline void build_small(const BuildTreeParams& p, int64_t begin, int64_t end) {
  using namespace small;
  const Ints lengths(p.live_seq_lens);
  const int n = static_cast<int>(p.n);
  const int64_t width = p.parent_list.shape[1];
  const __m512d inverse = _mm512_set1_pd(1 / static_cast<double>(p.topk));
  const bool bytes = p.mask_mode == DSV4_TREE_MASK_QLEN;
  const TensorView selected_of = p.selected_index, list_of = p.parent_list, drafts_of = p.draft_tokens, tokens_of = p.tokens;
  const TensorView retrieve_of = p.retrieve_index, next_of = p.next_token, sibling_of = p.next_sibling;
  const int64_t* bonus = p.bonus_tokens.at<int64_t>();
  int64_t* positions = p.positions.at<int64_t>();
  uint8_t* mask = static_cast<uint8_t*>(p.tree_mask.data);
  int32_t* status = p.status ? p.status.at<int32_t>() : nullptr;

  const __m256i lane = _mm256_setr_epi32(0, 1, 2, 3, 4, 5, 6, 7), none = _mm256_set1_epi32(-1), eight = _mm256_set1_epi32(8);
  const __m256i backwards = _mm256_sub_epi32(_mm256_set1_epi32(7), lane), own = _mm256_sllv_epi32(_mm256_set1_epi32(1), lane);
  const __m512i lane64 = wide(lane), before = lane64 - 1, places = lane64 * n;
  const __mmask8 nodes = static_cast<__mmask8>((1 << n) - 1), in_memory = static_cast<__mmask8>(nodes >> 1);
  const uint64_t square = n == 8 ? ~uint64_t{0} : (uint64_t{1} << (n * n)) - 1;
  for (int64_t b = begin; b < end; ++b) {
    const int64_t s = lengths[b];
    if (s <= 0) {
      if (status) status[b] = 0;
      continue;
    }
    const int64_t* flat = selected_of.at<int64_t>(b);
    const __m512i selected = from_lanes(_mm512_maskz_loadu_epi64(in_memory, flat), before);
    const __m256i parent = parents(selected, flat, list_of.at<int64_t>(b), width, inverse, n, lane64);
    const __mmask8 has = _mm256_cmpge_epi32_mask(parent, _mm256_setzero_si256());
    if (status) status[b] = (has | 1) != nodes;

    // Ancestors as bits 0 to 7 and their number above, twice as far up with every round: the sets are disjoint.
    __m256i up = parent, row = _mm256_or_si256(own, _mm256_maskz_set1_epi32(has, 1 << 8));
    __mmask8 higher = has;
    for (int round = 0; round < 3; ++round) {
      row = _mm256_add_epi32(row, _mm256_maskz_permutexvar_epi32(higher, up, row));
      up = _mm256_mask_permutexvar_epi32(none, higher, up, up);
      higher = _mm256_cmpge_epi32_mask(up, _mm256_setzero_si256());
    }
    const __m512i depth = wide(_mm256_srli_epi32(row, 8)), rows = wide(row) | 1;

    // The next sibling is the lowest of the later nodes with the same parent: back to front, the nearest lane before.
    const __m256i family = from_lanes(chosen(_mm256_sub_epi32(none, lane), has, parent), backwards);  // others: each its own
    const __m256i nearest = _mm256_sub_epi32(_mm256_lzcnt_epi32(_mm256_conflict_epi32(family)), _mm256_set1_epi32(24));
    const __m256i sibling = from_lanes(chosen(nearest, _mm256_cmpeq_epi32_mask(nearest, eight), none), backwards);
    __m256i next = none;
    for (int c = n - 1; c > 0; --c) {  // downward: a list of children begins with the lowest
      const __m256i child = _mm256_set1_epi32(c);
      next = chosen(next, _mm256_cmpeq_epi32_mask(lane, from_lanes(parent, child)), child);
    }
    const __m512i drafts = from_lanes(_mm512_maskz_loadu_epi64(in_memory, drafts_of.at<int64_t>(b)), before);
    _mm512_mask_storeu_epi64(tokens_of.at<int64_t>(b), nodes, chosen(drafts, 1, _mm512_set1_epi64(bonus[b])));
    _mm512_mask_storeu_epi64(positions + b * n, nodes, depth + s);
    _mm512_mask_storeu_epi64(retrieve_of.at<int64_t>(b), nodes, lane64 + b * n);
    _mm512_mask_storeu_epi64(next_of.at<int64_t>(b), nodes, wide(next));
    _mm512_mask_storeu_epi64(sibling_of.at<int64_t>(b), nodes, wide(sibling));
    if (bytes) {
      const __m512i bits = _mm512_maskz_and_epi64(nodes, rows, _mm512_set1_epi64(0xff));
      const __m512i ones = _mm512_maskz_set1_epi8(joined(bits, places), 1);
      _mm512_mask_storeu_epi8(mask + b * n * n, square, ones);
    } else {
      _mm_mask_storeu_epi8(mask + b * n, nodes, _mm512_maskz_cvtepi64_epi8(nodes, rows));
    }
  }
}
#else
inline bool is_small(const BuildTreeParams&) { return false; }
inline void build_small(const BuildTreeParams&, int64_t, int64_t) {}
#endif

}  // namespace dsv4::cpu
