// SPDX-License-Identifier: Apache-2.0
// The online softmax of one query row over keys that come as pointers, in steps of up to kBlock: what
// swa_paged_attention and sparse_paged_attention share.
#pragma once
#include <cmath>
#include <utility>

#include "kernel.h"
#include "swa_tiles_bf16.h"

namespace dsv4::cpu {

template <class T>
alignas(64) inline const T kZeroKey[kMaxHeadSize] = {};

// One row of one group of heads: the state of its online softmax. P: the params of the op, of which q, scale, D, sink
// and out are read.
template <class T, class P>
struct RowState {
  alignas(64) float acc[kHeads * kMaxHeadSize];
  alignas(64) typename Tiles<T>::Q room[kHeads * kMaxHeadSize];
  const typename Tiles<T>::Q* q[kHeads];
  alignas(64) float score[kHeads * kBlock];
  alignas(64) float top[kHeads], sum[kHeads], alpha[kHeads];
  const T* lists[2][kBlock + 4];
  const T **keys = lists[0], **closed = lists[1];
  int heads, padded;        // padded: rounded up to whole tiles
  int n, closed_n;          // keys of the step that is being filled, and of the one before, which is done after it
  int64_t fetched_row = -1;
  bool first, fetch;        // fetch: the row's keys, for the first of its items
  const T* ahead = nullptr;  // the query of the next item
  const T* result;           // where this item's goes
  const bool past_caches;    // how the result is stored

  explicit RowState(const P& p) : past_caches(streamable<T>(p.out)) {}
  ~RowState() {
    if (past_caches) end_of_stream();
  }

  void begin(const P& p, int64_t row, int64_t h0, int count) {
    heads = count;
    padded = (count + kTileHeads - 1) / kTileHeads * kTileHeads;
    first = true;
    n = closed_n = 0;
    fetch = row != fetched_row;
    fetched_row = row;
    result = p.out.template at<T>(row, h0);
    for (int h = 0; h < padded; ++h)
      q[h] = Tiles<T>::query(room + h * kMaxHeadSize, h < heads ? p.q.template at<T>(row, h0 + h) : kZeroKey<T>, p.D);
    for (int h = 0; h < kHeads; ++h) top[h] = -INFINITY, sum[h] = 0.0f;
  }

  // Ends a step, and does the one before: while a step is done, the keys of the next one are fetched.
  void close(const P& p) {
    if (n == 0) return;
    for (int k = n; k < kBlock + 4; ++k) keys[k] = kZeroKey<T>;
    if (closed_n > 0) step(p, closed, closed_n, fetch ? keys : closed);
    std::swap(keys, closed);
    closed_n = n;
    n = 0;
  }

  // Adds keys[0, n) to the row, and fetches as many of `next`.
  void step(const P& p, const T* const* keys, int n, const T* const* next) {
    Tiles<T>::scores(score, q, padded, keys, n, p.D);
    const int end = (n + W - 1) / W * W;
    const float scale = static_cast<float>(p.scale);
    alignas(64) vf lanes[kHeads];
    for (int h = 0; h < kHeads; ++h) lanes[h] = splat(-INFINITY);
    for (int h = 0; h < heads; ++h)
      for (int k = 0; k < end; k += W) {
        float* s = score + h * kBlock + k;
        const vf x = first_lanes(load(s) * scale, n - k, splat(-INFINITY));
        store(s, x);
        lanes[h] = vmax(x, lanes[h]);
      }
    for (int h = 0; h < kHeads; h += W) {
      const vf before = load(top + h), now = vmax(maxima_of(lanes + h), before);
      store(top + h, now);
      // Nothing has been added to a row whose maximum was -inf.
      const vi any = before != splat(-INFINITY);
      store(alpha + h, reinterpret_cast<vf>(reinterpret_cast<vi>(vexp(before - now)) & any));
    }
    for (int h = 0; h < kHeads; ++h) lanes[h] = vf{};
    for (int h = 0; h < heads; ++h)
      for (int k = 0; k < end; k += W) {
        float* s = score + h * kBlock + k;
        const vf e = Tiles<T>::as_weight(vexp(load(s) - top[h]));
        store(s, e);
        lanes[h] = lanes[h] + e;
      }
    for (int h = 0; h < kHeads; h += W) store(sum + h, load(sum + h) * load(alpha + h) + sums_of(lanes + h));
    Tiles<T>::mix(acc, first ? nullptr : alpha, score, padded, keys, n, p.D, next, first ? ahead : nullptr,
                  first && !past_caches ? result : nullptr);
    first = false;
  }

  void finish(const P& p, int64_t row, int64_t h0, const Turn* turn) {
    if (closed_n > 0) step(p, closed, closed_n, closed);
    alignas(64) float sink[kHeads], factor[kHeads];
    for (int h = 0; h < kHeads; ++h)
      sink[h] = p.sink && h < heads ? *p.sink.template at<float>(h0 + h) : -INFINITY;
    for (int h = 0; h < kHeads; h += W) {
      // The larger of the two maxima is subtracted, so neither exponential overflows.
      const vf s = load(sink + h), t = load(top + h), m = vmax(s, t), part = vexp(t - m);
      const vi all = s == splat(INFINITY);  // the sink takes all of it
      const vf f = part / (load(sum + h) * part + vexp(s - m));
      store(factor + h, reinterpret_cast<vf>(reinterpret_cast<vi>(f) & ~all));
    }
    for (int h = 0; h < heads; ++h) {
      const float* a = acc + h * kMaxHeadSize;
      T* out = p.out.template at<T>(row, h0 + h);
      int64_t d = 0;
      auto put = [&](vf v) { past_caches ? stream(out + d, v) : store(out + d, v); };
      for (; d < (turn ? turn->begin : p.D); d += W) put(Tiles<T>::result(a, d) * factor[h]);
      for (; d < p.D; d += W) put((*turn)(Tiles<T>::result(a, d) * factor[h], d));
    }
  }
};

}  // namespace dsv4::cpu
