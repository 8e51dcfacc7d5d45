// SPDX-License-Identifier: Apache-2.0
// lightning_index, in three passes over a chunk of rows: their queries are rotated; blocks of kEntries entries are laid
// out with one entry a lane, and every row of the request is scored against the block; the topk of a row are found by
// radix selection (order: higher score, then lower entry). A row with at most topk entries needs no scores.
// A work item of the scores is one request x one block, so that one row spreads over the threads. Chunks bound the
// workspace. Bound by arithmetic: 2 * H * D flops an entry, fp32. Contract: include/dsv4spec/target.h.
#include <algorithm>

#include "index_select.h"
#include "packed_rows.h"
#include "rmsnorm.h"
#include "rope.h"

namespace dsv4::cpu {
namespace {

using Params = LightningIndexParams;
// A register tile: kHeads x kVectors sums.
constexpr int kHeads = W == 16 ? 8 : 4;
constexpr int kVectors = W == 16 ? 3 : 2;
constexpr int kEntries = kVectors * W;
constexpr int64_t kChunkBytes = 16 << 20;

int64_t entries_of(const Params& p) { return p.table.shape[1] * p.page; }
int64_t padded_heads(const Params& p) { return (p.H + kHeads - 1) / kHeads * kHeads; }
int64_t padded_entries(const Params& p) { return (entries_of(p) + kEntries - 1) / kEntries * kEntries; }
// What a row has in the workspace: the query by tiles, [tile][d][kHeads], the weights of the heads, the ranks of entries.
int64_t row_floats(const Params& p) { return (padded_heads(p) * (p.D + 1) + padded_entries(p) + 15) / 16 * 16; }
int64_t chunk_rows(const Params& p) {
  return std::clamp<int64_t>(kChunkBytes / (row_floats(p) * static_cast<int64_t>(sizeof(float))), 1, p.T);
}
bool scores_needed(const Params& p) { return entries_of(p) > p.topk; }
uint64_t workspace_size(const Params& p) { return scores_needed(p) ? chunk_rows(p) * row_floats(p) * sizeof(float) : 0; }

// Entries that a row sees.
int64_t count_of(const Params& p, const PackedRequest& r, int64_t row) {
  return r.length == 0 ? 0 : std::min((r.committed() + row - r.start + 1) / p.ratio, entries_of(p));
}

struct Row {
  float *q, *weight;
  uint32_t* rank;
  Row(const Params& p, float* memory, int64_t index) {
    q = memory + index * row_floats(p);
    weight = q + padded_heads(p) * p.D;
    rank = reinterpret_cast<uint32_t*>(weight + padded_heads(p));
  }
};

// The row's query in fp32, rotated; heads up to a whole tile are zero.
template <class T>
void read_query(const Params& p, int64_t row, int64_t position, const Row& to, Turn& turn) {
  if (p.cos_sin) turn.set(p.cos_sin.at<float>(position), p.D, p.R);
  for (int64_t h = 0; h < padded_heads(p); ++h) {
    float* q = to.q + h / kHeads * kHeads * p.D + h % kHeads;
    to.weight[h] = h < p.H ? p.weights.at<float>(row)[h] : 0.0f;
    for_vectors(p.D, [&](int64_t d, int n) {
      vf v = h < p.H ? load_some(p.q.at<T>(row, h) + d, n) : vf{};
      if (p.cos_sin && d >= turn.begin) v = turn(v, d);
      for (int i = 0; i < n; ++i) q[(d + i) * kHeads] = v[i];
    });
  }
}

// The key of an entry; null for one behind `count` or without a page.
template <class T>
const T* key_of(const Params& p, int64_t b, int64_t entry, int64_t count) {
  const int64_t page = entry < count ? int_at(p.table, b, entry / p.page) : -1;
  return page < 0 ? nullptr : p.index_pages.at<T>(page, entry % p.page);
}

// Keys of entries [first, first + kEntries) as [D][kEntries]; those that are not there are zero, and have no bits in
// `present`.
template <class T>
void read_block(const Params& p, int64_t b, int64_t first, int64_t count, float* block, uint32_t* present) {
  const T* key[kEntries];
  for (int i = 0; i < kEntries; ++i) {
    key[i] = key_of<T>(p, b, first + i, count);
    present[i] = key[i] ? ~0u : 0;
  }
  for_vectors(p.D, [&](int64_t d, int n) {
    for (int v = 0; v < kVectors; ++v) {
      vf x[W];
      for (int i = 0; i < W; ++i) x[i] = key[v * W + i] ? load_some(key[v * W + i] + d, n) : vf{};
      transpose(x);
      for (int i = 0; i < n; ++i) store(block + (d + i) * kEntries + v * W, x[i]);
    }
  });
}

// Scores of a block for one row; heads add up in order. before(h) comes before heads h to h + kHeads.
template <class Before>
void score(const Params& p, const Row& row, const float* block, const uint32_t* present, uint32_t* rank, Before&& before) {
  vf total[kVectors] = {};
  for (int64_t h = 0; h < padded_heads(p); h += kHeads) {
    before(h);
    const float* q = row.q + h * p.D;
    vf sum[kHeads][kVectors] = {};
    for (int64_t d = 0; d < p.D; ++d) {
      vf key[kVectors];
      for (int v = 0; v < kVectors; ++v) key[v] = load(block + d * kEntries + v * W);
      for (int i = 0; i < kHeads; ++i)
        for (int v = 0; v < kVectors; ++v) sum[i][v] += key[v] * q[d * kHeads + i];
    }
    for (int i = 0; i < kHeads; ++i) {
      const vi there = vi{} - (h + i < p.H ? 1 : 0);  // a head that fills the tile up adds 0, also to an infinite key
      for (int v = 0; v < kVectors; ++v) {
        const vf positive = reinterpret_cast<vf>(reinterpret_cast<vi>(vmax(vf{}, sum[i][v])) & there);  // a NaN stays
        total[v] += positive * row.weight[h + i];
      }
    }
  }
  for (int v = 0; v < kVectors; ++v) {
    vu seen;
    std::memcpy(&seen, present + v * W, sizeof seen);
    seen &= rank_of(total[v]);
    std::memcpy(rank + v * W, &seen, sizeof seen);
  }
}

// fn(request, rows of it in [t0, t1), entries that the last of them sees) for requests that need scores.
template <class Fn>
void for_scored(const Params& p, int64_t t0, int64_t t1, Fn&& fn) {
  for (int64_t b = 0; b < p.B; ++b) {
    const PackedRequest r = packed_request(p, b);
    const int64_t begin = std::max(r.start, t0), end = std::min(r.start + r.rows, t1);
    if (begin >= end) continue;
    const int64_t count = count_of(p, r, end - 1);
    if (count > p.topk) fn(r, begin, end, count);
  }
}

template <class T>
void score_rows(const Params& p, int64_t t0, int64_t t1, float* memory) {
  int64_t blocks = 0;
  for_scored(p, t0, t1, [&](const PackedRequest&, int64_t, int64_t, int64_t count) { blocks += (count + kEntries - 1) / kEntries; });
  parallel(blocks, grain_for(kEntries * p.H * p.D / 8), [&](int64_t begin, int64_t end) {
    alignas(64) float block[kMaxHeadSize * kEntries];
    uint32_t present[kEntries];
    int64_t item = 0;  // number of the request's first block
    for_scored(p, t0, t1, [&](const PackedRequest& r, int64_t row0, int64_t row1, int64_t count) {
      const int64_t size = (count + kEntries - 1) / kEntries;
      for (int64_t i = std::max(begin - item, int64_t{0}); i < std::min(end - item, size); ++i) {
        const int64_t first = i * kEntries;
        read_block<T>(p, r.b, first, count, block, present);
        // The first row's heads fetch the keys of the next block, each tile of heads its share of them.
        const int64_t share = (kEntries * kHeads + padded_heads(p) - 1) / padded_heads(p);
        auto fetch = [&](int64_t h) __attribute__((always_inline)) {  // or GCC 12 drops it
          for (int64_t w = h / kHeads * share; w < std::min<int64_t>((h / kHeads + 1) * share, kEntries); ++w)
            if (const T* key = key_of<T>(p, r.b, first + kEntries + w, count))
              for (int64_t d = 0; d < p.D; d += 64 / sizeof(T)) __builtin_prefetch(key + d, 0, 2);
        };
        for (int64_t t = row0; t < row1; ++t) {
          const int64_t seen = count_of(p, r, t);
          if (seen <= p.topk || seen <= first) continue;
          const Row row(p, memory, t - t0);
          score(p, row, block, present, row.rank + first, [&](int64_t h) { t == row0 ? fetch(h) : void(); });
        }
      }
      item += size;
    });
  });
}

// The chosen entries of a row, whose ranks are there if it sees more than topk.
void choose(const Params& p, const PackedRequest& r, int64_t row, int64_t count, const uint32_t* rank) {
  int32_t* out = p.out.at<int32_t>(row);
  int64_t found = 0;
  if (count > p.topk) {
    found = select_largest(rank, count, p.topk, out);
  } else {
    for (int64_t w = 0; w < count; ++w)
      if (int_at(p.table, r.b, w / p.page) >= 0) out[found++] = static_cast<int32_t>(w);
  }
  std::fill(out + found, out + p.topk, -1);
}

template <class T>
void run(const Params& p, float* memory) {
  const int64_t step = scores_needed(p) ? chunk_rows(p) : p.T;
  for (int64_t t0 = 0; t0 < p.T; t0 += step) {
    const int64_t t1 = std::min(t0 + step, p.T);
    if (scores_needed(p)) {
      parallel(t1 - t0, grain_for(8 * p.H * p.D), [&](int64_t begin, int64_t end) {
        Turn turn;
        for (int i = 0; i < kMaxHeadSize; ++i) turn.c[i] = turn.s[i] = 0.0f;
        for (int64_t t = t0 + begin; t < t0 + end; ++t) {
          const PackedRequest r = request_of_row(p, t);
          if (count_of(p, r, t) > p.topk)
            read_query<T>(p, t, r.committed() + t - r.start, Row(p, memory, t - t0), turn);
        }
      });
      score_rows<T>(p, t0, t1, memory);
    }
    parallel(t1 - t0, grain_for(entries_of(p) * 16), [&](int64_t begin, int64_t end) {
      for (int64_t t = t0 + begin; t < t0 + end; ++t) {
        const PackedRequest r = request_of_row(p, t);
        choose(p, r, t, count_of(p, r, t), scores_needed(p) ? Row(p, memory, t - t0).rank : nullptr);
      }
    });
  }
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
  float* workspace = static_cast<float*>(launch.workspace);
  p.q.dtype == kF32 ? run<float>(p, workspace) : run<bf16>(p, workspace);
  return DSV4_OK;
}

}  // namespace
DSV4_CPU_KERNEL_WITH_WORKSPACE(lightning_index, LightningIndexParams, launch, workspace_size)
}  // namespace dsv4::cpu
