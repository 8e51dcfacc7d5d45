// SPDX-License-Identifier: Apache-2.0
// compress_kv, in two passes over the pool's threads: first every entry that the call completes (old rows from the
// state, new ones from the call), then the rows that later calls will need are written to the state.
// A work item is one entry: coff*r candidates of D channels, a softmax per channel; then one row. Bound by memory.
// Contract: include/dsv4spec/target.h.
#include <algorithm>

#include "packed_rows.h"
#include "rmsnorm.h"
#include "rope.h"

namespace dsv4::cpu {
namespace {

using Params = CompressKvParams;

// One candidate of an entry: D columns of kv and of the score, which is `score` + `ape` (null: already added).
struct Candidate {
  const float *kv, *score, *ape;
};

Candidate candidate(const Params& p, const PackedRequest& r, int64_t position, int64_t column) {
  if (position >= r.committed()) {
    const int64_t t = r.start + position - r.committed();
    return {p.kv.at<float>(t) + column, p.gate.at<float>(t) + column, p.ape.at<float>(position % p.ratio) + column};
  }
  const float* row = p.state.at<float>(*p.rows.at<int64_t>(r.b), position % p.ring);
  return {row + column, row + p.coff * p.D + column, nullptr};
}

inline vf score_of(const Candidate& c, int64_t d, int n) {
  const vf s = load_some(c.score + d, n);
  return c.ape ? s + load_some(c.ape + d, n) : s;
}

// The candidates of group w: those of the group before, if there are two a position, then its own.
struct Group {
  const Params& p;
  const PackedRequest& r;
  int64_t first, size;  // position of the first one, which may lie before 0; number
  Group(const Params& params, const PackedRequest& request, int64_t w)
      : p(params), r(request), first((w + 1 - params.coff) * params.ratio), size(params.coff * params.ratio) {}

  Candidate operator[](int64_t i) const {
    return candidate(p, r, first + i, p.coff == 2 && i >= p.ratio ? p.D : 0);
  }
  template <class Fn>
  void for_each(Fn&& fn) const {
    for (int64_t i = first < 0 ? -first : 0; i < size; ++i) fn((*this)[i], i);
  }
};

// entry[0, D): the softmax-weighted sum of the candidates of group w. Candidates come row by row, as they lie in memory;
// the sums of all channels stay in the first-level cache.
void mix(const Params& p, const PackedRequest& r, int64_t w, float* entry) {
  constexpr int64_t kAhead = 2;  // candidates: rows are too short for the processor to foresee the next one
  alignas(64) float top[kMaxHeadSize + W], sum[kMaxHeadSize + W];
  for (int64_t d = 0; d < p.D; d += W) store(top + d, splat(-INFINITY)), store(sum + d, vf{}), store(entry + d, vf{});
  const Group group(p, r, w);
  group.for_each([&](const Candidate& c, int64_t i) {
    if (i + kAhead < group.size) {
      const Candidate next = group[i + kAhead];
      for (int64_t d = 0; d < p.D; d += 16) __builtin_prefetch(next.score + d), __builtin_prefetch(next.kv + d, 0, 2);
    }
    for_vectors(p.D, [&](int64_t d, int n) { store(top + d, vmax(score_of(c, d, n), load(top + d))); });
  });
  group.for_each([&](const Candidate& c, int64_t) {
    for_vectors(p.D, [&](int64_t d, int n) {
      const vf e = vexp(score_of(c, d, n) - load(top + d));
      store(sum + d, load(sum + d) + e);
      store(entry + d, load(entry + d) + e * load_some(c.kv + d, n));
    });
  });
  for_vectors(p.D, [&](int64_t d, int n) { store_some(entry + d, load(entry + d) / load(sum + d), n); });
  if (p.D % W) std::fill(entry + p.D, entry + (p.D + W - 1) / W * W, 0.0f);  // what the norm may read
}

template <class T>
void finish(const Params& p, float* entry, int64_t m, Turn& turn) {
  const float factor = inverse_rms(sum_squares(entry, p.D), p.D, p.eps);
  scale_row<float>(entry, p.norm_weight, factor, p.D, entry);
  turn.set(p.cos_sin.at<float>(*p.positions.at<int64_t>(m)), p.D, p.R);
  const int64_t loc = *p.locs.at<int64_t>(m), page = p.pages.shape[1];
  T* out = p.pages.at<T>(loc / page, loc % page);
  for_vectors(p.D, [&](int64_t d, int n) {
    const vf v = load(entry + d);  // the buffer is padded with zeros
    store_some(out + d, d >= turn.begin ? turn(v, d) : v, n);
  });
}

template <class T>
void make_entries(const Params& p) {
  const int64_t bytes = p.coff * p.ratio * p.D * 4 * sizeof(float);
  parallel(p.M, grain_for(bytes), [&](int64_t begin, int64_t end) {
    alignas(64) float entry[kMaxHeadSize + W] = {};
    Turn turn;
    for (int i = 0; i < kMaxHeadSize; ++i) turn.c[i] = turn.s[i] = 0.0f;
    int64_t m = 0;  // number of the request's first entry
    for (int64_t b = 0; b < p.B && m < end; ++b) {
      const PackedRequest r = packed_request(p, b);
      if (r.length == 0) continue;
      const int64_t w0 = r.committed() / p.ratio, made = r.length / p.ratio - w0;
      for (int64_t i = m < begin ? begin - m : 0; i < made && m + i < end; ++i) {
        if (*p.locs.at<int64_t>(m + i) < 0) continue;
        mix(p, r, w0 + i, entry);
        finish<T>(p, entry, m + i, turn);
      }
      m += made;
    }
  });
}

void keep_rows(const Params& p) {
  const int64_t width = p.coff * p.D;
  parallel(p.T, grain_for(4 * width * sizeof(float)), [&](int64_t begin, int64_t end) {
    for (int64_t t = begin; t < end; ++t) {
      const PackedRequest r = request_of_row(p, t);
      const int64_t position = r.committed() + t - r.start;
      if (r.length == 0 || position < r.length - p.ring) continue;
      float* row = p.state.at<float>(*p.rows.at<int64_t>(r.b), position % p.ring);
      const float *gate = p.gate.at<float>(t), *ape = p.ape.at<float>(position % p.ratio);
      std::memcpy(row, p.kv.at<float>(t), width * sizeof(float));
      for_vectors(width, [&](int64_t d, int n) {
        store_some(row + width + d, load_some(gate + d, n) + load_some(ape + d, n), n);
      });
    }
  });
}

int32_t check(const Params& p, const Launch& launch) {
  if (const int32_t status = check_packed(p, launch)) return status;
  for (int64_t b = 0; b < p.B; ++b) {
    const PackedRequest r = packed_request(p, b);
    const int64_t row = *p.rows.at<int64_t>(b);
    if (r.length > 0 && r.rows > 0 && (row < 0 || row >= p.state.shape[0]))
      return refuse(launch, "rows: expected a row of state [0, %lld) for request %lld, got %lld",
                    (long long)p.state.shape[0], (long long)b, (long long)row);
  }
  const int64_t slots = p.pages.shape[0] * p.pages.shape[1];
  for (int64_t m = 0; m < p.M; ++m) {
    const int64_t loc = *p.locs.at<int64_t>(m), position = *p.positions.at<int64_t>(m);
    if (loc < -1 || loc >= slots)
      return refuse(launch, "locs: expected -1 or a slot in [0, %lld) at entry %lld, got %lld", (long long)slots,
                    (long long)m, (long long)loc);
    if (loc >= 0 && (position < 0 || position >= p.cos_sin.shape[0]))
      return refuse(launch, "positions: expected a row of cos_sin [0, %lld) at entry %lld, got %lld",
                    (long long)p.cos_sin.shape[0], (long long)m, (long long)position);
  }
  return DSV4_OK;
}

int32_t launch(const Params& p, const Launch& launch) {
  if (const int32_t status = check(p, launch)) return status;
  p.pages.dtype == kF32 ? make_entries<float>(p) : make_entries<bf16>(p);
  keep_rows(p);
  return DSV4_OK;
}

}  // namespace
DSV4_CPU_KERNEL(compress_kv, CompressKvParams, launch)
}  // namespace dsv4::cpu
