// SPDX-License-Identifier: Apache-2.0
#pragma once
#include "../tensor_view.h"

namespace dsv4 {

struct LinearParams {
  TensorView x, w, norm_weight, out;
  int64_t T, G, N, K;
  double eps;
};

struct RouteExpertsParams {
  TensorView x, gate, bias, table, ids, topk_ids, topk_weights;
  int64_t T, E, d, k, V;
  double scaling;
};

}  // namespace dsv4
