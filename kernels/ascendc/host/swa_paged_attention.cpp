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

int32_t launch_exact(SwaTiling& v, const SwaPagedAttentionParams& p, const Launch& l) {
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

int64_t vector_bytes(const SwaPagedAttentionParams& p, int64_t pairs) {
  const int64_t half = pairs / 2;
  return half * kPart * (4 + 2) + swa_softmax_bytes(static_cast<int32_t>(half), 4, 64) +
         2 * 8 * p.D * (4 + 2) + 2 * 4 * p.D * (4 + 2) + p.D / 2 + 256 + 256 + 32 +
         (online(p) ? half * p.D * 4 : 0) + turn_bytes(p);
}
// The pairs of a unit that local memory has room for.
int64_t most_pairs(const SwaPagedAttentionParams& p) {
  return vector_bytes(p, 64) <= kUnified ? 64 : vector_bytes(p, 32) <= kUnified ? 32 : 16;
}
int64_t l1_bytes(const SwaTiling& v, int64_t pairs) {
  return 2 * (pairs * (v.D + kPart) + int64_t{v.kv_buffers} * v.kv_rows * v.D);
}

uint64_t workspace_size(const SwaPagedAttentionParams& p) {
  return p.q.dtype == kF32 ? 0 : static_cast<uint64_t>(swa_scratch(most_pairs(p), p.D).bytes * cube_cores());
}

int32_t launch_mixed(SwaTiling& v, const SwaPagedAttentionParams& p, const Launch& l) {
  const int64_t cores = cube_cores();
  v.pairs = static_cast<int32_t>(most_pairs(p)), v.online = online(p), v.grain = v.online ? kPart : 64;
  cut(v, v.pairs);
  while (v.pairs > 16 && ceil_div<int64_t>(v.T, v.tile_rows) * v.head_tiles * 2 <= cores)
    cut(v, v.pairs /= 2);
  // Keys of two parts in L1 where they fit: those of a part are loaded while the part before is worked on.
  const int64_t span = v.online ? kPart : v.window + (v.n ? v.n : v.tile_rows - 1) + 15;
  v.kv_buffers = 2, v.kv_rows = static_cast<int32_t>(round_up<int64_t>(span < kPart ? span : kPart, 64));
  if (l1_bytes(v, v.pairs) > kL1) v.kv_buffers = 1;
  const int64_t units = ceil_div<int64_t>(v.T, v.tile_rows) * v.head_tiles;
#define LAUNCH(suffix)                                                                           \
  return DSV4_ASCEND_LAUNCH(dsv4_swa_paged_attention_##suffix, units < cores ? units : cores, l, \
                            address(p.q), address(p.kv_pages), address(p.block_table),           \
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
  SwaTiling v = tiling_of(p);
  return p.q.dtype == kF32 ? launch_exact(v, p, l) : launch_mixed(v, p, l);
}

}  // namespace
DSV4_ASCEND_KERNEL_WITH_WORKSPACE(swa_paged_attention, SwaPagedAttentionParams, launch, workspace_size)
DSV4_ASCEND_FLOAT16(swa_paged_attention)
}  // namespace dsv4::ascend
