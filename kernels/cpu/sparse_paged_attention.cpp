// SPDX-License-Identifier: Apache-2.0
// sparse_paged_attention: one softmax over a row's window keys, then its compressed entries in the order of `indices`
// (or all visible ones), in steps of up to kBlock keys; window steps end at multiples of kBlock in position, so a row
// adds up in one order whatever else the call holds. A work item is one query row x 16 heads.
// Bound by arithmetic: 4 * D flops a (row, head, key). Contract: include/dsv4spec/target.h.
#include <algorithm>

#include "packed_rows.h"
#include "softmax_row.h"

namespace dsv4::cpu {
namespace {

using Params = SparsePagedAttentionParams;

template <class T>
struct Keys {
  const Params& p;
  RowState<T, Params>& state;
  bool any = false;

  void add(const T* key) {
    state.keys[state.n++] = key;
    any = true;
    if (state.n == kBlock) state.close(p);
  }
  void window(int64_t b, int64_t position) {
    int64_t begin = position >= p.window ? position - p.window + 1 : 0;
    const int64_t end = std::min(position + 1, p.block_table.shape[1] * p.page);
    for (int64_t x = begin; x < end; ++x) {
      if (x % kBlock == 0) state.close(p);
      const int64_t column = x / p.page;
      const int64_t page = int_at(p.block_table, b, column);
      if (page < 0) {  // not seen: on to the next page
        x = (column + 1) * p.page - 1;
        continue;
      }
      add(p.kv_pages.at<T>(page, x % p.page));
    }
    state.close(p);
  }
  void entry(int64_t b, int64_t w) {
    const int64_t column = w / p.c_page;
    const int64_t page = column < p.c_table.shape[1] ? int_at(p.c_table, b, column) : -1;
    if (page >= 0) add(p.c_pages.at<T>(page, w % p.c_page));
  }
  void entries(int64_t b, int64_t row, int64_t count) {
    if (!p.indices) {
      count = std::min(count, p.c_table.shape[1] * p.c_page);
      for (int64_t w = 0; w < count; ++w) entry(b, w);
    } else {
      const int32_t* chosen = p.indices.at<int32_t>(row);
      for (int64_t i = 0; i < p.indices.shape[1]; ++i)
        if (chosen[i] >= 0 && chosen[i] < count) entry(b, chosen[i]);
    }
    state.close(p);
  }
};

template <class T>
void zero(const Params& p, int64_t row, int64_t h0, int heads) {
  for (int h = 0; h < heads; ++h) std::memset(p.out.at<T>(row, h0 + h), 0, p.D * sizeof(T));
}

template <class T>
void attend(const Params& p, int64_t row, int64_t h0, int heads, RowState<T, Params>& state, Turn& turn) {
  const PackedRequest r = request_of_row(p, row);
  if (r.length == 0) {
    if (p.zero_padding) zero<T>(p, row, h0, heads);
    return;
  }
  const int64_t position = r.committed() + row - r.start;
  state.begin(p, row, h0, heads);
  Keys<T> keys{p, state};
  keys.window(r.b, position);
  if (p.ratio > 1) keys.entries(r.b, row, (position + 1) / p.ratio);
  if (!keys.any) return zero<T>(p, row, h0, heads);
  if (p.cos_sin) turn.set(p.cos_sin.at<float>(position), p.D, p.R, true);
  state.finish(p, row, h0, p.cos_sin ? &turn : nullptr);
}

template <class T>
void run(const Params& p) {
  const int64_t groups = (p.H + kHeads - 1) / kHeads;
  const int64_t entries = !p.c_table ? 0 : p.indices ? p.indices.shape[1] : p.c_table.shape[1] * p.c_page;
  const int64_t window = std::min(p.window, p.block_table.shape[1] * p.page);
  const int64_t work = (window + entries) * p.D * (p.H < kHeads ? p.H : kHeads) / 4;  // flops / 16
  parallel(p.T * groups, grain_for(work), [&](int64_t begin, int64_t end) {
    RowState<T, Params> state(p);
    Turn turn;
    for (int64_t item = begin; item < end; ++item) {
      const int64_t h0 = item % groups * kHeads;
      state.ahead = item + 1 < end ? p.q.at<T>((item + 1) / groups, (item + 1) % groups * kHeads) : nullptr;
      attend<T>(p, item / groups, h0, static_cast<int>(p.H - h0 < kHeads ? p.H - h0 : kHeads), state, turn);
    }
  });
}

int32_t check(const Params& p, const Launch& launch) {
  if (const int32_t status = check_packed(p, launch)) return status;
  for (int64_t b = 0; b < p.B; ++b) {
    const PackedRequest r = packed_request(p, b);
    if (r.length == 0 || r.rows == 0) continue;
    if (const int32_t status = check_positions(p.cos_sin, r, launch)) return status;
    const int64_t first = r.committed() - p.window + 1;
    if (const int32_t status = check_pages(p.block_table, "block_table", b, (first > 0 ? first : 0) / p.page,
                                           (r.length - 1) / p.page + 1, p.kv_pages.shape[0], launch))
      return status;
    if (p.ratio > 1)
      if (const int32_t status = check_pages(p.c_table, "c_table", b, 0, (r.length / p.ratio + p.c_page - 1) / p.c_page,
                                             p.c_pages.shape[0], launch))
        return status;
  }
  return DSV4_OK;
}

int32_t launch(const Params& p, const Launch& launch) {
  if (const int32_t status = check(p, launch)) return status;
  p.q.dtype == kF32 ? run<float>(p) : run<bf16>(p);
  return DSV4_OK;
}

}  // namespace
DSV4_CPU_KERNEL(sparse_paged_attention, SparsePagedAttentionParams, launch)
}  // namespace dsv4::cpu
