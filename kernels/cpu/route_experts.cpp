// SPDX-License-Identifier: Apache-2.0
// route_experts: the products with parts of the gate's rows into the workspace, then row by row their sum, the scores, the
// choice and the weights.
// Bound by reading the gate. Contract: include/dsv4spec/dense.h.
#include "ints.h"
#include "products.h"

namespace dsv4::cpu {
namespace {

using Params = RouteExpertsParams;

constexpr int64_t kPart = 1024;  // rows of the gate that a range takes, whole: they lie one after the other in memory

int64_t parts(const Params& p) { return std::max<int64_t>((p.d + kPart - 1) / kPart, 1); }
int64_t block(const Params& p) { return std::min(p.T, kRowBlock); }  // rows of x between two barriers
int64_t x_floats(const Params& p) { return p.x.dtype == kF32 ? 0 : block(p) * p.d; }  // x as floats, behind the sums

uint64_t workspace_size(const Params& p) { return (parts(p) * block(p) * p.E + x_floats(p)) * sizeof(float); }

// log(1 + u) for u in [0, 1] as 2 atanh(u / (2 + u)): its argument is at most 1/3, so that eight terms are enough for fp32.
vf log1p(vf u) {
  const vf s = u / (2.0f + u), q = s * s;
  vf p = splat(2.0f / 15);
  for (int n = 13; n >= 1; n -= 2) p = p * q + 2.0f / n;
  return p * s;
}

// score[i] = sqrt(log(1 + exp(z[i]))), in place.
void to_scores(float* z, int64_t count) {
  for_vectors(count, [&](int64_t i, int n) {
    const vf x = load_some(z + i, n), size = vmax(x, -x);
    store_some(z + i, vsqrt(vmax(splat(0.0f), x) + log1p(vexp(-size))), n);  // NaN stays NaN in vexp
  });
}

// Is a chosen before b, both with their expert number? NaN counts as the largest.
bool before(float a, int64_t i, float b, int64_t j) {
  const bool a_nan = a != a, b_nan = b != b;
  if (a_nan != b_nan) return a_nan;
  return a == b || a_nan ? i < j : a > b;
}

// The k best of score + bias into ids, in order.
void choose(const Params& p, const float* score, int32_t* ids) {
  const float* bias = p.bias.at<const float>();
  auto key = [&](int64_t e) { return score[e] + bias[e * p.bias.stride[0]]; };
  int64_t count = 0;
  float worst = 0;  // of the k best so far: hardly any other gets past it
  for (int64_t e = 0; e < p.E; ++e) {
    int64_t at = count;
    if (at == p.k && key(e) <= worst) continue;
    while (at > 0 && before(key(e), e, key(ids[at - 1]), ids[at - 1])) --at;
    if (at == p.k) continue;
    if (count < p.k) ++count;
    for (int64_t i = count - 1; i > at; --i) ids[i] = ids[i - 1];
    ids[at] = static_cast<int32_t>(e);
    worst = key(ids[count - 1]);
  }
}

// Row t: the ids and weights, from the sums of all parts of x times the gate, which lie `pitch` apart.
void route(const Params& p, int64_t t, float* sums, int64_t pitch) {
  int32_t* ids = p.topk_ids.at<int32_t>(t);
  float *weights = p.topk_weights.at<float>(t), *score = sums, sum = 0;
  for (int64_t part = 1; part < parts(p); ++part)
    for (int64_t e = 0; e < p.E; ++e) score[e] += sums[part * pitch + e];
  if (p.table) {
    for (int64_t i = 0; i < p.k; ++i) {
      ids[i] = static_cast<int32_t>(int_at(p.table, int_at(p.ids, t), i));
      weights[i] = score[ids[i]];
    }
    to_scores(weights, p.k);
  } else {
    to_scores(score, p.E);
    choose(p, score, ids);
    for (int64_t i = 0; i < p.k; ++i) weights[i] = score[ids[i]];
  }
  for (int64_t i = 0; i < p.k; ++i) sum += weights[i];
  const float factor = static_cast<float>(p.scaling) / (sum + 1e-20f);
  for (int64_t i = 0; i < p.k; ++i) weights[i] *= factor;
}

template <class Y>
void run(const Params& p, float* sums) {
  const int64_t pitch = block(p) * p.E;  // of the parts' sums
  float* room = sums + parts(p) * pitch;
  for (int64_t t0 = 0; t0 < p.T; t0 += kRowBlock) {
    const int64_t rows = std::min(kRowBlock, p.T - t0);
    parallel(parts(p), grain_for(kPart * p.E * (sizeof(Y) + rows / 8 * sizeof(float))), [&](int64_t begin, int64_t end) {
      for (int64_t part = begin; part < end; ++part) {
        const int64_t first = part * kPart, depth = std::min(kPart, p.d - first);
        const float* x = p.x.at<float>(t0) + first;
        int64_t x_pitch = p.x.stride[0];
        if (x_floats(p)) {
          for (int64_t t = 0; t < rows; ++t)
            for_vectors(depth, [&](int64_t i, int count) {
              store_some(room + t * p.d + first + i, load_some(p.x.at<bf16>(t0 + t) + first + i, count), count);
            });
          x = room + first, x_pitch = p.d;
        }
        products(x, x_pitch, rows, p.gate.at<Y>(first), p.gate.stride[0], p.E, depth,
                 p.E * p.d * static_cast<int64_t>(sizeof(Y)) >= kFar,
                 [&](int64_t t, int64_t e, const float* z, int64_t count) {
                   std::copy_n(z, count, sums + part * pitch + t * p.E + e);
                 });
      }
    });
    parallel(rows, grain_for(128 * p.E), [&](int64_t begin, int64_t end) {
      for (int64_t t = begin; t < end; ++t) route(p, t0 + t, sums + t * p.E, pitch);
    });
  }
}

int32_t launch(const Params& p, const Launch& launch) {
  if (p.table)
    for (int64_t t = 0; t < p.T; ++t) {
      const int64_t row = int_at(p.ids, t);
      if (row < 0 || row >= p.V)
        return refuse(launch, "ids: expected a row of table [0, %lld) in row %lld, got %lld", (long long)p.V, (long long)t,
                      (long long)row);
      for (int64_t i = 0; i < p.k; ++i)
        if (const int64_t e = int_at(p.table, row, i); e < 0 || e >= p.E)
          return refuse(launch, "table: expected an expert in [0, %lld) in row %lld, got %lld", (long long)p.E,
                        (long long)row, (long long)e);
    }
  auto* sums = static_cast<float*>(launch.workspace);
  p.gate.dtype == kF32 ? run<float>(p, sums) : run<bf16>(p, sums);
  return DSV4_OK;
}

}  // namespace
DSV4_CPU_KERNEL_WITH_WORKSPACE(route_experts, RouteExpertsParams, launch, workspace_size)
}  // namespace dsv4::cpu
