// SPDX-License-Identifier: Apache-2.0
// mhc_post_pre: mhc_post of the sub-layer that ends and mhc_pre of the one that starts. The residual is read and
// written once, and the rounded values go on: up to 64 tokens in one launch (mhc_once.h, mhc_post_pre_once.cpp), which
// keeps them, else in the first of two. mhc_pre's banner has the rates, the buffers and the reasons. Contract:
// include/dsv4spec/mhc.h.
//
// Flash (d 4096, hc 4, bf16, norm), 48 cores:
//     T      fewest bytes   moved by MTE2 + MTE3   floor, bytes   vector cycles         bound
//     1         1.66 MB          1.76 MB              1.0 us        0.026 M,   4 us     sinkhorn's 160 dependent steps
//    16         2.89 MB          3.12 MB              1.8 us        0.36 M,  6.3 us     launch, vector
//    64         6.83 MB          7.76 MB              4.3 us        1.45 M,   25 us     launch, vector
//  4096          338 MB           511 MB              211 us        91.3 M, 1057 us     vector; two launches
#include "mhc_kernels.h"

#define ENTRY(suffix, T)                                                                                     \
  extern "C" DSV4_VECTOR_KERNEL void dsv4_mhc_post_pre_project_##suffix(                                     \
      GM_ADDR y, GM_ADDR residual, GM_ADDR post, GM_ADDR comb, GM_ADDR fn, GM_ADDR residual_out,             \
      GM_ADDR workspace, MhcProjectTiling tiling) {                                                          \
    KERNEL_TASK_TYPE_DEFAULT(KERNEL_TYPE_AIV_ONLY);                                                          \
    dsv4_ascend::mhc_mix_project<T>(y, residual, post, comb, fn, residual_out, workspace, tiling);           \
  }                                                                                                          \
  extern "C" DSV4_VECTOR_KERNEL void dsv4_mhc_post_pre_finish_##suffix(                                      \
      GM_ADDR residual, GM_ADDR base, GM_ADDR scale, GM_ADDR norm, GM_ADDR y, GM_ADDR post, GM_ADDR comb,    \
      GM_ADDR workspace, MhcFinishTiling tiling) {                                                           \
    KERNEL_TASK_TYPE_DEFAULT(KERNEL_TYPE_AIV_ONLY);                                                          \
    dsv4_ascend::mhc_finish<T>(residual, workspace, base, scale, norm, y, post, comb, tiling);               \
  }
DSV4_STREAM_ENTRIES(ENTRY)
#undef ENTRY
