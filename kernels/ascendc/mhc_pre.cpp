// SPDX-License-Identifier: Apache-2.0
// mhc_pre: input y of a sub-layer and the coefficients post and comb of its closing mix, from the residual streams.
// Contract: include/dsv4spec/mhc.h.
//
// Two launches a turn of tokens (4096, or as many as 96 MB of rows hold): partial sums of the columns by slices of 128
// channels (mhc_project.h), then y on most cores and post and comb on an eighth of them (mhc_join.h, mhc_mix.h). Not
// one launch with SyncAll: that needs every core of it resident at once, and hangs where two such kernels of two
// streams share the cores. Split over slices and tokens, so T = 1 occupies 32 cores at Flash, one a slice.
//
// x passes twice, the second time out of the second-level cache. Keeping rows in local memory instead would mean to
// stream fn (1.5 MB) past every few rows: 12 times the bytes of x at four rows of 32 KB.
//
// The 24 columns are summed on the vector cores. fn is fp32, and the cube multiplies like types: x would have to pass
// through scratch as fp32, or fn as three bf16 parts. Up to some 24 tokens reading fn takes longer than the vector
// work; from a few hundred tokens on the cube would be the faster place, which is not done.
//
// Flash (d 4096, hc 4, bf16, norm), 48 cores. Rates: 1.6 TB/s global memory, 7 TB/s second-level cache, 11.06 TOPS of
// fp32, that is a 64-lane multiply-add a cycle a core at 1.8 GHz (Ascend C guide: L2 cache, analysis of figures).
//     T      fewest bytes   moved by MTE2 + MTE3   floor, bytes   vector repeats        bound
//     1         1.62 MB          1.71 MB              1.0 us        0.011 M,   3 us     sinkhorn's 160 dependent steps
//    64         4.21 MB          9.24 MB              2.6 us        0.56 M,  6.5 us     vector
//  4096          170 MB           338 MB              106 us        35.0 M,  405 us     vector
// What is moved beyond the fewest is x a second time (launch 2), fn once a core, and the partial sums (3.2 KB a token
// each way): all of it was in the second-level cache shortly before.
//
// Unified buffer, KB of 184 (192 less the 8 that the compiler keeps; hc 4, 16 bit): items of one slice | of two
//   MhcProject: fn 48 | 96, x 2 x 8, floats of x 16, sums of lanes 50, out 2 x 0.8 | 1.6         = 132 | 182
//   with mix (4 | 2 tokens less at a time where it does not fit): coefficients 12.5, y 8 | 4, mixed 2 x 8 | 4 = 169 | 166
//   MhcJoin, width 2048: sums 8, x 2 x 16, floats of x 32, y row 2 x 8, sum 8, norm 2 x 8 + 16, small 8      = 136
//   MhcMix: sums 2 x 16, lanes 6, places 34, out 10, small 6                                                  = 88
#include "mhc_kernels.h"

extern "C" DSV4_VECTOR_KERNEL void dsv4_mhc_pre_project_bf16(GM_ADDR residual, GM_ADDR fn,
                                                             GM_ADDR workspace, MhcProjectTiling tiling) {
  KERNEL_TASK_TYPE_DEFAULT(KERNEL_TYPE_AIV_ONLY);
  dsv4_ascend::mhc_project<bfloat16_t>(residual, fn, workspace, tiling);
}
extern "C" DSV4_VECTOR_KERNEL void dsv4_mhc_pre_finish_bf16(GM_ADDR residual, GM_ADDR base, GM_ADDR scale,
                                                            GM_ADDR norm, GM_ADDR y, GM_ADDR post,
                                                            GM_ADDR comb, GM_ADDR workspace,
                                                            MhcFinishTiling tiling) {
  KERNEL_TASK_TYPE_DEFAULT(KERNEL_TYPE_AIV_ONLY);
  dsv4_ascend::mhc_finish<bfloat16_t>(residual, workspace, base, scale, norm, y, post, comb, tiling);
}
extern "C" DSV4_VECTOR_KERNEL void dsv4_mhc_pre_project_f16(GM_ADDR residual, GM_ADDR fn,
                                                            GM_ADDR workspace, MhcProjectTiling tiling) {
  KERNEL_TASK_TYPE_DEFAULT(KERNEL_TYPE_AIV_ONLY);
  dsv4_ascend::mhc_project<half>(residual, fn, workspace, tiling);
}
extern "C" DSV4_VECTOR_KERNEL void dsv4_mhc_pre_finish_f16(GM_ADDR residual, GM_ADDR base, GM_ADDR scale,
                                                           GM_ADDR norm, GM_ADDR y, GM_ADDR post,
                                                           GM_ADDR comb, GM_ADDR workspace,
                                                           MhcFinishTiling tiling) {
  KERNEL_TASK_TYPE_DEFAULT(KERNEL_TYPE_AIV_ONLY);
  dsv4_ascend::mhc_finish<half>(residual, workspace, base, scale, norm, y, post, comb, tiling);
}
extern "C" DSV4_VECTOR_KERNEL void dsv4_mhc_pre_project_f32(GM_ADDR residual, GM_ADDR fn,
                                                            GM_ADDR workspace, MhcProjectTiling tiling) {
  KERNEL_TASK_TYPE_DEFAULT(KERNEL_TYPE_AIV_ONLY);
  dsv4_ascend::mhc_project<float>(residual, fn, workspace, tiling);
}
extern "C" DSV4_VECTOR_KERNEL void dsv4_mhc_pre_finish_f32(GM_ADDR residual, GM_ADDR base, GM_ADDR scale,
                                                           GM_ADDR norm, GM_ADDR y, GM_ADDR post,
                                                           GM_ADDR comb, GM_ADDR workspace,
                                                           MhcFinishTiling tiling) {
  KERNEL_TASK_TYPE_DEFAULT(KERNEL_TYPE_AIV_ONLY);
  dsv4_ascend::mhc_finish<float>(residual, workspace, base, scale, norm, y, post, comb, tiling);
}
