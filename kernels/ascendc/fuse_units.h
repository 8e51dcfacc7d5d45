// SPDX-License-Identifier: Apache-2.0
// What the cube and the vector cores of nextn_fuse_hidden agree on: units of work, sizes, flags.
#pragma once
#include "kernel.h"
#include "nextn_fuse_hidden_tiling.h"

namespace dsv4_ascend {

// A row of a tile of weights is 512 bytes in L1, and 128 bytes in L0.
template <class X>
constexpr int32_t kFuseDepth = 512 / static_cast<int32_t>(sizeof(X));
template <class X>
constexpr int32_t kFuseStep = 128 / static_cast<int32_t>(sizeof(X));

// Cross-core flags. Those of tiles: one for either half of the ring.
constexpr uint16_t kTileReady = 0, kTileFree = 2, kSumsReady = 4, kSumsFree = 5;

constexpr int32_t kFuseChannels = 256;  // the most of a tile

struct FuseUnit {
  int32_t n, columns, t, tokens;
};
__aicore__ inline FuseUnit fuse_unit(const NextnFuseHiddenTiling& v, int64_t u) {
  const int32_t n = static_cast<int32_t>(u / v.chunks) * v.tile, t = static_cast<int32_t>(u % v.chunks) * v.chunk;
  return {n, min_of(v.tile, v.d - n), t, min_of(v.chunk, v.T - t)};
}

// Step s of a unit: tiles of e_proj over all k, then those of h_proj.
struct FuseStep {
  int32_t side, k, depth;
};
template <class X>
__aicore__ inline FuseStep fuse_step(const NextnFuseHiddenTiling& v, int32_t s) {
  const int32_t steps = ceil_div(v.d, kFuseDepth<X>), side = s < steps ? 0 : 1;
  const int32_t k = (s - side * steps) * kFuseDepth<X>;
  return {side, k, min_of(kFuseDepth<X>, v.d - k)};
}
template <class X>
__aicore__ inline int32_t fuse_steps(const NextnFuseHiddenTiling& v) { return 2 * ceil_div(v.d, kFuseDepth<X>); }

}  // namespace dsv4_ascend
