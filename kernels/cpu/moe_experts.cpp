// SPDX-License-Identifier: Apache-2.0
// moe_experts, in four passes over the (row, expert) pairs: g and u = w13 x, h = weight * silu(g) * u, y = w2 h, and the
// sum of a row's pairs in the order of its choices, the shared experts last.
// Pairs are sorted by expert, so that an expert's weights are read once for all its rows; a work item is a panel of
// two g and two u columns, then of four y columns. Few rows are bound by reading weights, many
// by the products. Contract: include/dsv4spec/target.h.
#include <algorithm>

#include "gemm.h"
#include "kernel.h"
#include "ints.h"
#include "rmsnorm.h"

namespace dsv4::cpu {
namespace {

using Params = MoeExpertsParams;
constexpr int N = kTileColumns;
constexpr int64_t kRows = 8 * kTileRows;  // pairs between two stores: their partial sums lie on the stack
static_assert(N == 4, "a panel is two gate and two up rows");

// Pairs of one expert: `pair` [begin, end) in the sorted order. expert = E: the shared ones.
struct Group {
  int32_t expert, begin, end, inter, panels, first_panel;
};

int64_t aligned(int64_t bytes) { return (bytes + 63) / 64 * 64; }
int64_t pairs_of(const Params& p) { return p.T * (p.k + (p.shared_w13 ? 1 : 0)); }
int64_t x_pitch(const Params& p) { return (p.d + 31) / 32 * 32 + 32; }
int64_t h_pitch(const Params& p) { return (std::max(p.inter, p.shared_inter) + 31) / 32 * 32 + 32; }
int64_t y_pitch(const Params& p) { return (p.d + 15) / 16 * 16; }

struct Plan {  // the workspace
  Group* groups;
  int32_t *row, *place;  // sorted pair -> row; pair (row-major, k a row, then the shared ones) -> sorted, or -1
  float *weight, *h, *u, *y;  // g, then h
  char* x;  // rows in sorted order
  int64_t bytes;
};

Plan plan_of(const Params& p, void* memory) {
  char* at = static_cast<char*>(memory);
  auto take = [&](int64_t bytes) {
    char* start = at;
    at += aligned(bytes);
    return start;
  };
  const int64_t n = pairs_of(p);
  Plan plan;
  plan.groups = reinterpret_cast<Group*>(take((p.E + 2) * sizeof(Group)));
  plan.row = reinterpret_cast<int32_t*>(take(n * 4));
  plan.place = reinterpret_cast<int32_t*>(take(n * 4));
  plan.weight = reinterpret_cast<float*>(take(n * 4));
  plan.h = reinterpret_cast<float*>(take(n * h_pitch(p) * 4));
  plan.u = reinterpret_cast<float*>(take(n * h_pitch(p) * 4));
  plan.y = reinterpret_cast<float*>(take(n * y_pitch(p) * 4));
  plan.x = take(n * x_pitch(p) * (p.x.dtype == kF32 ? 4 : 2));
  plan.bytes = at - static_cast<char*>(memory);
  return plan;
}

uint64_t workspace_size(const Params& p) { return plan_of(p, nullptr).bytes; }

// Sorts the pairs by expert (stable); returns the groups that have any.
int sort_pairs(const Params& p, const Plan& plan) {
  Group* all = plan.groups;
  for (int64_t e = 0; e <= p.E; ++e) all[e] = Group{static_cast<int32_t>(e), 0, 0, 0, 0, 0};
  for (int64_t t = 0; t < p.T; ++t)
    for (int64_t i = 0; i < p.k; ++i)
      if (const int64_t e = int_at(p.topk_ids, t, i); e >= 0) ++all[e].end;
  if (p.shared_w13) all[p.E].end = static_cast<int32_t>(p.T);
  int32_t sum = 0;
  for (int64_t e = 0; e <= p.E; ++e) {
    const int32_t count = all[e].end;
    all[e].begin = all[e].end = sum;
    sum += count;
  }
  auto put = [&](int64_t e, int64_t pair, int64_t t, float weight) {
    const int32_t at = all[e].end++;
    plan.place[pair] = at, plan.row[at] = static_cast<int32_t>(t), plan.weight[at] = weight;
  };
  for (int64_t t = 0; t < p.T; ++t)
    for (int64_t i = 0; i < p.k; ++i) {
      const int64_t e = int_at(p.topk_ids, t, i), pair = t * p.k + i;
      if (e >= 0) put(e, pair, t, p.topk_weights.at<float>(t)[i]);
      else plan.place[pair] = -1;
    }
  if (p.shared_w13)
    for (int64_t t = 0; t < p.T; ++t) put(p.E, p.T * p.k + t, t, 1.0f);
  int kept = 0;
  for (int64_t e = 0; e <= p.E; ++e)
    if (all[e].end > all[e].begin) all[kept++] = all[e];
  return kept;
}

// fn(group, panel) for all panels of all groups; `width` columns a panel of `columns(group)`.
template <class Columns, class Fn>
void for_panels(Group* groups, int count, int width, int64_t bytes_per_panel, Columns&& columns, Fn&& fn) {
  int32_t total = 0;
  for (int g = 0; g < count; ++g) {
    groups[g].first_panel = total;
    groups[g].panels = static_cast<int32_t>((columns(groups[g]) + width - 1) / width);
    total += groups[g].panels;
  }
  parallel(total, grain_for(bytes_per_panel), [&](int64_t begin, int64_t end) {
    int g = 0;
    for (int64_t item = begin; item < end; ++item) {
      while (item >= groups[g].first_panel + groups[g].panels) ++g;
      fn(groups[g], (item - groups[g].first_panel) * width);
    }
  });
}

// X is the dtype of x, Y of the weights: the same, or bf16 under fp32 activations.
#ifdef __AVX512BF16__
template <class X, class Y>
using InLanes = std::conditional_t<std::is_same<X, bf16>::value && std::is_same<Y, bf16>::value, Bf16Lanes, FloatLanes>;
#else
template <class X, class Y>
using InLanes = FloatLanes;
#endif

vf silu_times_up(vf g, vf u, float limit) {
  auto pick = [](vi m, vf a, vf b) {
    return reinterpret_cast<vf>((reinterpret_cast<vi>(a) & m) | (reinterpret_cast<vi>(b) & ~m));
  };
  const vf top = splat(limit);  // comparisons with NaN are false: it stays
  g = pick(g > top, top, g);
  u = pick(u > top, top, pick(u < -top, -top, u));
  return g / (vexp(-g) + 1.0f) * u;
}

// Columns j, j+1 of g and u for the pairs of a group.
template <class X, class Y>
void gate_panel(const Params& p, const Plan& plan, const Group& g, int64_t j) {
  const bool shared = g.expert == p.E;
  const int64_t inter = shared ? p.shared_inter : p.inter;
  auto weight_row = [&](int64_t i) { return shared ? p.shared_w13.at<Y>(i) : p.w13.at<Y>(g.expert, i); };
  const int64_t j1 = std::min(j + 1, inter - 1);
  const FloatSource<InLanes<X, Y>, Y> w{{weight_row(j), weight_row(j1), weight_row(inter + j), weight_row(inter + j1)}};
  auto put = [&](int64_t m, const float* y) {  // y: g of both columns, then u
    for (int c = 0; c < 2 && j + c < inter; ++c) plan.h[m * h_pitch(p) + j + c] = y[c], plan.u[m * h_pitch(p) + j + c] = y[2 + c];
  };
  float y[4 * N];
  if (short_rows(reinterpret_cast<const X*>(plan.x) + g.begin * x_pitch(p), x_pitch(p), g.end - g.begin, w, p.d, y)) {
    for (int64_t m = g.begin; m < g.end; ++m) put(m, y + (m - g.begin) * N);
    return;
  }
  for (int64_t first = g.begin; first < g.end; first += kRows) {
    const int64_t rows = std::min<int64_t>(kRows, g.end - first);
    vf sums[kRows * N];
    std::fill_n(sums, rows * N, vf{});
    const X* x = reinterpret_cast<const X*>(plan.x) + first * x_pitch(p);
    dots_rows<InLanes<X, Y>, N>(x, x_pitch(p), rows, w, p.d, sums, first == g.begin ? 2 * (w.w[1] - w.w[0]) : 0);
    for (int64_t m = 0; m < rows; ++m) hsum4(sums + m * N, y), put(first + m, y);
  }
}

// h of the pairs [begin, end), in the place of g.
void activate(const Params& p, const Plan& plan, int64_t begin, int64_t end, int64_t inter) {
  for (int64_t i = begin; i < end; ++i) {
    float *h = plan.h + i * h_pitch(p), *u = plan.u + i * h_pitch(p);
    for_vectors(inter, [&](int64_t j, int width) {
      const vf x = silu_times_up(load_some(h + j, width), load_some(u + j, width), static_cast<float>(p.limit));
      store_some(h + j, plan.weight[i] * x, width);
    });
  }
}

// Columns j .. j+3 of y for the pairs of a group.
template <class Y>
void down_panel(const Params& p, const Plan& plan, const Group& g, int64_t j) {
  const bool shared = g.expert == p.E;
  FloatSource<FloatLanes, Y> w;
  for (int c = 0; c < N; ++c) {
    const int64_t i = std::min(j + c, p.d - 1);
    w.w[c] = shared ? p.shared_w2.at<Y>(i) : p.w2.at<Y>(g.expert, i);
  }
  const int64_t inter = shared ? p.shared_inter : p.inter;
  auto put = [&](int64_t m, const float* y) { std::copy_n(y, std::min<int64_t>(N, p.d - j), plan.y + m * y_pitch(p) + j); };
  float y[4 * N];
  if (short_rows(plan.h + g.begin * h_pitch(p), h_pitch(p), g.end - g.begin, w, inter, y)) {
    for (int64_t m = g.begin; m < g.end; ++m) put(m, y + (m - g.begin) * N);
    return;
  }
  for (int64_t first = g.begin; first < g.end; first += kRows) {
    const int64_t rows = std::min<int64_t>(kRows, g.end - first);
    vf sums[kRows * N];
    std::fill_n(sums, rows * N, vf{});
    dots_rows<FloatLanes, N>(plan.h + first * h_pitch(p), h_pitch(p), rows, w, inter, sums,
                             first == g.begin ? N * (w.w[1] - w.w[0]) : 0);
    for (int64_t m = 0; m < rows; ++m) hsum4(sums + m * N, y), put(first + m, y);
  }
}

template <class T, class Y>
void run(const Params& p, const Plan& plan) {
  const int count = sort_pairs(p, plan);
  const int64_t n = count ? plan.groups[count - 1].end : 0, rows = count ? (n + count - 1) / count : 1;
  parallel(n, grain_for(2 * p.d * sizeof(T)), [&](int64_t begin, int64_t end) {
    for (int64_t i = begin; i < end; ++i)
      std::memcpy(reinterpret_cast<T*>(plan.x) + i * x_pitch(p), p.x.at<T>(plan.row[i]), p.d * sizeof(T));
  });
  const auto columns = [&](const Group& g) { return g.expert == p.E ? p.shared_inter : p.inter; };
  for_panels(plan.groups, count, 2, 4 * p.d * rows, columns,
             [&](const Group& g, int64_t j) { gate_panel<T, Y>(p, plan, g, j); });
  for (int g = 0; g < count; ++g)
    parallel(plan.groups[g].end - plan.groups[g].begin, grain_for(columns(plan.groups[g]) * 16), [&](int64_t i, int64_t end) {
      activate(p, plan, plan.groups[g].begin + i, plan.groups[g].begin + end, columns(plan.groups[g]));
    });
  for_panels(plan.groups, count, N, 4 * p.inter * rows, [&](const Group&) { return p.d; },
             [&](const Group& g, int64_t j) { down_panel<Y>(p, plan, g, j); });
  parallel(p.T, grain_for(p.d * sizeof(float) * (p.k + 1)), [&](int64_t begin, int64_t end) {
    for (int64_t t = begin; t < end; ++t)
      for_vectors(p.d, [&](int64_t d, int width) {
        vf sum{};
        for (int64_t i = 0; i < p.k; ++i)
          if (const int32_t at = plan.place[t * p.k + i]; at >= 0)
            sum += load_some(plan.y + at * y_pitch(p) + d, width);
        if (p.shared_w13) sum += load_some(plan.y + plan.place[p.T * p.k + t] * y_pitch(p) + d, width);
        store_some(p.out.at<T>(t) + d, sum, width);
      });
  });
}

int32_t launch(const Params& p, const Launch& launch) {
  for (int64_t t = 0; t < p.T; ++t)
    for (int64_t i = 0; i < p.k; ++i)
      if (const int64_t e = int_at(p.topk_ids, t, i); e < -1 || e >= p.E)
        return refuse(launch, "topk_ids: expected -1 or an expert in [0, %lld) in row %lld, got %lld", (long long)p.E,
                      (long long)t, (long long)e);
  const Plan plan = plan_of(p, launch.workspace);
  if (p.x.dtype == kBF16) run<bf16, bf16>(p, plan);
  else if (p.w13.dtype == kBF16) run<float, bf16>(p, plan);
  else run<float, float>(p, plan);
  return DSV4_OK;
}

}  // namespace
DSV4_CPU_KERNEL_WITH_WORKSPACE(moe_experts, MoeExpertsParams, launch, workspace_size)
}  // namespace dsv4::cpu
