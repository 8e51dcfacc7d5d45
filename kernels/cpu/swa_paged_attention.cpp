// SPDX-License-Identifier: Apache-2.0
// swa_paged_attention: out = sum_k exp(x_k) K_k / (exp(sink) + sum_k exp(x_k)),  x_k = scale * q . K_k
// A work item is one query row x 16 heads. It walks its visible keys in softmax steps whose edges are multiples of
// kBlock in logical position, so a row adds up in one order whatever else the call holds. A key vector that is loaded
// feeds four heads; the window (at most a few hundred KiB) stays in the second-level cache from tile to tile.
// Bound by arithmetic: 4 * D flops a (row, head, key). Contract: include/dsv4spec/attention.h.
#include "softmax_row.h"
#include "swa_request.h"

namespace dsv4::cpu {
namespace {

template <class T>
using Row = RowState<T, SwaPagedAttentionParams>;

template <class T>
struct Keys {
  const SwaPagedAttentionParams& p;
  const PackedRequest& r;
  Row<T>& state;
  int64_t block = -1;

  void add(int64_t position, const T* key) {
    if (position / kBlock != block) {
      state.close(p);
      block = position / kBlock;
    }
    state.keys[state.n++] = key;
  }
  void add_range(int64_t begin, int64_t end) {
    while (begin < end) {
      const int64_t column = begin / p.page, offset = begin % p.page;
      const int64_t stop = begin + p.page - offset < end ? begin + p.page - offset : end;
      const T* page = p.kv_pages.at<T>(int_at(p.block_table, r.b, column));
      for (int64_t x = begin; x < stop; ++x) add(x, page + (x - column * p.page) * p.kv_pages.stride[1]);
      begin = stop;
    }
  }
};

template <class T>
void attend(const SwaPagedAttentionParams& p, const PackedRequest& r, int64_t row, int64_t h0, int heads, Row<T>& state,
            Turn& turn) {
  const int64_t j = row - r.start, s = r.committed(), position = position_of(p, r, j);
  state.begin(p, row, h0, heads);
  Keys<T> keys{p, r, state};
  keys.add_range(first_key(p, position), p.n ? s : position + 1);
  const uint8_t* seen = p.n ? p.tree_mask.at<uint8_t>(r.b, j) : nullptr;
  // p_j - p_i is at most n: only a window this narrow can hide a marked node.
  for (int64_t i = 0; i < p.n; ++i)
    if (seen[i] && (p.window > p.n || position - position_of(p, r, i) < p.window)) keys.add_range(s + i, s + i + 1);
  state.close(p);
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
    Row<T> state(p);
    Turn turn;
    PackedRequest r{0, 0, 0, 0};
    for (int64_t item = begin; item < end; ++item) {
      const int64_t row = item / groups, h0 = item % groups * kHeads;
      const int heads = static_cast<int>(p.H - h0 < kHeads ? p.H - h0 : kHeads);
      if (row >= r.start + r.rows) r = request_of_row(p, row);
      if (r.length > 0) {
        state.ahead = item + 1 < end ? p.q.at<T>((item + 1) / groups, (item + 1) % groups * kHeads) : nullptr;
        attend(p, r, row, h0, heads, state, turn);
      } else if (p.zero_padding) {
        for (int h = 0; h < heads; ++h) std::memset(p.out.at<T>(row, h0 + h), 0, p.D * sizeof(T));
      }
    }
  });
}

int32_t launch(const SwaPagedAttentionParams& p, const Launch& launch) {
  if (const int32_t status = check_swa_requests(p, launch)) return status;
  p.q.dtype == kF32 ? run<float>(p) : run<bf16>(p);
  return DSV4_OK;
}

}  // namespace
DSV4_CPU_KERNEL(swa_paged_attention, SwaPagedAttentionParams, launch)
}  // namespace dsv4::cpu
