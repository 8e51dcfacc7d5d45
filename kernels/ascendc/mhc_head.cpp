// SPDX-License-Identifier: Apache-2.0
// mhc_head: y from the residual streams after the last layer. Contract: include/dsv4spec/mhc.h.
#include "mhc_kernels.h"

extern "C" __global__ __aicore__ void dsv4_mhc_head_project_bf16(GM_ADDR residual, GM_ADDR fn,
                                                                 GM_ADDR workspace, MhcProjectTiling tiling) {
  KERNEL_TASK_TYPE_DEFAULT(KERNEL_TYPE_AIV_ONLY);
  dsv4_ascend::mhc_project<bfloat16_t>(residual, fn, workspace, tiling);
}
extern "C" __global__ __aicore__ void dsv4_mhc_head_finish_bf16(GM_ADDR residual, GM_ADDR base, GM_ADDR scale,
                                                                GM_ADDR norm, GM_ADDR y, GM_ADDR workspace,
                                                                MhcFinishTiling tiling) {
  KERNEL_TASK_TYPE_DEFAULT(KERNEL_TYPE_AIV_ONLY);
  dsv4_ascend::mhc_join<bfloat16_t>(residual, workspace, base, scale, norm, y, 1, tiling);
}
extern "C" __global__ __aicore__ void dsv4_mhc_head_project_f16(GM_ADDR residual, GM_ADDR fn,
                                                                GM_ADDR workspace, MhcProjectTiling tiling) {
  KERNEL_TASK_TYPE_DEFAULT(KERNEL_TYPE_AIV_ONLY);
  dsv4_ascend::mhc_project<half>(residual, fn, workspace, tiling);
}
extern "C" __global__ __aicore__ void dsv4_mhc_head_finish_f16(GM_ADDR residual, GM_ADDR base, GM_ADDR scale,
                                                               GM_ADDR norm, GM_ADDR y, GM_ADDR workspace,
                                                               MhcFinishTiling tiling) {
  KERNEL_TASK_TYPE_DEFAULT(KERNEL_TYPE_AIV_ONLY);
  dsv4_ascend::mhc_join<half>(residual, workspace, base, scale, norm, y, 1, tiling);
}
extern "C" __global__ __aicore__ void dsv4_mhc_head_project_f32(GM_ADDR residual, GM_ADDR fn,
                                                                GM_ADDR workspace, MhcProjectTiling tiling) {
  KERNEL_TASK_TYPE_DEFAULT(KERNEL_TYPE_AIV_ONLY);
  dsv4_ascend::mhc_project<float>(residual, fn, workspace, tiling);
}
extern "C" __global__ __aicore__ void dsv4_mhc_head_finish_f32(GM_ADDR residual, GM_ADDR base, GM_ADDR scale,
                                                               GM_ADDR norm, GM_ADDR y, GM_ADDR workspace,
                                                               MhcFinishTiling tiling) {
  KERNEL_TASK_TYPE_DEFAULT(KERNEL_TYPE_AIV_ONLY);
  dsv4_ascend::mhc_join<float>(residual, workspace, base, scale, norm, y, 1, tiling);
}
