// SPDX-License-Identifier: Apache-2.0
// Reading lengths and tables, which come as int32 or int64, and dividing by sizes of pages.
#pragma once
#include <algorithm>
#include <numeric>

#include "simd.h"
#include "tensor_view.h"

namespace dsv4::cpu {

inline int64_t int_at(const TensorView& v, int64_t i) {
  return v.dtype == kI64 ? *v.at<int64_t>(i) : *v.at<int32_t>(i);
}
inline int64_t int_at(const TensorView& v, int64_t i, int64_t j) {
  return v.dtype == kI64 ? v.at<int64_t>(i)[j] : v.at<int32_t>(i)[j];
}

// The same for loops over many, from a copy that stays in registers: a view is read again after every store of an integer.
class Ints {
 public:
  explicit Ints(const TensorView& v) : data_(v.data), pitch_(v.stride[0]), wide_(v.dtype == kI64) {}
  int64_t operator[](int64_t i) const {  // of a vector
    return wide_ ? static_cast<const int64_t*>(data_)[i] : static_cast<const int32_t*>(data_)[i];
  }
  int64_t at(int64_t i, int64_t j) const { return (*this)[i * pitch_ + j]; }
  const void* address(int64_t i, int64_t j) const {
    return static_cast<const char*>(data_) + (i * pitch_ + j) * (wide_ ? 8 : 4);
  }

 private:
  const void* data_;
  int64_t pitch_;
  bool wide_;
};

// A divisor >= 1, for numbers >= 0. Sizes of pages are powers of two as a rule: then a shift does what takes 5 ns else.
class Divisor {
 public:
  explicit constexpr Divisor(int64_t value)
      : value_(value), shift_(value & (value - 1) ? -1 : __builtin_ctzll(static_cast<uint64_t>(value))) {}
  constexpr operator int64_t() const { return value_; }
  constexpr int64_t quotient(int64_t x) const { return shift_ >= 0 ? x >> shift_ : x / value_; }
  constexpr int64_t rest(int64_t x) const { return shift_ >= 0 ? x & (value_ - 1) : x % value_; }

 private:
  int64_t value_;
  int shift_;
};

// std::iota and std::fill of runs that are short as a rule: one store, where those take a call or a loop's set-up.
inline void write_run(int64_t* out, int64_t count, int64_t first) {
#if defined(__AVX512F__)
  const __m512i lanes = _mm512_setr_epi64(0, 1, 2, 3, 4, 5, 6, 7);
  for (int64_t i = 0; i < count; i += 8)
    _mm512_mask_storeu_epi64(out + i, static_cast<__mmask8>(count - i >= 8 ? 0xff : (1 << (count - i)) - 1),
                             _mm512_add_epi64(_mm512_set1_epi64(first + i), lanes));  // masked lanes may wrap
#else
  std::iota(out, out + count, first);
#endif
}
inline void fill_run(int32_t* out, int64_t count, int32_t value) {
#if defined(__AVX512F__)
  for (int64_t i = 0; i < count; i += 16)
    _mm512_mask_storeu_epi32(out + i, static_cast<__mmask16>(count - i >= 16 ? 0xffff : (1 << (count - i)) - 1),
                             _mm512_set1_epi32(value));
#else
  std::fill(out, out + count, value);
#endif
}

}  // namespace dsv4::cpu
