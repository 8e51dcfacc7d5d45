// SPDX-License-Identifier: Apache-2.0
#pragma once
#include "../tensor_view.h"

namespace dsv4 {

struct MhcPostParams {
  TensorView y, residual, post, comb, out;
  int64_t T, hc, d;
};

}  // namespace dsv4
