// SPDX-License-Identifier: Apache-2.0
// verify_metadata for sixteen requests at once, of which each emits one entry at most, with AVX-512: 32-bit lengths and tables,
// and pages of 2^i entries.
#pragma once
#include "ints.h"
#include "kernel.h"

namespace dsv4::cpu {

template <int kRatio>
struct Sixteens {
  const VerifyMetadataParams& p;
  const TensorView& table;
  int64_t page;

#if defined(__AVX512F__)
  bool suit() const {
    constexpr int64_t most = INT32_MAX;  // of the places that are counted in 32 bits
    return page > 0 && !(page & (page - 1)) && p.n <= kRatio && p.live_seq_lens.dtype == kI32 && table.dtype == kI32 &&
           page <= most && p.B * p.n <= most && table.shape[1] <= most && p.B * table.stride[0] <= most - table.shape[1];
  }

  // Has every entry its page? If not, check() finds which has not. Meanwhile write()'s positions are fetched.
  bool sound() const {
    bool all = true;
    for (int64_t b = 0; b < p.B; b += 16) {
      const Entries e(*this, b);
      for (int64_t i = 0; i < 16 * p.n; i += 8) __builtin_prefetch(p.positions.at<int64_t>() + b * p.n + i);
      if (e.emits) all &= _mm512_mask_cmpge_epi32_mask(e.emits, e.pages(*this, b), _mm512_setzero_si512()) == e.emits;
    }
    return all;
  }

  // Writes the first positions of all entries' groups and their places; returns the number of entries.
  int64_t write(int64_t* value, int64_t* loc) const {
    const int64_t *positions = p.positions.at<int64_t>(), B = p.B, n = p.n;
    const __m512i rows = _mm512_mullo_epi32(lanes(), all(n)), in_page = all(page - 1), first = _mm512_set1_epi64(kRatio - 1);
    const __m128i shift = _mm_cvtsi32_si128(__builtin_ctzll(static_cast<uint64_t>(page)));
    int64_t place = 0;
    for (int64_t b = 0; b < B; b += 16) {
      const Entries e(*this, b);
      if (!e.emits) continue;
      const __m512i row = _mm512_add_epi32(rows, e.j), id = e.pages(*this, b), rest = e.group & in_page;
      auto half = [&](__mmask8 emits, __m256i row8, __m256i id8, __m256i rest8) {
        const __m512i zero = _mm512_setzero_si512();
        const __m512i position = _mm512_mask_i32gather_epi64(zero, emits, row8, positions + b * n, 8);
        const __m512i slot = _mm512_maskz_sll_epi64(emits, _mm512_maskz_cvtepi32_epi64(emits, id8), shift) +
                             _mm512_maskz_cvtepi32_epi64(emits, rest8);
        const int count = __builtin_popcount(emits);
        const __mmask8 packed = static_cast<__mmask8>((1 << count) - 1);
        _mm512_mask_storeu_epi64(value + place, packed, _mm512_maskz_compress_epi64(emits, position - first));
        _mm512_mask_storeu_epi64(loc + place, packed, _mm512_maskz_compress_epi64(emits, slot));
        place += count;
      };
      half(static_cast<__mmask8>(e.emits), low(row), low(id), low(rest));
      half(static_cast<__mmask8>(e.emits >> 8), high(row), high(id), high(rest));
    }
    return place;
  }

 private:
  static __m512i lanes() { return _mm512_setr_epi32(0, 1, 2, 3, 4, 5, 6, 7, 8, 9, 10, 11, 12, 13, 14, 15); }
  static __m512i all(int64_t x) { return _mm512_set1_epi32(static_cast<int>(x)); }
  static __m256i low(__m512i v) { return _mm512_maskz_extracti32x8_epi32(0xff, v, 0); }
  static __m256i high(__m512i v) { return _mm512_maskz_extracti32x8_epi32(0xff, v, 1); }

  // What requests b to b + 15 emit: row j of the window, entry `group` of the request.
  struct Entries {
    __mmask16 emits;
    __m512i j, group;

    Entries(const Sixteens& of, int64_t b) {
      const int64_t left = of.p.B - b;
      const __mmask16 there = static_cast<__mmask16>(left >= 16 ? 0xffff : (1 << left) - 1);
      const __m512i s = _mm512_maskz_loadu_epi32(there, of.p.live_seq_lens.template at<int32_t>() + b);
      j = _mm512_sub_epi32(all(kRatio - 1), s & all(kRatio - 1));
      emits = _mm512_mask_cmpgt_epi32_mask(_mm512_cmplt_epi32_mask(j, all(of.p.n)), s, _mm512_setzero_si512());
      group = _mm512_maskz_srli_epi32(0xffff, _mm512_add_epi32(s, j), __builtin_ctz(kRatio));
    }
    // Their pages, -1 beyond the table.
    __m512i pages(const Sixteens& of, int64_t b) const {
      const __m128i shift = _mm_cvtsi32_si128(__builtin_ctzll(static_cast<uint64_t>(of.page)));
      const __m512i column = _mm512_maskz_srl_epi32(0xffff, group, shift);
      const __mmask16 inside = _mm512_mask_cmplt_epi32_mask(emits, column, all(of.table.shape[1]));
      const __m512i at = _mm512_add_epi32(_mm512_mullo_epi32(lanes(), all(of.table.stride[0])), column);
      return _mm512_mask_i32gather_epi32(all(-1), inside, at, of.table.template at<int32_t>(b), 4);
    }
  };
#else
  bool suit() const { return false; }
  bool sound() const { return false; }
  int64_t write(int64_t*, int64_t*) const { return 0; }
#endif
};

}  // namespace dsv4::cpu
