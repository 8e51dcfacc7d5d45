// SPDX-License-Identifier: Apache-2.0
// The coefficients of mhc_pre from its columns, for W tokens at once (one a lane).
#pragma once
#include "mhc.h"

namespace dsv4::cpu {

// c: the logits, then comb. Softmax over the second index is the first row step; the last step is a column step.
template <int HC>
inline void sinkhorn(vf (&c)[HC][HC], float eps, int64_t iters) {
  for (int i = 0; i < HC; ++i) {
    vf top = c[i][0], sum{};
    for (int j = 1; j < HC; ++j) top = vmax(top, c[i][j]);
    for (int j = 0; j < HC; ++j) sum += c[i][j] = vexp(c[i][j] - top);
    for (int j = 0; j < HC; ++j) c[i][j] = c[i][j] / sum + eps;
  }
  auto columns = [&] {
    for (int j = 0; j < HC; ++j) {
      vf sum = c[0][j];
      for (int i = 1; i < HC; ++i) sum += c[i][j];
      const vf r = 1.0f / (sum + eps);
      for (int i = 0; i < HC; ++i) c[i][j] *= r;
    }
  };
  auto rows = [&] {
    for (int i = 0; i < HC; ++i) {
      vf sum = c[i][0];
      for (int j = 1; j < HC; ++j) sum += c[i][j];
      const vf r = 1.0f / (sum + eps);
      for (int j = 0; j < HC; ++j) c[i][j] *= r;
    }
  };
  columns();
  for (int64_t n = 1; n < iters; ++n) {
    rows();
    columns();
  }
}

// Writes post and comb of `count` tokens from t; weights[HC] = pre.
template <int HC>
inline void pre_coefficients(const MhcRows& p, const TensorView& post, const TensorView& comb, int64_t iters,
                             int64_t t, int count, const vf* m, vf* weights) {
  const float* scale = p.scale.at<const float>();
  const float* base = p.base.at<const float>();
  const float eps = static_cast<float>(p.hc_eps);
  vf c[HC][HC];
  for (int i = 0; i < HC; ++i) {
    weights[i] = sigmoid(m[i] * scale[0] + base[i]) + eps;
    const vf two_sigmoid = 2.0f * sigmoid(m[HC + i] * scale[1] + base[HC + i]);
    for (int lane = 0; lane < count; ++lane) *post.at<float>(t + lane, i) = two_sigmoid[lane];
    for (int j = 0; j < HC; ++j) {
      const int column = 2 * HC + i * HC + j;
      c[i][j] = m[column] * scale[2] + base[column];
    }
  }
  sinkhorn(c, eps, iters);
  for (int i = 0; i < HC; ++i)
    for (int j = 0; j < HC; ++j)
      for (int lane = 0; lane < count; ++lane) *comb.at<float>(t + lane, i, j) = c[i][j][lane];
}

}  // namespace dsv4::cpu
