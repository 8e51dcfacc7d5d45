// SPDX-License-Identifier: Apache-2.0
#pragma once
#include "../tensor_view.h"

namespace dsv4 {

struct VerifyPositionsPaddingParams {
  TensorView positions, live_seq_lens, out;
  int64_t B, n, ratio;
};

struct VerifyMetadataParams {
  TensorView positions, live_seq_lens, c4_table, c128_table;
  TensorView c4_positions, c128_positions, start_pos, seqused, c4_loc, c128_loc;
  int64_t B, n, c4_page, c128_page;
};

}  // namespace dsv4
