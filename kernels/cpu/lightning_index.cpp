// SPDX-License-Identifier: Apache-2.0
// lightning_index: a row's scores over its visible entries, heads x 4 keys a register tile, then the topk by partial
// selection (order: higher score, then lower entry), sorted. A row with at most topk entries needs no scores.
// A work item is one row. Bound by arithmetic: 2 * H * D flops an entry. Contract: include/dsv4spec/target.h.
#include <algorithm>

#include "gemm.h"
#include "packed_rows.h"
#include "rmsnorm.h"
#include "rope.h"

namespace dsv4::cpu {
namespace {

using Params = LightningIndexParams;
constexpr int kKeys = kTileColumns;
constexpr int64_t kHeadBlock = 8 * kTileRows;

int64_t entries_of(const Params& p) { return p.table.shape[1] * p.page; }
int64_t pitch_of(const Params& p) { return (p.D + W - 1) / W * W; }
int64_t query_bytes(const Params& p) { return p.H * pitch_of(p) * sizeof(float); }
int64_t row_bytes(const Params& p) {
  return (query_bytes(p) + entries_of(p) * (sizeof(float) + sizeof(int32_t)) + 63) / 64 * 64;
}
bool scores_needed(const Params& p) { return entries_of(p) > p.topk; }
uint64_t workspace_size(const Params& p) { return scores_needed(p) ? p.T * row_bytes(p) : 0; }

// The row's query in fp32, rotated.
template <class T>
void read_query(const Params& p, int64_t row, int64_t position, float* q, Turn& turn) {
  const int64_t pitch = pitch_of(p);
  if (p.cos_sin) turn.set(p.cos_sin.at<float>(position), p.D, p.R);
  for (int64_t h = 0; h < p.H; ++h) {
    const T* from = p.q.at<T>(row, h);
    float* to = q + h * pitch;
    for_vectors(p.D, [&](int64_t d, int n) {
      const vf v = load_some(from + d, n);
      store(to + d, p.cos_sin && d >= turn.begin ? turn(v, d) : v);
    });
  }
}

// Scores of kKeys entries, whose keys are given; heads add up in order.
template <class T>
void score(const Params& p, int64_t row, const float* q, const FloatSource<FloatLanes, T>& keys, float* out) {
  const float* weight = p.weights.at<float>(row);
  float total[kKeys] = {};
  for (int64_t h0 = 0; h0 < p.H; h0 += kHeadBlock) {
    const int64_t heads = std::min(kHeadBlock, p.H - h0);
    vf sums[kHeadBlock * kKeys];
    std::fill_n(sums, heads * kKeys, vf{});
    dots_rows<FloatLanes, kKeys>(q + h0 * pitch_of(p), pitch_of(p), heads, keys, p.D, sums);
    for (int64_t h = 0; h < heads; ++h)
      for (int k = 0; k < kKeys; ++k) {
        const float s = hsum(sums[h * kKeys + k]);
        total[k] += weight[h0 + h] * (s < 0 ? 0 : s);  // a NaN stays
      }
  }
  std::memcpy(out, total, sizeof total);
}

template <class T>
void run_row(const Params& p, int64_t row, char* memory, Turn& turn) {
  int32_t* out = p.out.at<int32_t>(row);
  const PackedRequest r = request_of_row(p, row);
  const int64_t position = r.committed() + row - r.start;
  const int64_t count = r.length == 0 ? 0 : std::min((position + 1) / p.ratio, entries_of(p));
  int64_t found = 0;
  if (count <= p.topk) {
    for (int64_t w = 0; w < count; ++w)
      if (int_at(p.table, r.b, w / p.page) >= 0) out[found++] = static_cast<int32_t>(w);
    std::fill(out + found, out + p.topk, -1);
    return;
  }
  float* q = reinterpret_cast<float*>(memory);
  float* scores = reinterpret_cast<float*>(memory + query_bytes(p));
  int32_t* chosen = reinterpret_cast<int32_t*>(scores + entries_of(p));
  read_query<T>(p, row, position, q, turn);
  FloatSource<FloatLanes, T> keys;
  int32_t number[kKeys];
  int n = 0;
  auto flush = [&] {
    for (int k = n; k < kKeys; ++k) keys.w[k] = keys.w[0];
    float s[kKeys];
    score(p, row, q, keys, s);
    for (int k = 0; k < n; ++k) scores[number[k]] = s[k] != s[k] ? INFINITY : s[k];
    n = 0;
  };
  for (int64_t w = 0; w < count; ++w) {
    const int64_t page = int_at(p.table, r.b, w / p.page);
    if (page < 0) continue;
    keys.w[n] = p.index_pages.at<T>(page, w % p.page);
    number[n++] = chosen[found++] = static_cast<int32_t>(w);
    if (n == kKeys) flush();
  }
  if (n > 0) flush();
  const int64_t take = std::min(found, p.topk);
  if (take < found)
    std::nth_element(chosen, chosen + take, chosen + found, [&](int32_t a, int32_t b) {
      return scores[a] != scores[b] ? scores[a] > scores[b] : a < b;
    });
  std::sort(chosen, chosen + take);
  std::copy(chosen, chosen + take, out);
  std::fill(out + take, out + p.topk, -1);
}

template <class T>
void run(const Params& p, char* workspace) {
  const int64_t work = scores_needed(p) ? entries_of(p) * p.H * p.D / 8 : entries_of(p) * 4;
  parallel(p.T, grain_for(work), [&](int64_t begin, int64_t end) {
    Turn turn;
    for (int i = 0; i < kMaxHeadSize; ++i) turn.c[i] = turn.s[i] = 0.0f;
    for (int64_t row = begin; row < end; ++row) run_row<T>(p, row, workspace + row * row_bytes(p), turn);
  });
}

int32_t launch(const Params& p, const Launch& launch) {
  if (const int32_t status = check_packed(p, launch)) return status;
  for (int64_t b = 0; b < p.B; ++b) {
    const PackedRequest r = packed_request(p, b);
    if (r.length == 0 || r.rows == 0) continue;
    if (const int32_t status = check_positions(p.cos_sin, r, launch)) return status;
    if (const int32_t status = check_pages(p.table, "table", b, 0, (r.length / p.ratio + p.page - 1) / p.page,
                                           p.index_pages.shape[0], launch))
      return status;
  }
  char* workspace = static_cast<char*>(launch.workspace);
  p.q.dtype == kF32 ? run<float>(p, workspace) : run<bf16>(p, workspace);
  return DSV4_OK;
}

}  // namespace
DSV4_CPU_KERNEL_WITH_WORKSPACE(lightning_index, LightningIndexParams, launch, workspace_size)
}  // namespace dsv4::cpu
