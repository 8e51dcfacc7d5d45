// SPDX-License-Identifier: Apache-2.0
// nextn_fuse_hidden: out[t,i] = e_proj(enorm(embeds[t])) + h_proj(hnorm(hidden[t,i])). Contract:
// include/dsv4spec/mhc.h.
//
// Two launches. Vector cores norm the rows into scratch (fuse_norms.h, nextn_fuse_hidden_norms.cpp). Then groups
// of one cube core and two vector cores own tiles of output channels: the cube core streams both weights over
// them once a chunk of up to 64 tokens (256 rows of streams), the vector cores add the product of the embedding,
// which the streams of a token share, to each stream's and round once. (Adding in L0C instead would need the
// embedding's rows hc times, 2*hc for 1 + hc products, and no scales.) No core waits for another group's.
// Flash (d 4096, hc 4, bf16) at 1.8 TB/s, 7 TB/s for the second-level cache, 24 cube cores of 4096 16-bit
// products a cycle at 1.8 GHz, as documented; counted by the emulator:
//          T    weights 16 bit    rows in, out    moved       scratch    flops     memory, L2, cube us
//          1    67.1 MB           0.07 MB          67.2 MB     1.4 MB    0.17 G    37, 0.2, 3
//         16    67.1 MB           1.2 MB           68.7 MB    19.1 MB    2.7 G     38, 2.7, 8
//         64    67.1 MB           4.7 MB           72.2 MB   126 MB     10.7 G    40, 18, 30
// Scratch: each group reads the normed rows of its chunk for each of its tiles (2*d bytes a row), sums are 4
// bytes written and 4 read. L0C holds 96 channels of 64 tokens, so that a group has two tiles there.
//
// Weights of another type than the products' are decoded by the vector cores, a tile of 512 bytes of k at a
// time, into a ring in scratch that stays in L2: int8 and e4m3 are 1 byte read from memory and 2 written and
// read in L2, for 2.6 (int8) and 9 (e4m3) vector instructions a 64 values; so they save memory, not time.
// dav-2201 has no fp8 type and no path from the unified buffer to L1. Products are bf16 for bf16 rows with
// bf16, int8 and e4m3 weights, half for half rows with half and int8 weights, else fp32 (no HF32): the exact
// path, a quarter of the cube's rate.
//
// Budget, bytes:  L1  (511.75 KB)   rows 2 * 512 * 256 = 256 KB       weights 2 * 512 * tile: 96 (256 rows) to 256 KB
//                 L0A (64 KB)       2 * 128 * 256 = 64 KB             L0B (64 KB)  2 * 128 * 256 = 64 KB
//                 L0C (128 KB)      4 * chunk * (1 + hc) * tile: at most 128 KB
//                 UB  (183.75 KB)   queues in 32, sums of e 32, out 32; floats 16, scales and masks 16, halves 16, flags 8
#include "fuse_cube.h"
#include "fuse_vector.h"

namespace dsv4_ascend {
namespace {

template <class T, class X, class W>
__aicore__ inline void fuse(GM_ADDR e_proj, GM_ADDR h_proj, GM_ADDR e_scale, GM_ADDR h_scale, GM_ADDR out,
                            GM_ADDR workspace, const NextnFuseHiddenTiling& tiling) {
  if ASCEND_IS_AIC {
    FuseCube<X, !SameType<W, X>::value>(e_proj, h_proj, workspace, tiling).run();
  }
  if ASCEND_IS_AIV {
    const FuseOperands operands{{e_proj, h_proj}, {e_scale, h_scale}, out, workspace};
    FuseVector<T, X, W>(operands, tiling).run();
  }
}

}  // namespace
}  // namespace dsv4_ascend

// Names: type of rows, then of weights.
#define DSV4_FUSE_KERNEL(name, T, X, W)                                                                      \
  extern "C" DSV4_MIXED_KERNEL void dsv4_nextn_fuse_hidden_##name(                                           \
      GM_ADDR e_proj, GM_ADDR h_proj, GM_ADDR e_scale, GM_ADDR h_scale, GM_ADDR out, GM_ADDR workspace,      \
      NextnFuseHiddenTiling tiling) {                                                                        \
    KERNEL_TASK_TYPE_DEFAULT(KERNEL_TYPE_MIX_AIC_1_2);                                                       \
    dsv4_ascend::fuse<T, X, W>(e_proj, h_proj, e_scale, h_scale, out, workspace, tiling);                    \
  }
DSV4_FUSE_KERNEL(bf16_bf16, bfloat16_t, bfloat16_t, bfloat16_t)
DSV4_FUSE_KERNEL(bf16_f16, bfloat16_t, float, half)
DSV4_FUSE_KERNEL(bf16_f32, bfloat16_t, float, float)
DSV4_FUSE_KERNEL(bf16_i8, bfloat16_t, bfloat16_t, int8_t)
DSV4_FUSE_KERNEL(bf16_e4m3, bfloat16_t, bfloat16_t, dsv4_ascend::e4m3_byte)
DSV4_FUSE_KERNEL(f16_bf16, half, float, bfloat16_t)
DSV4_FUSE_KERNEL(f16_f16, half, half, half)
DSV4_FUSE_KERNEL(f16_f32, half, float, float)
DSV4_FUSE_KERNEL(f16_i8, half, half, int8_t)
DSV4_FUSE_KERNEL(f16_e4m3, half, float, dsv4_ascend::e4m3_byte)
DSV4_FUSE_KERNEL(f32_bf16, float, float, bfloat16_t)
DSV4_FUSE_KERNEL(f32_f16, float, float, half)
DSV4_FUSE_KERNEL(f32_f32, float, float, float)
DSV4_FUSE_KERNEL(f32_i8, float, float, int8_t)
DSV4_FUSE_KERNEL(f32_e4m3, float, float, dsv4_ascend::e4m3_byte)
