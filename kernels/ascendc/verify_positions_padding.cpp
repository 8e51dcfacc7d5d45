// SPDX-License-Identifier: Apache-2.0
// verify_positions_padding: packs the group starts of the entries that a verify window emits.
// 8 bytes read and 8 written an entry, at most T/r + B of them, plus the B lengths (read by every core, from
// L2): a launch's latency is the floor. How it is split, and UB: verify_rows.h. Contract:
// include/dsv4spec/verify.h.
#include "verify_rows.h"

extern "C" DSV4_VECTOR_KERNEL void dsv4_verify_positions_padding_aiv(GM_ADDR positions, GM_ADDR live,
                                                                     GM_ADDR out,
                                                                     VerifyPositionsPaddingTiling tiling) {
  KERNEL_TASK_TYPE_DEFAULT(KERNEL_TYPE_AIV_ONLY);
  AscendC::TPipe pipe;
  AscendC::TBuf<AscendC::TPosition::VECIN> buffer;
  pipe.InitBuffer(buffer, dsv4_ascend::kPackBytes);
  dsv4_ascend::Packer(tiling.window, positions, live, buffer.Get<uint8_t>())
      .pack(tiling.pool, nullptr, out, nullptr,
            dsv4_ascend::share_of(tiling.pool.entries, AscendC::GetBlockIdx()));
}
