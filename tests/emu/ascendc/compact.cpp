// SPDX-License-Identifier: Apache-2.0
// GatherMask: the chosen elements, one after the other. How many there are, the scalar unit reads at once: the
// instruction is done when it returns.
#include <cstring>

#include "operand.h"

namespace ascend_emu {
namespace {

bool fixed_pattern(uint32_t pattern, uint32_t lane) {
  switch (pattern) {
    case 1: return lane % 2 == 0;
    case 2: return lane % 2 == 1;
    case 7: return true;
    default: return lane % 4 == pattern - 3;
  }
}

struct Compact {
  char *dst, *src, *bits;
  uint32_t pattern, lanes, repeats, element, block, repeat_step, bits_step;
  uint64_t* kept;
};
void run_compact(const void* payload) {
  const Compact& c = *static_cast<const Compact*>(payload);
  const uint32_t per_block = kBlockBytes / c.element, whole = kRepeatBytes / c.element;
  uint64_t kept = 0;
  for (uint32_t r = 0; r < c.repeats; ++r)
    for (uint32_t lane = 0; lane < c.lanes; ++lane) {
      const uint32_t at = r * c.bits_step * kBlockBytes * 8 + lane;
      const bool chosen =
          c.bits ? static_cast<uint8_t>(c.bits[at / 8]) >> at % 8 & 1 : fixed_pattern(c.pattern, lane);
      if (!chosen) continue;
      const size_t block = size_t{r} * c.repeat_step + lane / whole * 8 + lane % whole / per_block * c.block;
      const char* from = c.src + block * kBlockBytes + lane % per_block * c.element;
      std::memmove(c.dst + kept++ * c.element, from, c.element);
    }
  *c.kept = kept;
}

}  // namespace

uint64_t gather_mask(Type type, const Slice& dst, const Slice& src, const Slice* bits, uint32_t pattern, bool counter,
                     uint32_t mask, uint32_t repeats, uint32_t src_block, uint32_t src_repeat, uint32_t bits_repeat) {
  const char* const api = "GatherMask";
  need_vector_unit(api);
  core->begin_op(kV, api, __builtin_return_address(0));
  if (!bits && (pattern < 1 || pattern > 7)) violate(6, api, "src1Pattern: expected 1 to 7, got %u", pattern);
  if (!repeats) return 0;
  const uint32_t element = size_of(type), whole = kRepeatBytes / element;
  if (counter && !mask) violate(6, api, "mask: expected at least 1 in the counter mode");
  const uint32_t lanes = counter ? mask : whole;
  if (lanes > whole && (src_block != 1))
    violate(6, api, "more than 256 bytes a repeat: expected src0BlockStride 1, got %u", src_block);
  check_aligned(api, "dst", dst, kBlockBytes);
  check_aligned(api, "src0", src, kBlockBytes);
  const uint32_t per_block = kBlockBytes / element;
  for (uint32_t r = 0; r < repeats; ++r)
    for (uint32_t lane = 0; lane < lanes; lane += per_block) {
      const uint32_t n = lanes - lane < per_block ? lanes - lane : per_block;
      const uint32_t block = r * src_repeat + lane / whole * 8 + lane % whole / per_block * src_block;
      check_inside(api, "src0", src, uint64_t{block} * kBlockBytes, n * element);
      core->touch(src.space, src.address + block * kBlockBytes, n * element, false);
    }
  if (bits) {
    check_aligned(api, "src1Pattern", *bits, kBlockBytes);
    for (uint32_t r = 0; r < repeats; ++r) {
      check_inside(api, "src1Pattern", *bits, uint64_t{r} * bits_repeat * kBlockBytes, (lanes + 7) / 8);
      core->touch(bits->space, bits->address + r * bits_repeat * kBlockBytes, (lanes + 7) / 8, false);
    }
  }
  uint64_t kept = 0;
  // The number of results depends on the data: everything that it depends on is run first.
  core->drain(kV);
  const Compact c{local(dst), local(src), bits ? local(*bits) : nullptr, pattern, lanes, repeats, element, src_block,
                  src_repeat, bits_repeat, &kept};
  run_compact(&c);
  check_inside(api, "dst", dst, 0, kept * element);
  core->touch(dst.space, dst.address, static_cast<uint32_t>(kept * element), true);
  count_repeats(repeats * ((lanes + whole - 1) / whole), 2 * kOneCycle);
  core->counter_mode = false;
  return kept;
}

}  // namespace ascend_emu
