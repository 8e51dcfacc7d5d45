// SPDX-License-Identifier: Apache-2.0
// mhc_head: y from the residual streams after the last layer. Two launches a turn of tokens, as mhc_pre, whose banner
// has the rates, the buffers and the reasons; no core makes coefficients. Contract: include/dsv4spec/mhc.h.
//
// Flash (d 4096, hc 4, bf16, norm), 48 cores:
//     T      fewest bytes   moved by MTE2 + MTE3   floor, bytes   vector repeats        bound
//     1         0.31 MB          0.35 MB              0.2 us        0.003 M, 1.2 us     one row on one core
//    64         2.89 MB          5.99 MB              1.8 us        0.18 M,  2.1 us     vector
//  4096          168 MB           309 MB              105 us        11.2 M,  130 us     vector; 137 MB of it x again,
//                                                                                       from the second-level cache
#include "mhc_kernels.h"

extern "C" DSV4_VECTOR_KERNEL void dsv4_mhc_head_project_bf16(GM_ADDR residual, GM_ADDR fn,
                                                              GM_ADDR workspace, MhcProjectTiling tiling) {
  KERNEL_TASK_TYPE_DEFAULT(KERNEL_TYPE_AIV_ONLY);
  dsv4_ascend::mhc_project<bfloat16_t>(residual, fn, workspace, tiling);
}
extern "C" DSV4_VECTOR_KERNEL void dsv4_mhc_head_finish_bf16(GM_ADDR residual, GM_ADDR base, GM_ADDR scale,
                                                             GM_ADDR norm, GM_ADDR y, GM_ADDR workspace,
                                                             MhcFinishTiling tiling) {
  KERNEL_TASK_TYPE_DEFAULT(KERNEL_TYPE_AIV_ONLY);
  dsv4_ascend::mhc_join<bfloat16_t>(residual, workspace, base, scale, norm, y, 1, tiling);
}
extern "C" DSV4_VECTOR_KERNEL void dsv4_mhc_head_project_f16(GM_ADDR residual, GM_ADDR fn,
                                                             GM_ADDR workspace, MhcProjectTiling tiling) {
  KERNEL_TASK_TYPE_DEFAULT(KERNEL_TYPE_AIV_ONLY);
  dsv4_ascend::mhc_project<half>(residual, fn, workspace, tiling);
}
extern "C" DSV4_VECTOR_KERNEL void dsv4_mhc_head_finish_f16(GM_ADDR residual, GM_ADDR base, GM_ADDR scale,
                                                            GM_ADDR norm, GM_ADDR y, GM_ADDR workspace,
                                                            MhcFinishTiling tiling) {
  KERNEL_TASK_TYPE_DEFAULT(KERNEL_TYPE_AIV_ONLY);
  dsv4_ascend::mhc_join<half>(residual, workspace, base, scale, norm, y, 1, tiling);
}
extern "C" DSV4_VECTOR_KERNEL void dsv4_mhc_head_project_f32(GM_ADDR residual, GM_ADDR fn,
                                                             GM_ADDR workspace, MhcProjectTiling tiling) {
  KERNEL_TASK_TYPE_DEFAULT(KERNEL_TYPE_AIV_ONLY);
  dsv4_ascend::mhc_project<float>(residual, fn, workspace, tiling);
}
extern "C" DSV4_VECTOR_KERNEL void dsv4_mhc_head_finish_f32(GM_ADDR residual, GM_ADDR base, GM_ADDR scale,
                                                            GM_ADDR norm, GM_ADDR y, GM_ADDR workspace,
                                                            MhcFinishTiling tiling) {
  KERNEL_TASK_TYPE_DEFAULT(KERNEL_TYPE_AIV_ONLY);
  dsv4_ascend::mhc_join<float>(residual, workspace, base, scale, norm, y, 1, tiling);
}
