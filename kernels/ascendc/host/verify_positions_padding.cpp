// SPDX-License-Identifier: Apache-2.0
#include "verify_rows.h"

DSV4_ASCEND_DECLARE(dsv4_verify_positions_padding_aiv, GM_ADDR, GM_ADDR, GM_ADDR,
                    VerifyPositionsPaddingTiling);

namespace dsv4::ascend {
namespace {

int32_t launch(const VerifyPositionsPaddingParams& p, const Launch& l) {
  int32_t status = DSV4_OK;
  if (!countable(l, p.n, status)) return status;
  VerifyPositionsPaddingTiling t{};
  t.window = window_of(p.live_seq_lens, p.B, p.n);
  t.pool = pool_of(p.ratio, 1, t.window, {}, p.out, {});
  return DSV4_ASCEND_LAUNCH(dsv4_verify_positions_padding_aiv, blocks_for({t.pool.entries.groups}), l,
                            address(p.positions), address(p.live_seq_lens), address(p.out), t);
}

}  // namespace
DSV4_ASCEND_KERNEL(verify_positions_padding, VerifyPositionsPaddingParams, launch)
}  // namespace dsv4::ascend
