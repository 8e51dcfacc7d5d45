// SPDX-License-Identifier: Apache-2.0
#pragma once
#include "../tensor_view.h"

namespace dsv4 {

struct NextnFuseHiddenParams {
  TensorView embeds, hidden, enorm_weight, hnorm_weight, e_proj, h_proj;
  TensorView e_proj_scale, h_proj_scale;  // absent unless the weights are e4m3 (u8 bytes) or i8 (f32)
  TensorView out;
  int64_t T, hc, d;
  double eps;
};

struct MhcPreParams {
  TensorView residual, fn, base, scale, norm_weight;  // norm_weight may be absent
  TensorView y, post, comb;
  int64_t T, hc, d;
  double rms_eps, hc_eps;
  int64_t sinkhorn_iters;
};

struct MhcPostParams {
  TensorView y, residual, post, comb, out;
  int64_t T, hc, d;
};

struct MhcPostPreParams {
  TensorView y, residual, post, comb, fn, base, scale, norm_weight;  // norm_weight may be absent
  TensorView residual_out, y_out, post_out, comb_out;
  int64_t T, hc, d;
  double rms_eps, hc_eps;
  int64_t sinkhorn_iters;
};

struct MhcHeadParams {
  TensorView residual, fn, base, scale, norm_weight;  // norm_weight may be absent
  TensorView y;
  int64_t T, hc, d;
  double rms_eps, hc_eps;
};

}  // namespace dsv4
