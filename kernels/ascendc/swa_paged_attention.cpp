// SPDX-License-Identifier: Apache-2.0
// swa_paged_attention: out = sum_k exp(x_k) K_k / (exp(sink) + sum_k exp(x_k)),  x_k = scale * q . K_k
// Contract: include/dsv4spec/attention.h.
#include "swa_exact.h"
#include "swa_vector.h"

extern "C" __global__ __aicore__ void dsv4_swa_paged_attention_f32(GM_ADDR q, GM_ADDR kv, GM_ADDR table,
                                                                   GM_ADDR starts, GM_ADDR lens, GM_ADDR sink,
                                                                   GM_ADDR mask, GM_ADDR cos_sin, GM_ADDR out,
                                                                   SwaTiling tiling) {
  KERNEL_TASK_TYPE_DEFAULT(KERNEL_TYPE_AIV_ONLY);
  dsv4_ascend::SwaExact(q, kv, table, starts, lens, sink, mask, cos_sin, out, tiling).run();
}

#define DSV4_SWA_MIXED(suffix, T)                                                                            \
  extern "C" __global__ __aicore__ void dsv4_swa_paged_attention_##suffix(                                   \
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
