// SPDX-License-Identifier: Apache-2.0
// The plain tensor that launchers read. Shared by every compiler (host, nvcc, AscendC host): no torch, CUDA or CANN words.
#pragma once
#include <cstdint>

namespace dsv4 {

enum Dtype : int32_t { kF32, kBF16, kF8E4M3, kE8M0, kI8, kU8, kU16, kU32, kI32, kI64, kBool, kF16 };

constexpr int kMaxDims = 4;
constexpr int64_t kMaxPageId = INT32_MAX;  // with page sizes below 2^31 no slot overflows

struct TensorView {
  void* data;                 // nullptr: an absent optional tensor
  int64_t shape[kMaxDims];
  int64_t stride[kMaxDims];   // in elements
  int32_t ndim;
  Dtype dtype;

  explicit operator bool() const { return data != nullptr; }
  template <class T>
  T* at(int64_t i = 0, int64_t j = 0, int64_t k = 0) const {
    return static_cast<T*>(data) + i * stride[0] + j * stride[1] + k * stride[2];
  }
};

}  // namespace dsv4
