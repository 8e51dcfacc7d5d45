// SPDX-License-Identifier: Apache-2.0
// What the integer ops share: tensors of either index dtype, rows with a stride, division by a number that the host
// knows, sums over a block.
#pragma once
#include "kernel.cuh"

namespace dsv4::cuda {

// An int32 or int64 tensor of one or two dimensions, the innermost one contiguous.
struct Ints {
  const void* data;
  int64_t stride;  // of the rows
  bool wide;

  DSV4_DEVICE int64_t operator()(int64_t i) const {
    return wide ? static_cast<const int64_t*>(data)[i] : static_cast<const int32_t*>(data)[i];
  }
  DSV4_DEVICE int64_t operator()(int64_t row, int64_t column) const { return (*this)(row * stride + column); }
};
inline Ints ints_of(const TensorView& v) { return {v.data, v.stride[0], v.dtype == kI64}; }

template <class T>
struct Rows {
  T* data;
  int64_t stride;
  DSV4_DEVICE T* operator[](int64_t row) const { return data + row * stride; }
};
template <class T>
inline Rows<T> rows_of(const TensorView& v) { return {v.at<T>(), v.stride[0]}; }

// a + b for any numbers: two's complement, as the references have it.
DSV4_DEVICE int64_t wrapping_sum(int64_t a, int64_t b) {
  return static_cast<int64_t>(static_cast<uint64_t>(a) + static_cast<uint64_t>(b));
}

// Division of non-negative numbers by `value` >= 1: a shift or 32 bits wherever they do, 64 bits cost some hundred
// instructions.
struct Divisor {
  uint64_t value;
  int shift;  // -1: no power of two

  explicit Divisor(int64_t v) : value(static_cast<uint64_t>(v)), shift(-1) {
    for (int i = 0; i < 63; ++i)
      if (value == uint64_t{1} << i) shift = i;
  }
  DSV4_DEVICE int64_t quotient(int64_t x) const {
    const uint64_t u = static_cast<uint64_t>(x);
    if (shift >= 0) return static_cast<int64_t>(u >> shift);
    if (((u | value) >> 32) == 0) return static_cast<uint32_t>(u) / static_cast<uint32_t>(value);
    return static_cast<int64_t>(u / value);
  }
  DSV4_DEVICE int64_t remainder(int64_t x) const { return x - quotient(x) * static_cast<int64_t>(value); }
  DSV4_DEVICE int64_t rounded_up(int64_t x) const { return quotient(x) + (remainder(x) != 0); }
};

DSV4_DEVICE int64_t warp_sum(int64_t v) {
#pragma unroll
  for (int o = 16; o; o >>= 1) v += __shfl_xor_sync(kAllLanes, v, o);
  return v;
}

// The sum of v over the block's kWarps warps, in every thread; `scratch` as for the float block_sum.
template <int kWarps>
DSV4_DEVICE int64_t block_sum(int64_t v, int64_t* scratch) {
  v = warp_sum(v);
  if (threadIdx.x % kWarp == 0) scratch[threadIdx.x / kWarp] = v;
  __syncthreads();
  int64_t total = 0;
#pragma unroll
  for (int i = 0; i < kWarps; ++i) total += scratch[i];
  return total;
}

}  // namespace dsv4::cuda
