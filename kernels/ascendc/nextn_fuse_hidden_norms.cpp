// SPDX-License-Identifier: Apache-2.0
// The norms of nextn_fuse_hidden, on vector cores. A launch of their own, so that no core of the products waits
// for another block's: two of those kernels in two streams could wait for each other's cores.
#include "fuse_norms.h"

// Names: type of rows, then of products.
#define DSV4_FUSE_NORMS(name, T, X)                                                                        \
  extern "C" DSV4_VECTOR_KERNEL void dsv4_nextn_fuse_hidden_norms_##name(                                  \
      GM_ADDR embeds, GM_ADDR hidden, GM_ADDR enorm, GM_ADDR hnorm, GM_ADDR workspace,                     \
      NextnFuseHiddenTiling tiling) {                                                                      \
    KERNEL_TASK_TYPE_DEFAULT(KERNEL_TYPE_AIV_ONLY);                                                        \
    dsv4_ascend::FuseNorms<T, X>(embeds, hidden, enorm, hnorm, workspace, tiling).run();                   \
  }
DSV4_FUSE_NORMS(bf16_bf16, bfloat16_t, bfloat16_t)
DSV4_FUSE_NORMS(bf16_f32, bfloat16_t, float)
DSV4_FUSE_NORMS(f16_f16, half, half)
DSV4_FUSE_NORMS(f16_f32, half, float)
DSV4_FUSE_NORMS(f32_f32, float, float)
