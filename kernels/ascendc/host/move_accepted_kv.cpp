// SPDX-License-Identifier: Apache-2.0
#include "../move_accepted_kv_tiling.h"
#include "ints.h"

DSV4_ASCEND_DECLARE(dsv4_move_accepted_kv_aiv, GM_ADDR, GM_ADDR, GM_ADDR, GM_ADDR, MoveAcceptedKvTiling);

namespace dsv4::ascend {
namespace {

constexpr int64_t kCoreBytes = 4096;    // of KV that make a core worth while
constexpr uint64_t kLeastScratch = 64;  // a kernel type with a barrier asks for some

MoveAcceptedKvTiling tiling_of(const MoveAcceptedKvParams& p) {
  const int64_t size = bytes_of(p.kv_pages.dtype);
  MoveAcceptedKvTiling t{};
  t.slots = p.pages * p.page;
  t.page_bytes = p.kv_pages.stride[0] * size, t.slot_bytes = p.kv_pages.stride[1] * size,
  t.row_bytes = p.D * size;
  t.page = division(std::max<int64_t>(p.page, 1));
  t.pitch = round_up<int64_t>(t.row_bytes, kLine);  // a core's part of the scratch is whole lines
  t.rows = kMoveHeld / t.pitch;
  // Rows that share no line can be written by different cores.
  uint64_t bits = reinterpret_cast<uintptr_t>(p.kv_pages.data);
  if (p.pages > 1) bits |= static_cast<uint64_t>(t.page_bytes);
  if (p.page > 1) bits |= static_cast<uint64_t>(t.slot_bytes);
  const int64_t group =
      bits % kLine ? p.M : std::max<int64_t>(1, kCoreBytes / std::max<int64_t>(t.row_bytes, 1));
  t.pairs = {p.M, 0, group, ceil_div(p.M, group)};
  const int64_t blocks = blocks_for({t.pairs.groups});
  t.scratch = ceil_div(t.pairs.groups, blocks) * group > t.rows;
  return t;
}

uint64_t workspace(const MoveAcceptedKvParams& p) {
  if (p.M == 0 || p.D == 0) return 0;
  const MoveAcceptedKvTiling t = tiling_of(p);
  return t.scratch ? static_cast<uint64_t>(p.M * t.pitch) : kLeastScratch;
}

int32_t launch(const MoveAcceptedKvParams& p, const Launch& l) {
  const MoveAcceptedKvTiling t = tiling_of(p);
  if (t.pitch > kMoveHeld)
    return refuse(l, "kv_pages: expected rows of at most %lld bytes, got %lld",
                  static_cast<long long>(kMoveHeld), static_cast<long long>(t.row_bytes));
  return DSV4_ASCEND_LAUNCH(dsv4_move_accepted_kv_aiv, blocks_for({t.pairs.groups}), l, address(p.kv_pages),
                            address(p.src_slots), address(p.dst_slots), workspace_of(l), t);
}

}  // namespace
DSV4_ASCEND_KERNEL_WITH_WORKSPACE(move_accepted_kv, MoveAcceptedKvParams, launch, workspace)
DSV4_ASCEND_FLOAT16(move_accepted_kv)
}  // namespace dsv4::ascend
