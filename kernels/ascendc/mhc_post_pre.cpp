// SPDX-License-Identifier: Apache-2.0
// mhc_post_pre: mhc_post of the sub-layer that ends and mhc_pre of the one that starts. The residual is read and
// written once by the first launch, which goes on with the rounded values; the second is that of mhc_pre, whose banner
// has the rates, the buffers and the reasons. Contract: include/dsv4spec/mhc.h.
//
// Flash (d 4096, hc 4, bf16, norm), 48 cores, two launches a turn of tokens:
//     T      fewest bytes   moved by MTE2 + MTE3   floor, bytes   vector repeats        bound
//     1         1.66 MB          1.75 MB              1.0 us        0.013 M,   3 us     sinkhorn's 160 dependent steps
//    64         6.83 MB          12.0 MB              4.3 us        0.68 M,  7.9 us     vector
//  4096          338 MB           511 MB              211 us        42.7 M,  494 us     vector
#include "mhc_kernels.h"

extern "C" DSV4_VECTOR_KERNEL void dsv4_mhc_post_pre_project_bf16(GM_ADDR y, GM_ADDR residual,
                                                                  GM_ADDR post, GM_ADDR comb, GM_ADDR fn,
                                                                  GM_ADDR residual_out, GM_ADDR workspace,
                                                                  MhcProjectTiling tiling) {
  KERNEL_TASK_TYPE_DEFAULT(KERNEL_TYPE_AIV_ONLY);
  dsv4_ascend::mhc_mix_project<bfloat16_t>(y, residual, post, comb, fn, residual_out, workspace, tiling);
}
extern "C" DSV4_VECTOR_KERNEL void dsv4_mhc_post_pre_finish_bf16(GM_ADDR residual, GM_ADDR base,
                                                                 GM_ADDR scale, GM_ADDR norm, GM_ADDR y,
                                                                 GM_ADDR post, GM_ADDR comb,
                                                                 GM_ADDR workspace,
                                                                 MhcFinishTiling tiling) {
  KERNEL_TASK_TYPE_DEFAULT(KERNEL_TYPE_AIV_ONLY);
  dsv4_ascend::mhc_finish<bfloat16_t>(residual, workspace, base, scale, norm, y, post, comb, tiling);
}
extern "C" DSV4_VECTOR_KERNEL void dsv4_mhc_post_pre_project_f16(GM_ADDR y, GM_ADDR residual, GM_ADDR post,
                                                                 GM_ADDR comb, GM_ADDR fn,
                                                                 GM_ADDR residual_out, GM_ADDR workspace,
                                                                 MhcProjectTiling tiling) {
  KERNEL_TASK_TYPE_DEFAULT(KERNEL_TYPE_AIV_ONLY);
  dsv4_ascend::mhc_mix_project<half>(y, residual, post, comb, fn, residual_out, workspace, tiling);
}
extern "C" DSV4_VECTOR_KERNEL void dsv4_mhc_post_pre_finish_f16(GM_ADDR residual, GM_ADDR base,
                                                                GM_ADDR scale, GM_ADDR norm, GM_ADDR y,
                                                                GM_ADDR post, GM_ADDR comb,
                                                                GM_ADDR workspace,
                                                                MhcFinishTiling tiling) {
  KERNEL_TASK_TYPE_DEFAULT(KERNEL_TYPE_AIV_ONLY);
  dsv4_ascend::mhc_finish<half>(residual, workspace, base, scale, norm, y, post, comb, tiling);
}
extern "C" DSV4_VECTOR_KERNEL void dsv4_mhc_post_pre_project_f32(GM_ADDR y, GM_ADDR residual, GM_ADDR post,
                                                                 GM_ADDR comb, GM_ADDR fn,
                                                                 GM_ADDR residual_out, GM_ADDR workspace,
                                                                 MhcProjectTiling tiling) {
  KERNEL_TASK_TYPE_DEFAULT(KERNEL_TYPE_AIV_ONLY);
  dsv4_ascend::mhc_mix_project<float>(y, residual, post, comb, fn, residual_out, workspace, tiling);
}
extern "C" DSV4_VECTOR_KERNEL void dsv4_mhc_post_pre_finish_f32(GM_ADDR residual, GM_ADDR base,
                                                                GM_ADDR scale, GM_ADDR norm, GM_ADDR y,
                                                                GM_ADDR post, GM_ADDR comb,
                                                                GM_ADDR workspace,
                                                                MhcFinishTiling tiling) {
  KERNEL_TASK_TYPE_DEFAULT(KERNEL_TYPE_AIV_ONLY);
  dsv4_ascend::mhc_finish<float>(residual, workspace, base, scale, norm, y, post, comb, tiling);
}
