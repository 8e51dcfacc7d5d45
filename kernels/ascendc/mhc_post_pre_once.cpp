// SPDX-License-Identifier: Apache-2.0
// mhc_post_pre of up to 64 tokens: one launch whose cores meet. A file of its own: ascendc_library knows one kernel type
// a file (and does not get this one: host/mhc_common.h).
#include "mhc_once.h"

#define ENTRY(suffix, T)                                                                                     \
  extern "C" DSV4_VECTOR_MEETING void dsv4_mhc_post_pre_once_##suffix(                                       \
      GM_ADDR y, GM_ADDR residual, GM_ADDR post, GM_ADDR comb, GM_ADDR fn, GM_ADDR base, GM_ADDR scale,      \
      GM_ADDR norm, GM_ADDR residual_out, GM_ADDR y_out, GM_ADDR post_out, GM_ADDR comb_out,                 \
      GM_ADDR workspace, MhcOnceTiling tiling) {                                                             \
    KERNEL_TASK_TYPE_DEFAULT(KERNEL_TYPE_MIX_AIV_1_0);                                                       \
    const dsv4_ascend::MhcInputs in{residual, fn, base, scale, norm, workspace};                             \
    dsv4_ascend::MhcOnce<T, true>(in, {y, post, comb, residual_out}, {y_out, post_out, comb_out}, tiling).run();\
  }
DSV4_STREAM_ENTRIES(ENTRY)
#undef ENTRY
