// SPDX-License-Identifier: Apache-2.0
#include "../alloc_extend_tiling.h"
#include "ints.h"

DSV4_ASCEND_DECLARE(dsv4_alloc_extend_aiv, GM_ADDR, GM_ADDR, GM_ADDR, GM_ADDR, GM_ADDR, GM_ADDR, GM_ADDR,
                    AllocExtendTiling);

namespace dsv4::ascend {
namespace {

constexpr int64_t kGroupTokens = 512;                 // tokens that make a group worth a core
constexpr int64_t kMostVectorTokens = (1 << 18) - 1;  // 64 needs of up to one more add up exactly in fp32

int32_t launch(const AllocExtendParams& p, const Launch& l) {
  AllocExtendTiling t{};
  t.tokens = split_lines(p.extend_num_tokens, kGroupTokens, {{p.slots.data, 8}});
  t.B = p.B, t.free_count = p.free_count;
  t.prefix_wide = p.prefix_lens.dtype == kI64, t.seq_wide = p.seq_lens.dtype == kI64;
  t.pages_wide = p.free_pages.dtype == kI64;
  t.with_status = static_cast<bool>(p.status);
  t.page = division(p.page_size);
  t.vector = !t.prefix_wide && !t.seq_wide && t.page.shift >= 0 && t.page.shift < 31 &&
             p.extend_num_tokens < kMostVectorTokens;
  return DSV4_ASCEND_LAUNCH(dsv4_alloc_extend_aiv, blocks_for({t.tokens.groups}), l, address(p.prefix_lens),
                            address(p.seq_lens), address(p.last_slots), address(p.free_pages),
                            address(p.slots), address(p.num_new_pages), address(p.status), t);
}

}  // namespace
DSV4_ASCEND_KERNEL(alloc_extend, AllocExtendParams, launch)
}  // namespace dsv4::ascend
