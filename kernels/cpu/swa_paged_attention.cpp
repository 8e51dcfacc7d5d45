// SPDX-License-Identifier: Apache-2.0
// swa_paged_attention: out = sum_k exp(x_k) K_k / (exp(sink) + sum_k exp(x_k)),  x_k = scale * q . K_k
// A work item is one query row x 16 heads. It walks its visible keys in softmax steps whose edges are multiples of
// kBlock in logical position, so a row adds up in one order whatever else the call holds. A key vector that is loaded
// feeds four heads; the window (at most a few hundred KiB) stays in the second-level cache from tile to tile.
// Bound by arithmetic: 4 * D flops a (row, head, key). Contract: include/dsv4spec/attention.h.
#include "swa_request.h"
#include "swa_tiles_bf16.h"

namespace dsv4::cpu {
namespace {

// x in the first n lanes, `rest` in the others.
inline vf first_lanes(vf x, int n, vf rest) {
  if (n >= W) return x;
  vi lane;
  for (int i = 0; i < W; ++i) lane[i] = i;
  const vi keep = lane < n;
  return reinterpret_cast<vf>((reinterpret_cast<vi>(x) & keep) | (reinterpret_cast<vi>(rest) & ~keep));
}

template <class T>
alignas(64) const T kZeroKey[kMaxHeadSize] = {};

// One row of one group of heads: the state of its online softmax.
template <class T>
struct RowState {
  alignas(64) float acc[kHeads * kMaxHeadSize];
  alignas(64) typename Tiles<T>::Q room[kHeads * kMaxHeadSize];
  const typename Tiles<T>::Q* q[kHeads];
  alignas(64) float score[kHeads * kBlock];
  alignas(64) float top[kHeads], sum[kHeads], alpha[kHeads];
  const T* keys[kBlock + 4];
  int heads, padded;  // padded: rounded up to whole tiles
  int n;              // keys of the step
  bool first;

  void begin(const SwaPagedAttentionParams& p, int64_t row, int64_t h0, int count) {
    heads = count;
    padded = (count + kTileHeads - 1) / kTileHeads * kTileHeads;
    first = true;
    n = 0;
    for (int h = 0; h < padded; ++h)
      q[h] = Tiles<T>::query(room + h * kMaxHeadSize, h < heads ? p.q.at<T>(row, h0 + h) : kZeroKey<T>, p.D);
    for (int h = 0; h < kHeads; ++h) top[h] = -INFINITY, sum[h] = 0.0f;
  }

  // Adds keys[0, n) to the row.
  void step(const SwaPagedAttentionParams& p) {
    for (int k = n; k < (n + 3) / 4 * 4; ++k) keys[k] = kZeroKey<T>;
    Tiles<T>::scores(score, q, padded, keys, n, p.D);
    const int end = (n + W - 1) / W * W;
    alignas(64) vf lanes[kHeads];
    for (int h = 0; h < kHeads; ++h) lanes[h] = splat(-INFINITY);
    for (int h = 0; h < heads; ++h)
      for (int k = 0; k < end; k += W) {
        float* s = score + h * kBlock + k;
        const vf x = first_lanes(load(s) * p.scale, n - k, splat(-INFINITY));
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
    Tiles<T>::mix(acc, first ? nullptr : alpha, score, padded, keys, n, p.D);
    first = false;
    n = 0;
  }

  void finish(const SwaPagedAttentionParams& p, int64_t row, int64_t h0, const Turn* turn) {
    alignas(64) float o[kMaxHeadSize];
    for (int h = 0; h < heads; ++h) {
      const float sink = p.sink ? *p.sink.at<float>(h0 + h) : -INFINITY;
      // The larger of the two maxima is subtracted, so neither exponential overflows.
      const float m = sink > top[h] ? sink : top[h];
      const float part = std::exp(top[h] - m);
      float factor = part / (sum[h] * part + std::exp(sink - m));
      if (sink == INFINITY) factor = 0.0f;
      Tiles<T>::take_result(o, acc + h * kMaxHeadSize, p.D);
      T* out = p.out.at<T>(row, h0 + h);
      int64_t d = 0;
      for (; d < (turn ? turn->begin : p.D); d += W) store(out + d, load(o + d) * factor);
      for (; d < p.D; d += W) store(out + d, (*turn)(load(o + d) * factor, d));
    }
  }
};

template <class T>
struct Keys {
  const SwaPagedAttentionParams& p;
  const Request& r;
  RowState<T>& state;
  int64_t block = -1;

  void add(int64_t position, const T* key) {
    if (position / kBlock != block) {
      flush();
      block = position / kBlock;
    }
    state.keys[state.n++] = key;
  }
  void flush() {
    if (state.n > 0) state.step(p);
  }
  void add_range(int64_t begin, int64_t end) {
    while (begin < end) {
      const int64_t column = begin / p.page, offset = begin % p.page;
      const int64_t stop = begin + p.page - offset < end ? begin + p.page - offset : end;
      const T* page = p.kv_pages.at<T>(integer(p.block_table, r.b, column));
      for (int64_t x = begin; x < stop; ++x) add(x, page + (x - column * p.page) * p.kv_pages.stride[1]);
      begin = stop;
    }
  }
};

template <class T>
void attend(const SwaPagedAttentionParams& p, const Request& r, int64_t row, int64_t h0, int heads, RowState<T>& state,
            Turn& turn) {
  const int64_t j = row - r.start, s = r.committed(), position = position_of(p, r, j);
  state.begin(p, row, h0, heads);
  Keys<T> keys{p, r, state};
  keys.add_range(first_key(p, position), p.n ? s : position + 1);
  const uint8_t* seen = p.n ? p.tree_mask.at<uint8_t>(r.b, j) : nullptr;
  // p_j - p_i is at most n: only a window this narrow can hide a marked node.
  for (int64_t i = 0; i < p.n; ++i)
    if (seen[i] && (p.window > p.n || position - position_of(p, r, i) < p.window)) keys.add_range(s + i, s + i + 1);
  keys.flush();
  if (keys.block < 0) {  // no visible key
    for (int h = 0; h < heads; ++h) std::memset(p.out.at<T>(row, h0 + h), 0, p.D * sizeof(T));
    return;
  }
  if (p.cos_sin) turn.set(p.cos_sin.at<float>(position), p.D, p.R, true);
  state.finish(p, row, h0, p.cos_sin ? &turn : nullptr);
}

template <class T>
void run(const SwaPagedAttentionParams& p) {
  const int64_t groups = (p.H + kHeads - 1) / kHeads;
  const int64_t reach = p.window < p.maxp * p.page ? p.window : p.maxp * p.page;
  const int64_t work = reach * p.D * (p.H < kHeads ? p.H : kHeads) / 4;  // flops / 16
  parallel(p.T * groups, grain_for(work), [&](int64_t begin, int64_t end) {
    RowState<T> state;
    Turn turn;
    int64_t b = -1;
    Request r{-1, 0, 0, 0};
    for (int64_t item = begin; item < end; ++item) {
      const int64_t row = item / groups, h0 = item % groups * kHeads;
      const int heads = static_cast<int>(p.H - h0 < kHeads ? p.H - h0 : kHeads);
      if (b < 0) {  // the last request that starts at or before the row
        int64_t low = 0, high = p.B;
        while (low < high) {
          const int64_t middle = (low + high) / 2;
          if (integer(p.query_start_loc, middle + 1) <= row) low = middle + 1;
          else high = middle;
        }
        b = low;
        if (b < p.B) r = request_of(p, b);
      }
      while (b < p.B && row >= r.start + r.rows)
        if (++b < p.B) r = request_of(p, b);
      if (b < p.B && r.len > 0) {
        attend(p, r, row, h0, heads, state, turn);
      } else if (p.zero_padding) {
        for (int h = 0; h < heads; ++h) std::memset(p.out.at<T>(row, h0 + h), 0, p.D * sizeof(T));
      }
    }
  });
}

int32_t launch(const SwaPagedAttentionParams& p, const Launch& launch) {
  if (const int32_t status = check_requests(p, launch)) return status;
  p.q.dtype == kF32 ? run<float>(p) : run<bf16>(p);
  return DSV4_OK;
}

}  // namespace
DSV4_CPU_KERNEL(swa_paged_attention, SwaPagedAttentionParams, launch)
}  // namespace dsv4::cpu
