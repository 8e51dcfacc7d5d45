// SPDX-License-Identifier: Apache-2.0
// mhc_pre of up to 64 tokens: one launch whose cores meet. A file of its own: ascendc_library knows one kernel type a
// file (and does not get this one: host/mhc_common.h).
#include "mhc_once.h"

#define ENTRY(suffix, T)                                                                                     \
  extern "C" DSV4_VECTOR_MEETING void dsv4_mhc_pre_once_##suffix(                                            \
      GM_ADDR residual, GM_ADDR fn, GM_ADDR base, GM_ADDR scale, GM_ADDR norm, GM_ADDR y, GM_ADDR post,      \
      GM_ADDR comb, GM_ADDR workspace, MhcOnceTiling tiling) {                                               \
    KERNEL_TASK_TYPE_DEFAULT(KERNEL_TYPE_MIX_AIV_1_0);                                                       \
    const dsv4_ascend::MhcInputs in{residual, fn, base, scale, norm, workspace};                             \
    dsv4_ascend::MhcOnce<T, false>(in, {}, {y, post, comb}, tiling).run();                                   \
  }
DSV4_STREAM_ENTRIES(ENTRY)
#undef ENTRY
