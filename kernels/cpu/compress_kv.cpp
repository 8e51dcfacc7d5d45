// SPDX-License-Identifier: Apache-2.0
// compress_kv, in two passes over the pool's threads: first every entry that the call completes (old rows from the
// state, new ones from the call), then the rows that later calls will need are written to the state.
// A work item is one entry: coff*r candidates of D channels, a softmax per channel; then one row. Bound by memory.
// Contract: include/dsv4spec/target.h.
#include <algorithm>
#include <cfloat>

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

// The candidates of group w: those of the group before, if there are two a position, then its own. Some at the start may
// lie before position 0: those before `begin`.
struct Group {
  const Params& p;
  PackedRequest r;
  int64_t first, begin, size;  // position of the first one; numbers
  Group(const Params& params, const PackedRequest& request, int64_t w)
      : p(params), r(request), first((w + 1 - params.coff) * params.ratio), begin(first < 0 ? -first : 0),
        size(params.coff * params.ratio) {}
  Candidate operator[](int64_t i) const { return candidate(p, r, first + i, p.coff == 2 && i >= p.ratio ? p.D : 0); }
};

alignas(64) const float kNoApe[kMaxHeadSize] = {};

// entry[0, D): the softmax-weighted sum of a group's candidates, in steps of kStep rows. Every row lies in a page of its
// own: several are read side by side, once, while the next step's, or the next group's first ones, are fetched.
void mix(const Group& group, const Group& next, float* entry) {
  constexpr int kStep = 8;
  const Params& p = group.p;
  alignas(64) float top[kMaxHeadSize + W], sum[kMaxHeadSize + W];
  for (int64_t d = 0; d < p.D; d += W) store(top + d, splat(-FLT_MAX)), store(sum + d, vf{}), store(entry + d, vf{});
  for (int64_t i = group.begin; i < group.size; i += kStep) {
    const int count = static_cast<int>(std::min<int64_t>(group.size - i, kStep));
    Candidate step[kStep], ahead[kStep];
    for (int k = 0; k < count; ++k) {
      step[k] = group[i + k];
      const int64_t a = i + k + kStep;
      ahead[k] = a < group.size ? group[a] : next[std::min(next.begin + a - group.size, next.size - 1)];
    }
    const bool plain = std::all_of(step, step + count, [](const Candidate& c) { return !c.ape; });
    for (int k = 0; k < count; ++k)
      if (!step[k].ape) step[k].ape = kNoApe;
    auto run = [&](auto with_ape, auto rows) {
      for_vectors(p.D, [&](int64_t d, int n) {
        const int m = decltype(rows)::value ? decltype(rows)::value : count;
        const vf before = load(top + d);
        vf score[kStep], t = before;
        for (int k = 0; k < m; ++k) {
          __builtin_prefetch(ahead[k].score + d, 0, 2), __builtin_prefetch(ahead[k].kv + d, 0, 2);
          score[k] = load_some(step[k].score + d, n);
          if (decltype(with_ape)::value) score[k] = score[k] + load_some(step[k].ape + d, n);
          t = vmax(score[k], t);
        }
        const vf alpha = vexp(before - t);
        vf s = load(sum + d) * alpha, e = load(entry + d) * alpha;
        for (int k = 0; k < m; ++k) {
          const vf x = vexp(score[k] - t);
          s = s + x;
          e = e + x * load_some(step[k].kv + d, n);
        }
        store(top + d, t), store(sum + d, s), store(entry + d, e);
      });
    };
    constexpr std::integral_constant<int, kStep> whole{};
    if (count < kStep) run(std::true_type{}, std::integral_constant<int, 0>{});
    else if (plain) run(std::false_type{}, whole);
    else run(std::true_type{}, whole);
  }
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

// Entry m of the call: the group that its request completes with it. `m` counts over all requests.
struct Entries {
  const Params& p;
  int64_t b = -1, m = -1, w = 0, last = -1;  // last: the number of the last group that request b completes
  PackedRequest r{};

  explicit Entries(const Params& params) : p(params) {}
  bool next() {  // to the next entry that has a place
    do {
      while (w >= last) {
        if (++b >= p.B) return false;
        r = packed_request(p, b);
        w = r.committed() / p.ratio - 1, last = r.length > 0 ? r.length / p.ratio - 1 : w;
      }
      ++w, ++m;
    } while (*p.locs.at<int64_t>(m) < 0);
    return true;
  }
};

template <class T>
void make_entries(const Params& p) {
  const int64_t bytes = p.coff * p.ratio * p.D * 4 * sizeof(float);
  parallel(p.M, grain_for(bytes), [&](int64_t begin, int64_t end) {
    alignas(64) float entry[kMaxHeadSize + W] = {};
    Turn turn;
    for (int i = 0; i < kMaxHeadSize; ++i) turn.c[i] = turn.s[i] = 0.0f;
    Entries at(p);
    bool more = at.next();
    while (more && at.m < begin) more = at.next();
    while (more && at.m < end) {
      const Group group(p, at.r, at.w);
      const int64_t m = at.m;
      more = at.next();
      mix(group, more ? Group(p, at.r, at.w) : group, entry);
      finish<T>(p, entry, m, turn);
    }
  });
}

void keep_rows(const Params& p) {
  const int64_t width = p.coff * p.D;
  const bool past_caches = whole_vectors<float>(p.state) && p.D % W == 0 &&
                           4 * p.T * width * static_cast<int64_t>(sizeof(float)) >= kStreamedBytes;
  parallel(p.T, grain_for(4 * width * sizeof(float)), [&](int64_t begin, int64_t end) {
    for (int64_t t = begin; t < end; ++t) {
      const PackedRequest r = request_of_row(p, t);
      const int64_t position = r.committed() + t - r.start;
      if (r.length == 0 || position < r.length - p.ring) continue;
      float* row = p.state.at<float>(*p.rows.at<int64_t>(r.b), position % p.ring);
      const float *kv = p.kv.at<float>(t), *gate = p.gate.at<float>(t), *ape = p.ape.at<float>(position % p.ratio);
      for_vectors(width, [&](int64_t d, int n) {
        const vf score = load_some(gate + d, n) + load_some(ape + d, n);
        if (past_caches) {
          stream(row + d, load(kv + d));
          stream(row + width + d, score);
        } else {
          store_some(row + d, load_some(kv + d, n), n);
          store_some(row + width + d, score, n);
        }
      });
    }
    if (past_caches) end_of_stream();
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
