// SPDX-License-Identifier: Apache-2.0
#include "../assign_draft_slots_tiling.h"
#include "ints.h"

DSV4_ASCEND_DECLARE(dsv4_assign_draft_slots_aiv, GM_ADDR, GM_ADDR, GM_ADDR, AssignDraftSlotsTiling);

namespace dsv4::ascend {
namespace {

constexpr int64_t kGroupSlots = 64;  // slots that make a group worth a core

int32_t launch(const AssignDraftSlotsParams& p, const Launch& l) {
  const int64_t each = p.topk * p.num_steps;
  AssignDraftSlotsTiling t{};
  t.requests = split_lines(p.B, ceil_div(kGroupSlots, each), {{p.slots.data, row_bytes(p.slots)}});
  t.table = int_rows(p.block_table), t.live = int_rows(p.live_seq_lens);
  t.slots_stride = row_bytes(p.slots);
  t.topk = p.topk, t.steps = p.num_steps, t.width = p.block_table.shape[1];
  t.page = division(p.page_size);
  t.tile = std::min(each, kAssignSlots);
  t.rows = std::min(kAssignSlots / round_up<int64_t>(t.tile, 4), kAssignRequests);
  return DSV4_ASCEND_LAUNCH(dsv4_assign_draft_slots_aiv, blocks_for({t.requests.groups}), l,
                            address(p.block_table), address(p.live_seq_lens), address(p.slots), t);
}

}  // namespace
DSV4_ASCEND_KERNEL(assign_draft_slots, AssignDraftSlotsParams, launch)
}  // namespace dsv4::ascend
