// SPDX-License-Identifier: Apache-2.0
#include "verify_rows.h"

DSV4_ASCEND_DECLARE(dsv4_verify_metadata_aiv, GM_ADDR, GM_ADDR, GM_ADDR, GM_ADDR, GM_ADDR, GM_ADDR, GM_ADDR,
                    GM_ADDR, GM_ADDR, GM_ADDR, VerifyMetadataTiling);

namespace dsv4::ascend {
namespace {

int32_t launch(const VerifyMetadataParams& p, const Launch& l) {
  int32_t status = DSV4_OK;
  if (!countable(l, p.n, status)) return status;
  VerifyMetadataTiling t{};
  t.window = window_of(p.live_seq_lens, p.B, p.n);
  t.c4 = pool_of(4, p.c4_page, t.window, p.c4_table, p.c4_positions, p.c4_loc);
  t.c128 = pool_of(128, p.c128_page, t.window, p.c128_table, p.c128_positions, p.c128_loc);
  t.requests = split_lines(p.B, kGroupEntries, {{p.start_pos.data, 4}, {p.seqused.data, 4}});
  const int64_t blocks = blocks_for({t.c4.entries.groups, t.c128.entries.groups, t.requests.groups});
  return DSV4_ASCEND_LAUNCH(dsv4_verify_metadata_aiv, blocks, l, address(p.positions),
                            address(p.live_seq_lens), address(p.c4_table), address(p.c128_table),
                            address(p.c4_positions), address(p.c128_positions), address(p.start_pos),
                            address(p.seqused), address(p.c4_loc), address(p.c128_loc), t);
}

}  // namespace
DSV4_ASCEND_KERNEL(verify_metadata, VerifyMetadataParams, launch)
}  // namespace dsv4::ascend
