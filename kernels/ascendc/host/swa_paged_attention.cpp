// SPDX-License-Identifier: Apache-2.0
// swa_paged_attention: units of work of up to 16 (query row, head) pairs, spread over the vector cores.
#include "../launch.h"
#include "../swa_paged_attention_tiling.h"

DSV4_ASCEND_DECLARE(dsv4_swa_paged_attention_f32, GM_ADDR, GM_ADDR, GM_ADDR, GM_ADDR, GM_ADDR, GM_ADDR,
                    GM_ADDR, GM_ADDR, GM_ADDR, SwaTiling);
#define DECLARE(suffix)                                                                               \
  DSV4_ASCEND_DECLARE(dsv4_swa_paged_attention_##suffix, GM_ADDR, GM_ADDR, GM_ADDR, GM_ADDR, GM_ADDR, \
                      GM_ADDR, GM_ADDR, GM_ADDR, GM_ADDR, GM_ADDR, SwaTiling);
DECLARE(bf16)
DECLARE(f16)

namespace dsv4::ascend {
namespace {

constexpr int32_t kKeys = 32;
constexpr int64_t kUnified = 184 * 1024 - 256;

// Bytes of the buffers of SwaTurn.
int64_t turn_bytes(const SwaPagedAttentionParams& p) {
  return p.R ? round_up<int64_t>(p.D - (p.D - p.R) / 8 * 8, 64) * 7 * 4 + round_up<int64_t>(p.R, 8) * 4 : 0;
}
// Bytes of the buffers of SwaExact.
int64_t exact_bytes(const SwaPagedAttentionParams& p, int64_t pairs, int64_t kv_buffers) {
  return (2 * pairs + kv_buffers * kKeys) * p.D * 4 + 2 * kKeys * 64 * 4 + 2 * kKeys * 64 / 8 +
         pairs * kKeys * (4 + 32) + swa_softmax_bytes(static_cast<int32_t>(pairs), 1, kKeys) + turn_bytes(p);
}

// Gives every unit of work all heads of the rows that a request has on average, up to `pairs`, or, where a
// row alone has more heads, an even part of them.
void cut(SwaTiling& v, int64_t pairs) {
  v.head_tiles = static_cast<int32_t>(ceil_div<int64_t>(v.H, pairs));
  v.tile_heads = ceil_div(v.H, v.head_tiles);
  const int64_t average = v.B > 0 ? ceil_div(v.T, v.B) : 1, most = pairs / v.tile_heads;
  v.tile_rows = static_cast<int32_t>(average < 1 ? 1 : average < most ? average : most);
}

SwaTiling tiling_of(const SwaPagedAttentionParams& p) {
  SwaTiling v{};
  v.q_t = p.q.stride[0], v.q_h = p.q.stride[1];
  v.kv_page = p.kv_pages.stride[0], v.kv_slot = p.kv_pages.stride[1];
  v.out_t = p.out.stride[0], v.out_h = p.out.stride[1];
  v.mask_b = p.tree_mask.stride[0], v.mask_j = p.tree_mask.stride[1];
  v.angle_row = p.cos_sin.stride[0], v.table_b = p.block_table.stride[0];
  v.T = p.T, v.B = p.B, v.P = p.P, v.page = p.page, v.maxp = p.maxp, v.window = p.window,
  v.max_pos = p.max_pos;
  v.H = static_cast<int32_t>(p.H), v.D = static_cast<int32_t>(p.D), v.n = static_cast<int32_t>(p.n);
  v.R = p.max_pos > 0 ? static_cast<int32_t>(p.R) : 0;
  v.scale = p.scale, v.zero_padding = p.zero_padding, v.has_sink = p.sink.data != nullptr;
  v.wide_table = p.block_table.dtype == kI64, v.wide_starts = p.query_start_loc.dtype == kI64;
  v.wide_lens = p.seq_lens.dtype == kI64;
  return v;
}

int32_t launch_exact(const SwaPagedAttentionParams& p, const Launch& l) {
  SwaTiling v = tiling_of(p);
  v.pairs = 16, v.kv_buffers = 2, v.grain = kKeys;
  if (exact_bytes(p, 16, 2) > kUnified) {
    v.kv_buffers = 1;
    if (exact_bytes(p, 16, 1) > kUnified) v.pairs = 8;
  }
  cut(v, v.pairs);
  const int64_t units = ceil_div<int64_t>(v.T, v.tile_rows) * v.head_tiles, cores = vector_cores();
  return DSV4_ASCEND_LAUNCH(dsv4_swa_paged_attention_f32, units < cores ? units : cores, l, address(p.q),
                            address(p.kv_pages), address(p.block_table), address(p.query_start_loc),
                            address(p.seq_lens), address(p.sink), address(p.tree_mask), address(p.cos_sin),
                            address(p.out), v);
}

// ---- 16-bit dtypes: cube and vector cores
constexpr int64_t kL1 = 512 * 1024 - 256, kPart = 256;
constexpr int64_t kOnePart =
    128;  // the longest window whose keys, for 64 rows or nodes, lie in 256 from a multiple of 64

bool online(const SwaPagedAttentionParams& p) { return p.window > kOnePart; }

// Bytes of the buffers of SwaVector.
int64_t vector_bytes(const SwaPagedAttentionParams& p, int64_t pairs) {
  const int64_t half = pairs / 2;
  return half * kPart * (4 + 2) + swa_softmax_bytes(static_cast<int32_t>(half), 4, 64) + 2 * 2048 * (4 + 2) +
         3 * 16 * p.D * 2 + 4 * 256 + 64 + (online(p) ? half * p.D * 4 : 0) + turn_bytes(p);
}
// Bytes of the buffers of SwaCube.
int64_t l1_bytes(const SwaTiling& v) {
  return 2 * (int64_t{v.pairs} * v.D + int64_t{v.kv_buffers} * v.kv_rows * v.D +
              (v.online ? 1 : 2) * int64_t{v.pairs} * v.kv_rows);
}

// Query rows of a unit of work. A group of cores reads the keys of its unit's rows, so that several units of a
// request read its window several times: as many of them as cost a tenth of the request's bytes at most
// share it where that gives the busiest group less.
int32_t unit_rows(const SwaTiling& v) {
  constexpr int64_t kMost = 64;  // rows, so that their keys are of one part
  const int64_t cores = cube_cores(), average = v.B > 0 ? ceil_div(v.T, v.B) : 1;
  const int64_t window = v.window + v.n, of_row = 1 + 2 * int64_t{v.H};
  const int64_t least = ceil_div(average, kMost), most = 1 + (window + average * of_row) / 10 / window;
  int64_t best = 0, cost = 0;
  for (int64_t units = least; units <= (most > least ? most : least) && units <= average; ++units) {
    const int64_t rows = ceil_div(average, units);
    const int64_t busiest = ceil_div(ceil_div(v.T, rows), cores) * (window + rows * of_row);
    if (best == 0 || busiest < cost) best = rows, cost = busiest;
  }
  return static_cast<int32_t>(best);
}

// What the launch and the size of its scratch both need to know.
SwaTiling mixed_tiling(const SwaPagedAttentionParams& p) {
  SwaTiling v = tiling_of(p);
  v.online = online(p), v.grain = v.online ? kPart : 64;
  v.turned = v.R ? v.D - (v.D - v.R) / 16 * 16 : 0;
  v.pairs = vector_bytes(p, 64) <= kUnified ? 64 : vector_bytes(p, 32) <= kUnified ? 32 : 16;
  v.part_heads = static_cast<int32_t>(ceil_div<int64_t>(v.H, ceil_div<int64_t>(v.H, v.pairs)));
  v.part_rows = v.H > v.pairs ? 1 : v.pairs / v.H;
  v.tile_rows = v.online ? v.part_rows : unit_rows(v);
  if (v.part_rows > v.tile_rows) v.part_rows = v.tile_rows;
  const int64_t span = v.online ? kPart : v.window + (v.n ? v.n : v.tile_rows - 1) + 15;
  v.kv_rows = static_cast<int32_t>(round_up<int64_t>(span < kPart ? span : kPart, 16));
  v.kv_buffers = 2;  // keys of the next unit are loaded while this one is worked on
  if (l1_bytes(v) > kL1) v.kv_buffers = 1;
  return v;
}

SwaScratch scratch_of(const SwaTiling& v) {
  return swa_scratch(v.pairs, v.D, v.online ? v.D : v.turned, v.kv_rows);
}
int64_t groups(const SwaTiling& v) {
  const int64_t units = ceil_div<int64_t>(v.T, v.tile_rows), cores = cube_cores();
  return units < cores ? units : cores;
}

uint64_t workspace_size(const SwaPagedAttentionParams& p) {
  if (p.q.dtype == kF32 || p.T == 0) return 0;
  const SwaTiling v = mixed_tiling(p);
  return static_cast<uint64_t>(scratch_of(v).bytes * groups(v));
}

int32_t launch_mixed(const SwaPagedAttentionParams& p, const Launch& l) {
  const SwaTiling v = mixed_tiling(p);
#define LAUNCH(suffix)                                                                           \
  return DSV4_ASCEND_LAUNCH(dsv4_swa_paged_attention_##suffix, groups(v), l, address(p.q), \
                            address(p.kv_pages), address(p.block_table),           \
                            address(p.query_start_loc), address(p.seq_lens), address(p.sink),    \
                            address(p.tree_mask), address(p.cos_sin), address(p.out), workspace_of(l), v)
  if (p.q.dtype == kF16) LAUNCH(f16);
  LAUNCH(bf16);
#undef LAUNCH
}

int32_t launch(const SwaPagedAttentionParams& p, const Launch& l) {
  if (p.n > kSwaMaxNodes)
    return refuse(l, "tree_mask: expected at most %d nodes, got %lld", kSwaMaxNodes,
                  static_cast<long long>(p.n));
  return p.q.dtype == kF32 ? launch_exact(p, l) : launch_mixed(p, l);
}

}  // namespace
DSV4_ASCEND_KERNEL_WITH_WORKSPACE(swa_paged_attention, SwaPagedAttentionParams, launch, workspace_size)
DSV4_ASCEND_FLOAT16(swa_paged_attention)
}  // namespace dsv4::ascend
