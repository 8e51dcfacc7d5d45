// SPDX-License-Identifier: Apache-2.0
// mhc_pre: input y of a sub-layer and the coefficients post and comb of its closing mix, from the residual
// streams. Contract: include/dsv4spec/mhc.h.
#include "mhc_kernels.h"

extern "C" __global__ __aicore__ void dsv4_mhc_pre_project_bf16(GM_ADDR residual, GM_ADDR fn,
                                                                GM_ADDR workspace, MhcProjectTiling tiling) {
  KERNEL_TASK_TYPE_DEFAULT(KERNEL_TYPE_AIV_ONLY);
  dsv4_ascend::mhc_project<bfloat16_t>(residual, fn, workspace, tiling);
}
extern "C" __global__ __aicore__ void dsv4_mhc_pre_finish_bf16(GM_ADDR residual, GM_ADDR base, GM_ADDR scale,
                                                               GM_ADDR norm, GM_ADDR y, GM_ADDR post,
                                                               GM_ADDR comb, GM_ADDR workspace,
                                                               MhcFinishTiling tiling) {
  KERNEL_TASK_TYPE_DEFAULT(KERNEL_TYPE_AIV_ONLY);
  dsv4_ascend::mhc_finish<bfloat16_t>(residual, workspace, base, scale, norm, y, post, comb, tiling);
}
extern "C" __global__ __aicore__ void dsv4_mhc_pre_project_f16(GM_ADDR residual, GM_ADDR fn,
                                                               GM_ADDR workspace, MhcProjectTiling tiling) {
  KERNEL_TASK_TYPE_DEFAULT(KERNEL_TYPE_AIV_ONLY);
  dsv4_ascend::mhc_project<half>(residual, fn, workspace, tiling);
}
extern "C" __global__ __aicore__ void dsv4_mhc_pre_finish_f16(GM_ADDR residual, GM_ADDR base, GM_ADDR scale,
                                                              GM_ADDR norm, GM_ADDR y, GM_ADDR post,
                                                              GM_ADDR comb, GM_ADDR workspace,
                                                              MhcFinishTiling tiling) {
  KERNEL_TASK_TYPE_DEFAULT(KERNEL_TYPE_AIV_ONLY);
  dsv4_ascend::mhc_finish<half>(residual, workspace, base, scale, norm, y, post, comb, tiling);
}
extern "C" __global__ __aicore__ void dsv4_mhc_pre_project_f32(GM_ADDR residual, GM_ADDR fn,
                                                               GM_ADDR workspace, MhcProjectTiling tiling) {
  KERNEL_TASK_TYPE_DEFAULT(KERNEL_TYPE_AIV_ONLY);
  dsv4_ascend::mhc_project<float>(residual, fn, workspace, tiling);
}
extern "C" __global__ __aicore__ void dsv4_mhc_pre_finish_f32(GM_ADDR residual, GM_ADDR base, GM_ADDR scale,
                                                              GM_ADDR norm, GM_ADDR y, GM_ADDR post,
                                                              GM_ADDR comb, GM_ADDR workspace,
                                                              MhcFinishTiling tiling) {
  KERNEL_TASK_TYPE_DEFAULT(KERNEL_TYPE_AIV_ONLY);
  dsv4_ascend::mhc_finish<float>(residual, workspace, base, scale, norm, y, post, comb, tiling);
}
