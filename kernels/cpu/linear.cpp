// SPDX-License-Identifier: Apache-2.0
// linear: rows that are not fp32, or are to be normed, are laid out as floats in the workspace; then the products, group
// by group. Few rows are bound by reading W once, many by the products. Contract: include/dsv4spec/dense.h.
#include "products.h"

namespace dsv4::cpu {
namespace {

using Params = LinearParams;

int64_t width(const Params& p) { return p.G * p.K; }
bool copies(const Params& p) { return p.norm_weight || p.x.dtype != kF32; }

uint64_t workspace_size(const Params& p) { return copies(p) ? p.T * width(p) * sizeof(float) : 0; }

template <class X>
void lay_out(const Params& p, float* rows) {
  const int64_t n = width(p);
  parallel(p.T, grain_for(n * (sizeof(X) + sizeof(float))), [&](int64_t begin, int64_t end) {
    for (int64_t t = begin; t < end; ++t) {
      const X* row = p.x.at<X>(t);
      float* out = rows + t * n;
      if (p.norm_weight)
        scale_row<X>(row, p.norm_weight, inverse_rms(sum_squares(row, n), n, p.eps), n, out);
      else
        for_vectors(n, [&](int64_t i, int count) { store_some(out + i, load_some(row + i, count), count); });
    }
  });
}

template <class Y, class Out>
void run(const Params& p, float* room) {
  const float* x = p.x.at<float>();
  int64_t pitch = p.x.stride[0];
  if (copies(p)) {
    p.x.dtype == kF32 ? lay_out<float>(p, room) : lay_out<bf16>(p, room);
    x = room, pitch = width(p);
  }
  for (int64_t g = 0; g < p.G; ++g)
    products(x + g * p.K, pitch, p.T, p.w.at<Y>(g * p.K), p.w.stride[0], p.N, p.K,
             p.K * p.N * static_cast<int64_t>(sizeof(Y)) >= kFar,
             [&](int64_t t, int64_t n, const float* sums, int64_t columns) {
               Out* out = p.out.at<Out>(t) + g * p.N + n;
               for_vectors(columns, [&](int64_t i, int count) { store_some(out + i, load(sums + i), count); });
             });
}

int32_t launch(const Params& p, const Launch& l) {
  auto* room = static_cast<float*>(l.workspace);
  if (p.w.dtype == kF32) run<float, float>(p, room);
  else if (p.x.dtype == kF32) run<bf16, float>(p, room);
  else run<bf16, bf16>(p, room);
  return DSV4_OK;
}

}  // namespace
DSV4_CPU_KERNEL_WITH_WORKSPACE(linear, LinearParams, launch, workspace_size)
}  // namespace dsv4::cpu
