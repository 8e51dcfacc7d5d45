// SPDX-License-Identifier: Apache-2.0
#pragma once
#include "../tensor_view.h"

namespace dsv4 {

struct AllocExtendParams {
  TensorView prefix_lens, seq_lens, last_slots, free_pages, slots, num_new_pages, status;
  int64_t B, free_count, extend_num_tokens, page_size;
};

struct AssignDraftSlotsParams {
  TensorView block_table, live_seq_lens, slots;
  int64_t B, topk, num_steps, page_size;
};

struct MoveAcceptedKvParams {
  TensorView kv_pages, src_slots, dst_slots;
  int64_t pages, page, D, M;
};

}  // namespace dsv4
