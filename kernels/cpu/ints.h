// SPDX-License-Identifier: Apache-2.0
// Reading lengths and tables, which come as int32 or int64.
#pragma once
#include "tensor_view.h"

namespace dsv4::cpu {

inline int64_t int_at(const TensorView& v, int64_t i) {
  return v.dtype == kI64 ? *v.at<int64_t>(i) : *v.at<int32_t>(i);
}
inline int64_t int_at(const TensorView& v, int64_t i, int64_t j) {
  return v.dtype == kI64 ? v.at<int64_t>(i)[j] : v.at<int32_t>(i)[j];
}

}  // namespace dsv4::cpu
