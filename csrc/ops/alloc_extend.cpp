// SPDX-License-Identifier: Apache-2.0
#include "../op.h"

namespace dsv4 {

using Args = dsv4_alloc_extend_args;
using Params = AllocExtendParams;

static const Field kFields[] = {DSV4_IN(prefix_lens), DSV4_IN(seq_lens),       DSV4_IN(last_slots),
                                DSV4_IN(free_pages),  DSV4_OUT(slots),         DSV4_OUT(num_new_pages),
                                DSV4_OPTIONAL_OUT(status), DSV4_INT(extend_num_tokens), DSV4_INT(page_size)};

static bool fill(Checker& c, const Args& a, Params& p) {
  Dim B("B"), F("F");
  p.prefix_lens = c.in("prefix_lens", a.prefix_lens, {kI32, kI64}, {B});
  p.seq_lens = c.in("seq_lens", a.seq_lens, {kI32, kI64}, {B});
  p.last_slots = c.in("last_slots", a.last_slots, {kI64}, {B});
  p.free_pages = c.in("free_pages", a.free_pages, {kI32, kI64}, {F});
  c.expect(a.extend_num_tokens >= 0, "extend_num_tokens", "at least 0", a.extend_num_tokens);
  c.expect_from(1, "page_size", a.page_size);
  p.slots = c.out("slots", a.slots, {kI64}, {a.extend_num_tokens});
  p.num_new_pages = c.out("num_new_pages", a.num_new_pages, {kI32}, {1});
  if (a.status) p.status = c.out("status", a.status, {kI32}, {1});
  c.finish();
  p.B = B, p.free_count = F, p.extend_num_tokens = a.extend_num_tokens, p.page_size = a.page_size;
  return true;  // an empty batch still reports its count of pages
}

DSV4_DEFINE_OP(alloc_extend)

}  // namespace dsv4
