// SPDX-License-Identifier: Apache-2.0
// nextn_fuse_hidden: out[t,i] = e_proj(enorm(embeds[t])) + h_proj(hnorm(hidden[t,i])). Contract:
// include/dsv4spec/mhc.h.
//
// Mixed, one cube core and two vector cores a group. All vector cores norm the rows into scratch; a group
// then owns tiles of output channels: its cube core streams both weights over them once a chunk of tokens,
// its vector cores add the product of the embedding, which the streams of a token share, to each stream's and
// round once. (Adding in L0C instead would need the embedding's rows hc times, 2*hc for 1 + hc products, and
// no scales.) Few tokens are bound by reading the weights. Flash (d 4096, hc 4), 1.6 TB/s and 20 cube cores
// of 4096 16-bit products a cycle at 1.8 GHz as published for the 910B family (assumed, not measured); moved:
// counted by the emulator, what passes through MTE2, MTE3 and FIX of all cores, scratch included:
//          T    weights 16 bit    rows in, out    moved       flops     floor
//          1    67.1 MB           0.07 MB          68.5 MB    0.17 G   42 us   bound by the weights
//         16    67.1 MB           1.2 MB           85.3 MB    2.7 G    43 us   bound by the weights
//         64    67.1 MB           4.7 MB          228.8 MB    10.7 G   45 us   bound by the weights; products 36 us
// What is moved beyond weights and rows comes out of L2: each group reads the normed rows of its chunk from scratch
// (2*d bytes a row), sums are 4 bytes written and 4 read, and every chunk of 16 tokens, or 32 (hc 4) or 64 where there
// are more, reads the weights again.
//
// Weights of another type than the products' are decoded by the vector cores, a tile of 512 bytes of k at a
// time, into a ring in scratch that stays in L2: int8 and e4m3 are 1 byte read from memory and 2 written and
// read in L2, for 2.6 (int8) and 9 (e4m3) vector instructions a 64 values; so they save memory, not time.
// dav-2201 has no fp8 type and no path from the unified buffer to L1. Products are bf16 for bf16 rows with
// bf16, int8 and e4m3 weights, half for half rows with half and int8 weights, else fp32 (no HF32): the exact
// path, a quarter of the cube's rate.
//
// Budget, bytes:  L1  (511.75 KB)   rows 2 * 512 * 128 = 128 KB       weights 2 * 512 * tile, tile <= 256: 256 KB
//                 L0A (64 KB)       2 * 128 * 128 = 32 KB             L0B (64 KB)  2 * 128 * 256 = 64 KB
//                 L0C (128 KB)      4 * chunk * (1 + hc) * tile: at most 128 KB (hc 1, 128 rows, 256 channels)
//                 UB  (183.75 KB)   queues in 32, sums of e 32, out 32; floats 16, weights of a norm 16, halves 16, 1
#include "fuse_cube.h"
#include "fuse_vector.h"

namespace dsv4_ascend {
namespace {

template <class T, class X, class W>
__aicore__ inline void fuse(GM_ADDR embeds, GM_ADDR hidden, GM_ADDR enorm, GM_ADDR hnorm, GM_ADDR e_proj,
                            GM_ADDR h_proj, GM_ADDR e_scale, GM_ADDR h_scale, GM_ADDR out, GM_ADDR workspace,
                            const NextnFuseHiddenTiling& tiling) {
  if ASCEND_IS_AIC {
    FuseCube<X, !SameType<W, X>::value>(e_proj, h_proj, workspace, tiling).run();
  }
  if ASCEND_IS_AIV {
    const FuseOperands operands{{embeds, hidden},   {enorm, hnorm}, {e_proj, h_proj},
                                {e_scale, h_scale}, out,            workspace};
    FuseVector<T, X, W>(operands, tiling).run();
  }
}

}  // namespace
}  // namespace dsv4_ascend

// Names: type of rows, then of weights.
#define DSV4_FUSE_KERNEL(name, T, X, W)                                                                      \
  extern "C" DSV4_MIXED_MEETING void dsv4_nextn_fuse_hidden_##name(                                          \
      GM_ADDR embeds, GM_ADDR hidden, GM_ADDR enorm, GM_ADDR hnorm, GM_ADDR e_proj, GM_ADDR h_proj,          \
      GM_ADDR e_scale, GM_ADDR h_scale, GM_ADDR out, GM_ADDR workspace, NextnFuseHiddenTiling tiling) {      \
    KERNEL_TASK_TYPE_DEFAULT(KERNEL_TYPE_MIX_AIC_1_2);                                                       \
    dsv4_ascend::fuse<T, X, W>(embeds, hidden, enorm, hnorm, e_proj, h_proj, e_scale, h_scale, out,          \
                               workspace, tiling);                                                           \
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
