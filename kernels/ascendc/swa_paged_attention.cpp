// SPDX-License-Identifier: Apache-2.0
// swa_paged_attention: out = sum_k exp(x_k) K_k / (exp(sink) + sum_k exp(x_k)),  x_k = scale * q . K_k
// Contract: include/dsv4spec/attention.h.
//
// bf16, fp16: query rows x heads of a request are the rows of products on the cube core, whatever the rows
// are (decode, verify with or without a tree, extend); a group of one cube core and two vector cores works on
// units of up to 64 (row, head) pairs, dealt out over the groups so that no group has two more than another.
// One launch:
//   cube    scores of a part of up to 256 keys (swa_cube.h)     -> scratch, fp32, flag
//   vector  half of the pairs each: mask, softmax, rounded weights (swa_vector.h) -> scratch, 16 bit, flag
//   cube    weights . K with the keys that are still in L1       -> scratch, fp32, flag
//   vector  sums / (sum of the rounded weights + exp(sink)), inverse RoPE, one rounding
// The scores of a unit are taken before the weights of the unit before are waited for, so cube and vector
// cores work at the same time. A window of up to 128 is always one part, so nothing is rescaled; longer
// windows are cut at multiples of 256 in logical position. A row's bits do not depend on other rows, units or
// numbers of cores: keys lie at multiples of 16 in products and of 64 in sums, and what a row does not see
// adds an exact 0.
// fp32: vector cores only (swa_exact.h), exact and untuned; in swa_paged_attention_f32.cpp.
//
// Bytes of a request: 2 * D * (keys + 2 * rows * H) in 16 bit if keys are read from memory once; the scratch
// of a unit, 6 KB a pair at D = 512, is written and read in the second-level cache. Flops: 4 * D * H * rows *
// keys. Flash (H 64, D 512, 128 keys), floor at 1.8 TB/s; bytes counted by the emulator, those of the cache
// included:
//                          fewest    counted   floor    cube, vector cycles (us at 1.8 GHz)
//   decode B = 64          16.8 MB   41.8 MB   9.3 us    6144 (3.4), 5861 (3.3)
//   verify of 4, B = 64    42.1 MB  167.6 MB  23.4 us   24576 (13.7), 23394 (13.0)
//   decode B = 1: four units of 16 heads, so that four groups take part; costs a launch and one pass of latencies
// Bursts: a key is 1 KB; keys of a page that follow each other are one instruction.
//
// L1, KB of 512, D = 512: queries 64, weights 32, keys 2 x 192 (of two units; one place of 256 where 192 keys
// do not hold a unit's). L0A and L0B: 2 x 32 of 64 each. L0C: scores 64, sums of 256 dims 64, of 128. Unified
// buffer, KB of 184, D = 512, R = 64: scores 32, weights 16, softmax 38, sums 2 x 16, out 2 x 8, keys to be
// cleaned 25, angles 2: 161. fp32: queries 32, sums 32, keys 64, products 16, weights 18, softmax 6, angles
// 2: 170.
#include "swa_vector.h"

#define DSV4_SWA_MIXED(suffix, T)                                                                            \
  extern "C" DSV4_MIXED_KERNEL void dsv4_swa_paged_attention_##suffix(                                       \
      GM_ADDR q, GM_ADDR kv, GM_ADDR table, GM_ADDR starts, GM_ADDR lens, GM_ADDR sink, GM_ADDR mask,        \
      GM_ADDR cos_sin, GM_ADDR out, GM_ADDR workspace, SwaTiling tiling) {                                   \
    KERNEL_TASK_TYPE_DEFAULT(KERNEL_TYPE_MIX_AIC_1_2);                                                       \
    if ASCEND_IS_AIC {                                                                                       \
      dsv4_ascend::SwaCube<T>(q, kv, table, starts, lens, mask, workspace, tiling).run();                    \
    } else {                                                                                                 \
      dsv4_ascend::SwaVector<T>(kv, table, starts, lens, sink, mask, cos_sin, out, workspace, tiling).run(); \
    }                                                                                                        \
  }
DSV4_SWA_MIXED(bf16, bfloat16_t)
DSV4_SWA_MIXED(f16, half)
