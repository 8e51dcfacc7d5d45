// SPDX-License-Identifier: Apache-2.0
// swa_paged_attention: out = sum_k exp(x_k) K_k / (exp(sink) + sum_k exp(x_k)),  x_k = scale * q . K_k
// Contract: include/dsv4spec/attention.h.
//
// bf16, fp16: query rows x heads of a request are the rows of products on the cube core, whatever the rows
// are (decode, verify with or without a tree, extend). A group of one cube core and two vector cores owns
// units of query rows with all of their heads, where it can all rows of a request, so that the request's keys
// and queries are read from memory once and its results written once; tiles of up to 64 (row, head) pairs. One
// launch; per tile, with what passes through the scratch, which stays in the second-level cache:
//   vector  queries, and for a unit's first tile keys, without NaN (swa_prepare.h)     -> scratch, 16 bit
//   cube    scores of a part of up to 256 keys (swa_cube.h)                            -> scratch, fp32
//   vector  half of the pairs each: mask, softmax, divided by its sum (swa_vector.h)   -> scratch, 2 x 16 bit
//   cube    weights . K with the keys that are still in L1                             -> out, rounded
//           the dims that RoPE turns                                                   -> scratch, fp32
//   vector  inverse RoPE of those                                                      -> out, rounded
// The vector cores are a tile ahead with the first step and a tile behind with the last, and the scores of a
// tile are taken before the weights of the tile before are waited for, so all cores work at the same time. A
// window of up to 128 is always one part, so nothing is rescaled; longer windows are cut at multiples of 256 in
// logical position, and their sums all pass through the scratch. A row's bits do not depend on other rows,
// units or numbers of cores: keys lie at multiples of 16 in products and of 64 in sums, and what a row does not
// see adds an exact 0.
// fp32: vector cores only (swa_exact.h), exact and untuned; in swa_paged_attention_f32.cpp.
//
// Bytes of a request: 2 * D * (keys + 2 * rows * H) in 16 bit. Flops: 4 * D * H * rows * keys, and those of
// weights . K again, for the second halves of the weights. Flash (H 64, D 512, 128 keys) at 1.8 TB/s, 7 TB/s for
// the cache; counted by the emulator for one request, times 64, cycles of a core at work on 64 / 24 of them:
//                          fewest    counted   scratch   memory, L2 us   cube, vector cycles (us at 1.8 GHz)
//   decode B = 64          16.8 MB   16.8 MB    40 MB    9.3, 5.8         9216 (5.1), 11600 (6.4)
//   verify of 4, B = 64    42.1 MB   42.3 MB   105 MB    23.5, 15.0       36864 (20.5), 38800 (21.6)
// A single request of few rows is one unit: 2 to 8 us on one group, behind a launch of 20 us.
// Bursts: a key is 1 KB; keys of a page that follow each other are one instruction.
//
// L1, KB of 512, D = 512: queries 64, weights 2 x 18, keys 2 x 144 (decode; of two units; one place of up to 256
// where two do not fit). L0A and L0B: 2 x 32 of 64 each. L0C: scores 64, sums of 256 dims 64, of 128. Unified
// buffer, KB of 184, D = 512, R = 64: scores 32, weights 16, softmax 38, sums 2 x 8, out 2 x 4, queries or keys
// 2 x 16, their test 17, angles 2: 161. fp32: queries 32, sums 32, keys 64, products 16, weights 18, softmax 6,
// angles 2: 170.
#include "swa_cube.h"
#include "swa_vector.h"

#define DSV4_SWA_MIXED(suffix, T)                                                                            \
  extern "C" DSV4_MIXED_KERNEL void dsv4_swa_paged_attention_##suffix(                                       \
      GM_ADDR q, GM_ADDR kv, GM_ADDR table, GM_ADDR starts, GM_ADDR lens, GM_ADDR sink, GM_ADDR mask,        \
      GM_ADDR cos_sin, GM_ADDR out, GM_ADDR workspace, SwaTiling tiling) {                                   \
    KERNEL_TASK_TYPE_DEFAULT(KERNEL_TYPE_MIX_AIC_1_2);                                                       \
    if ASCEND_IS_AIC {                                                                                       \
      dsv4_ascend::SwaCube<T>(table, starts, lens, mask, out, workspace, tiling).run();                      \
    } else {                                                                                                 \
      dsv4_ascend::SwaVector<T>(q, kv, table, starts, lens, sink, mask, cos_sin, out, workspace, tiling)     \
          .run();                                                                                            \
    }                                                                                                        \
  }
DSV4_SWA_MIXED(bf16, bfloat16_t)
DSV4_SWA_MIXED(f16, half)
