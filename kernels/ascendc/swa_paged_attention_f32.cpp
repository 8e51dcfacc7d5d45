// SPDX-License-Identifier: Apache-2.0
// swa_paged_attention in fp32, on vector cores. A file of its own: ascendc_library knows one kernel type a file.
#include "swa_exact.h"

extern "C" DSV4_VECTOR_KERNEL void dsv4_swa_paged_attention_f32(GM_ADDR q, GM_ADDR kv, GM_ADDR table,
                                                                GM_ADDR starts, GM_ADDR lens, GM_ADDR sink,
                                                                GM_ADDR mask, GM_ADDR cos_sin, GM_ADDR out,
                                                                SwaTiling tiling) {
  KERNEL_TASK_TYPE_DEFAULT(KERNEL_TYPE_AIV_ONLY);
  dsv4_ascend::SwaExact(q, kv, table, starts, lens, sink, mask, cos_sin, out, tiling).run();
}
