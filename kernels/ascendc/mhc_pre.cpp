// SPDX-License-Identifier: Apache-2.0
// mhc_pre: input y of a sub-layer and the coefficients post and comb of its closing mix, from the residual streams.
// Contract: include/dsv4spec/mhc.h.
//
// Up to 64 tokens (Pro, where 8 of 48 cores own two slices: 43): one launch whose cores meet (mhc_once.h). x and fn are
// read once. At Flash 32 of 48 cores own a slice of 128 channels, and one more a group of 8 tokens makes its
// coefficients; slices of 64 would leave the busiest core as much to do and double the partial sums (25 floats a token
// and slice, there and back).
// More tokens, or CANN 8 (whose launches can't wait for room for all their blocks, so that two of them in two streams
// could wait for each other's cores for ever): two launches a turn of tokens (4096, or as many as 96 MB of rows hold),
// nobody waiting: partial sums by slices of 128 channels (mhc_project.h), then y on most cores and post and comb on an
// eighth of them (mhc_join.h, mhc_mix.h). x passes twice, the second time out of the second-level cache. That is
// bound by the vector cores, and what does not fit into local memory at once would need three meetings every 64
// tokens: 192 of them at 4096 tokens. Both ways give the same bits.
//
// The 24 columns are summed on the vector cores, however many tokens there are. The cube would be the faster place
// from some 16 tokens on: of a token's 19 400 cycles 18 400 are products and their sums over lanes, 870 us of 48
// vector cores at 4096 tokens, against 30 us of 24 cubes for fn as three bf16 parts (80 columns, 13 cycles a token)
// and 49 us in fp32. But the bits of a row may not depend on how many others there are, so few tokens would have to go
// the same way, and there fn's 1.6 MB are all that counts: as three parts they are split, written and read again (4
// times the fewest bytes at T = 1), and in fp32, where fn goes as it is, x of 16 bit passes through scratch as fp32
// (twice the fewest bytes at T = 16). The cube also may take NaN among its inputs for an error, by its page, where here
// a row's NaN must stay in its row.
//
// Flash (d 4096, hc 4, bf16, norm), 48 cores. Rates: 1.6 TB/s global memory, 7 TB/s second-level cache, 1.8 GHz (Ascend
// C guide: L2 cache, analysis of figures); cycles by its table of vector instructions: 2 for MulAddDst and Div, 7 for
// the sum of 64 lanes, 1 for most.
//     T      fewest bytes   moved by MTE2 + MTE3   floor, bytes   vector cycles         bound
//     1         1.62 MB          1.72 MB              1.0 us        0.023 M,   4 us     sinkhorn's 160 dependent steps
//    16         2.24 MB          2.43 MB              1.4 us        0.31 M,  5.5 us     launch, vector
//    64         4.21 MB          4.97 MB              2.6 us        1.26 M,   22 us     launch, vector
//  4096          170 MB           338 MB              106 us        79.4 M,  919 us     vector; two launches
// What is moved beyond the fewest is, in one launch, partial sums, weights (16 bytes a token for each core) and sums of
// squares (128 bytes a token for each core); in two, x a second time, fn once a core, and partial sums.
//
// Unified buffer, KB of 183.75 (192 less the 8.25 that the compiler keeps; hc 4, 16 bit). One launch, 64 tokens:
//   kept rows 64, and a pool that the steps share: 116 | with mix 107
//     step 1: fn 48, floats of x 16 | 8, sums of lanes 50 | 25, out 2 x 0.8, mix: coefficients 12.5, x 2 x 4, y 4
//     step 2: weights 8 + 2, coefficients as MhcMix below
//     step 3: weights 8 + 1, x 16, y 4, sums of squares 0.3 and of all slices 8
// Two launches, items of one slice | of two:
//   MhcProject: fn 48 | 96, x 2 x 8, floats of x 16, sums of lanes 50, out 2 x 0.8 | 1.6         = 132 | 182
//   with mix (4 | 2 tokens less at a time where it does not fit): coefficients 12.5, y 8 | 4, mixed 2 x 8 | 4 = 169 | 166
//   MhcJoin, width 2048: sums 8, x 2 x 16, floats of x 32, y row 2 x 8, sum 8, norm 2 x 8 + 16, small 11.5   = 140
//   MhcMix: sums 2 x 16, lanes 6, places 34, out 10, small 6                                                  = 88
#include "mhc_kernels.h"

#define ENTRY(suffix, T)                                                                                     \
  extern "C" DSV4_VECTOR_KERNEL void dsv4_mhc_pre_project_##suffix(GM_ADDR residual, GM_ADDR fn,             \
                                                                   GM_ADDR workspace, MhcProjectTiling tiling) {\
    KERNEL_TASK_TYPE_DEFAULT(KERNEL_TYPE_AIV_ONLY);                                                          \
    dsv4_ascend::mhc_project<T>(residual, fn, workspace, tiling);                                            \
  }                                                                                                          \
  extern "C" DSV4_VECTOR_KERNEL void dsv4_mhc_pre_finish_##suffix(                                           \
      GM_ADDR residual, GM_ADDR base, GM_ADDR scale, GM_ADDR norm, GM_ADDR y, GM_ADDR post, GM_ADDR comb,    \
      GM_ADDR workspace, MhcFinishTiling tiling) {                                                           \
    KERNEL_TASK_TYPE_DEFAULT(KERNEL_TYPE_AIV_ONLY);                                                          \
    dsv4_ascend::mhc_finish<T>(residual, workspace, base, scale, norm, y, post, comb, tiling);               \
  }
DSV4_STREAM_ENTRIES(ENTRY)
#undef ENTRY
