// SPDX-License-Identifier: Apache-2.0
// mhc_head: y from the residual streams after the last layer. One launch up to 64 tokens (mhc_once.h), else two
// a turn of tokens, as mhc_pre, whose banner has the rates, the buffers and the reasons; no core makes coefficients. Contract:
// include/dsv4spec/mhc.h.
//
// Flash (d 4096, hc 4, bf16, norm), 48 cores:
//     T      fewest bytes   moved by MTE2 + MTE3   floor, bytes   vector cycles         bound
//     1         0.31 MB          0.33 MB              0.2 us        0.006 M, 0.1 us     launch
//    16         0.93 MB          0.96 MB              0.6 us        0.08 M,  1.5 us     launch
//    64         2.89 MB          3.03 MB              1.8 us        0.33 M,  5.8 us     launch, vector
//  4096          168 MB           309 MB              105 us        21.4 M,  248 us     vector; 137 MB of it x again,
//                                                                                       from the second-level cache
#include "mhc_kernels.h"

#define ENTRY(suffix, T)                                                                                     \
  extern "C" DSV4_VECTOR_KERNEL void dsv4_mhc_head_project_##suffix(GM_ADDR residual, GM_ADDR fn,            \
                                                                    GM_ADDR workspace, MhcProjectTiling tiling) {\
    KERNEL_TASK_TYPE_DEFAULT(KERNEL_TYPE_AIV_ONLY);                                                          \
    dsv4_ascend::mhc_project<T>(residual, fn, workspace, tiling);                                            \
  }                                                                                                          \
  extern "C" DSV4_VECTOR_KERNEL void dsv4_mhc_head_finish_##suffix(                                          \
      GM_ADDR residual, GM_ADDR base, GM_ADDR scale, GM_ADDR norm, GM_ADDR y, GM_ADDR workspace,             \
      MhcFinishTiling tiling) {                                                                              \
    KERNEL_TASK_TYPE_DEFAULT(KERNEL_TYPE_AIV_ONLY);                                                          \
    dsv4_ascend::mhc_join<T>(residual, workspace, base, scale, norm, y, 1, tiling);                          \
  }
DSV4_STREAM_ENTRIES(ENTRY)
#undef ENTRY
