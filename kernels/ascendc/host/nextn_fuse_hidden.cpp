// SPDX-License-Identifier: Apache-2.0
// nextn_fuse_hidden: a launch for the norms, on vector cores; then groups of a cube core and two vector cores:
// chunks of tokens, tiles of channels, scratch.
#include "../launch.h"
#include "../nextn_fuse_hidden_tiling.h"

#define DSV4_FUSE_DECLARE(name)                                                                             \
  DSV4_ASCEND_DECLARE(dsv4_nextn_fuse_hidden_##name, GM_ADDR, GM_ADDR, GM_ADDR, GM_ADDR, GM_ADDR, GM_ADDR,  \
                      NextnFuseHiddenTiling)
#define DSV4_FUSE_DECLARE_NORMS(name)                                                                       \
  DSV4_ASCEND_DECLARE(dsv4_nextn_fuse_hidden_norms_##name, GM_ADDR, GM_ADDR, GM_ADDR, GM_ADDR, GM_ADDR,     \
                      NextnFuseHiddenTiling)
DSV4_FUSE_DECLARE_NORMS(bf16_bf16);
DSV4_FUSE_DECLARE_NORMS(bf16_f32);
DSV4_FUSE_DECLARE_NORMS(f16_f16);
DSV4_FUSE_DECLARE_NORMS(f16_f32);
DSV4_FUSE_DECLARE_NORMS(f32_f32);
DSV4_FUSE_DECLARE(bf16_bf16);
DSV4_FUSE_DECLARE(bf16_f16);
DSV4_FUSE_DECLARE(bf16_f32);
DSV4_FUSE_DECLARE(bf16_i8);
DSV4_FUSE_DECLARE(bf16_e4m3);
DSV4_FUSE_DECLARE(f16_bf16);
DSV4_FUSE_DECLARE(f16_f16);
DSV4_FUSE_DECLARE(f16_f32);
DSV4_FUSE_DECLARE(f16_i8);
DSV4_FUSE_DECLARE(f16_e4m3);
DSV4_FUSE_DECLARE(f32_bf16);
DSV4_FUSE_DECLARE(f32_f16);
DSV4_FUSE_DECLARE(f32_f32);
DSV4_FUSE_DECLARE(f32_i8);
DSV4_FUSE_DECLARE(f32_e4m3);

namespace dsv4::ascend {
namespace {

constexpr int64_t kRowStride = 65535;    // the largest that DataCopy with Nd2NzParams takes
constexpr int64_t kL0C = 128 * 1024, kMostColumns = 256, kMostRows = 256;
constexpr int64_t kRingRow = 512;        // bytes of k in a tile

// What the cube multiplies, as the kernels' names have it: 16 bits where both sides are exact in them.
Dtype products_of(Dtype rows, Dtype weights) {
  if (rows == kBF16 && (weights == kBF16 || weights == kI8 || weights == kF8E4M3)) return kBF16;
  return rows == kF16 && (weights == kF16 || weights == kI8) ? kF16 : kF32;
}

// Channels of a tile: no more than L0C and L0B hold, and such that the busiest core reads least. A unit reads rows of
// d: two of weights a channel, and its chunk's.
int64_t best_tile(const NextnFuseHiddenParams& p, int64_t chunk, int64_t chunks, int64_t cores) {
  const int64_t rows = chunk * (1 + p.hc), in_l0c = kL0C / 4 / rows / 16 * 16;
  int64_t best = 0, least = 0;
  for (int64_t tile = in_l0c < kMostColumns ? in_l0c : kMostColumns; tile > 0; tile -= 16) {
    const int64_t rounds = ceil_div(ceil_div(p.d, tile) * chunks, cores), cost = rounds * (2 * tile + rows);
    if (!best || cost < least) best = tile, least = cost;
  }
  return best;
}

struct Plan {
  NextnFuseHiddenTiling tiling{};
  bool decoded;
  Dtype products;
  int64_t blocks;
  uint64_t bytes;

  explicit Plan(const NextnFuseHiddenParams& p) {
    products = products_of(p.embeds.dtype, p.e_proj.dtype);
    decoded = p.e_proj.dtype != products;
    const int64_t element = products == kF32 ? 4 : 2, cores = cube_cores();
    const int64_t most = kMostRows / p.hc > 64 ? 64 : kMostRows / p.hc, rounded = round_up<int64_t>(p.T, 16);
    const int64_t chunk = rounded < most ? rounded : most, chunks = ceil_div(p.T, chunk);
    const int64_t tile = best_tile(p, chunk, chunks, cores);
    const int64_t tiles = ceil_div(p.d, tile), units = tiles * chunks;
    blocks = units < cores ? units : cores;

    NextnFuseHiddenTiling& v = tiling;
    v.embeds_t = p.embeds.stride[0], v.hidden_t = p.hidden.stride[0];
    v.out_t = p.out.stride[0], v.out_i = p.out.stride[1];
    v.weight_n[0] = p.e_proj.stride[0], v.weight_n[1] = p.h_proj.stride[0];
    if (p.e_proj.dtype == kF8E4M3) v.scale_n[0] = p.e_proj_scale.stride[0], v.scale_n[1] = p.h_proj_scale.stride[0];
    v.T = static_cast<int32_t>(p.T), v.hc = static_cast<int32_t>(p.hc), v.d = static_cast<int32_t>(p.d);
    v.pitch = static_cast<int32_t>(round_up<int64_t>(p.d, 16));
    const bool single = p.T % 16 == 1;  // the last chunk has one token; a row of zeros follows where it has one row
    v.e_rows = static_cast<int32_t>(p.T + single), v.h_rows = static_cast<int32_t>(p.T * p.hc + (single && p.hc == 1));
    v.chunk = static_cast<int32_t>(chunk), v.chunks = static_cast<int32_t>(chunks);
    v.tile = static_cast<int32_t>(tile), v.tiles = static_cast<int32_t>(tiles);
    v.norm_f32[0] = p.enorm_weight.dtype == kF32, v.norm_f32[1] = p.hnorm_weight.dtype == kF32;
    v.eps = static_cast<float>(p.eps), v.mean = 1.f / static_cast<float>(p.d);
    const int64_t rows = int64_t{v.e_rows} + v.h_rows;
    v.flags_at = round_up<int64_t>(rows * v.pitch * element, 512);
    v.ring_at = round_up<int64_t>(v.flags_at + rows * 32, 512);
    v.channels_at = v.ring_at + (decoded ? blocks * 2 * tile * kRingRow : 0);
    v.sums_at = v.channels_at + (p.e_proj.dtype == kF8E4M3 ? blocks * 2 * kMostColumns * 4 : 0);
    bytes = static_cast<uint64_t>(v.sums_at + blocks * chunk * (1 + p.hc) * tile * 4);
  }
};

uint64_t workspace_size(const NextnFuseHiddenParams& p) { return Plan(p).bytes; }

int32_t launch_norms(const NextnFuseHiddenParams& p, const Plan& plan, const Launch& l) {
  const int64_t rows = int64_t{plan.tiling.e_rows} + plan.tiling.h_rows, cores = vector_cores();
#define DSV4_FUSE_LAUNCH_NORMS(name)                                                                             \
  return DSV4_ASCEND_LAUNCH(dsv4_nextn_fuse_hidden_norms_##name, rows < cores ? rows : cores, l,                 \
                            address(p.embeds), address(p.hidden), address(p.enorm_weight),                       \
                            address(p.hnorm_weight), workspace_of(l), plan.tiling)
  const bool exact = plan.products == kF32;
  switch (p.embeds.dtype) {
    case kBF16:
      if (exact) DSV4_FUSE_LAUNCH_NORMS(bf16_f32);
      DSV4_FUSE_LAUNCH_NORMS(bf16_bf16);
    case kF16:
      if (exact) DSV4_FUSE_LAUNCH_NORMS(f16_f32);
      DSV4_FUSE_LAUNCH_NORMS(f16_f16);
    default: DSV4_FUSE_LAUNCH_NORMS(f32_f32);
  }
#undef DSV4_FUSE_LAUNCH_NORMS
}

int32_t launch(const NextnFuseHiddenParams& p, const Launch& l) {
  if (p.T == 0) return DSV4_OK;
  const Plan plan(p);
  for (int side = 0; !plan.decoded && side < 2; ++side)
    if (plan.tiling.weight_n[side] > kRowStride)
      return refuse(l, "%s: expected rows at most %lld elements apart, got %lld", side ? "h_proj" : "e_proj",
                    static_cast<long long>(kRowStride), static_cast<long long>(plan.tiling.weight_n[side]));
  const int32_t normed = launch_norms(p, plan, l);
  if (normed != DSV4_OK) return normed;
#define DSV4_FUSE_LAUNCH(name)                                                                                  \
  return DSV4_ASCEND_LAUNCH(dsv4_nextn_fuse_hidden_##name, plan.blocks, l, address(p.e_proj), address(p.h_proj), \
                            address(p.e_proj_scale), address(p.h_proj_scale), address(p.out),                   \
                            workspace_of(l), plan.tiling)
#define DSV4_FUSE_ROWS(rows)                           \
  switch (p.e_proj.dtype) {                            \
    case kBF16: DSV4_FUSE_LAUNCH(rows##_bf16);         \
    case kF16: DSV4_FUSE_LAUNCH(rows##_f16);           \
    case kF32: DSV4_FUSE_LAUNCH(rows##_f32);           \
    case kI8: DSV4_FUSE_LAUNCH(rows##_i8);             \
    default: DSV4_FUSE_LAUNCH(rows##_e4m3);            \
  }
  switch (p.embeds.dtype) {
    case kBF16: DSV4_FUSE_ROWS(bf16)
    case kF16: DSV4_FUSE_ROWS(f16)
    default: DSV4_FUSE_ROWS(f32)
  }
#undef DSV4_FUSE_ROWS
#undef DSV4_FUSE_LAUNCH
}

}  // namespace
DSV4_ASCEND_KERNEL_WITH_WORKSPACE(nextn_fuse_hidden, NextnFuseHiddenParams, launch, workspace_size)
DSV4_ASCEND_FLOAT16(nextn_fuse_hidden)
}  // namespace dsv4::ascend
