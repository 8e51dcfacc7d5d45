// SPDX-License-Identifier: Apache-2.0
// MTE2 and MTE3, and copies within the unified buffer (which the vector unit makes).
#include <cstring>

#include "core.h"
#include "vector_math.h"

namespace ascend_emu {
namespace {

struct Copy {
  char* dst;
  const char* src;
  uint32_t blocks, bytes;
  int64_t src_step, dst_step;
  Type atomic;  // none: it overwrites
};

void run_copy(const void* payload) {
  const Copy& c = *static_cast<const Copy*>(payload);
  for (uint32_t i = 0; i < c.blocks; ++i) {
    char* dst = c.dst + i * c.dst_step;
    const char* src = c.src + i * c.src_step;
    if (c.atomic == Type::none) {
      std::memmove(dst, src, c.bytes);
      continue;
    }
    const uint32_t size = size_of(c.atomic);
    for (uint32_t b = 0; b < c.bytes; b += size)
      store_value(c.atomic, dst + b, value_of(c.atomic, dst + b) + value_of(c.atomic, src + b));
  }
}

struct PadCopy {
  Copy copy;
  uint32_t left, right, element, padded;  // bytes; padded: of the whole block in local memory
  bool on;
  uint64_t value;
};

void run_pad(const void* payload) {
  const PadCopy& p = *static_cast<const PadCopy*>(payload);
  for (uint32_t i = 0; i < p.copy.blocks; ++i) {
    char* dst = p.copy.dst + i * p.copy.dst_step;
    const char* src = p.copy.src + i * p.copy.src_step;
    const uint32_t used = p.left + p.copy.bytes + p.right;
    // Padding without isPad is random; the tail without paddings is the block's first element.
    const auto fill = [&](char* to, uint32_t bytes, const void* value) {
      for (uint32_t b = 0; b < bytes; b += p.element) std::memcpy(to + b, value, p.element);
    };
    const uint64_t random = 0xa5c3965a7e81d2b7ull * (i + 1);
    std::memmove(dst + p.left, src, p.copy.bytes);
    fill(dst, p.left, p.on ? static_cast<const void*>(&p.value) : &random);
    fill(dst + p.left + p.copy.bytes, p.right, p.on ? static_cast<const void*>(&p.value) : &random);
    if (p.padded > used)
      fill(dst + used, p.padded - used, p.left || p.right ? static_cast<const void*>(&random) : src);
  }
}

uint64_t extent(const CopyShape& s, int64_t gap) {
  return s.blocks ? (s.blocks - 1) * (int64_t{s.bytes} + gap) + s.bytes : 0;
}

void touch_local(const Slice& s, const CopyShape& c, int64_t gap, bool write) {
  if (gap == 0) return core->touch(s.space, s.address, c.blocks * c.bytes, write);
  for (uint32_t i = 0; i < c.blocks; ++i)
    core->touch(s.space, s.address + static_cast<uint32_t>(i * (c.bytes + gap)), c.bytes, write);
}
void touch_global(const void* p, const CopyShape& c, int64_t gap, bool write, bool atomic = false) {
  if (gap == 0) return core->touch_global(p, uint64_t{c.blocks} * c.bytes, write, atomic);
  for (uint32_t i = 0; i < c.blocks; ++i)
    core->touch_global(static_cast<const char*>(p) + i * (c.bytes + gap), c.bytes, write, atomic);
}

void check_element_aligned(const char* api, const void* p, uint32_t element) {
  if (reinterpret_cast<uintptr_t>(p) % element)
    violate(1, api, "global memory: expected an address aligned to %u bytes, got %p", element, p);
}

void check_local(const char* api, const char* what, const Slice& s, uint64_t bytes) {
  check_aligned(api, what, s, kBlockBytes);
  check_inside(api, what, s, 0, bytes);
}

void need_vector(const char* api, const Slice& s) {
  if (s.space == kUB && !core->vector)
    violate(13, api, "the unified buffer belongs to vector cores; this is a cube core");
  if (s.space != kUB && core->vector)
    violate(13, api, "%s belongs to cube cores; this is a vector core", kSpaceNames[s.space]);
}

}  // namespace

void set_atomic(Atomic op, Type type) { core->atomic = op == Atomic::None ? Type::none : type; }

void count_bytes(const char* api, uint64_t count, uint32_t element) {
  if (count * element % kBlockBytes)
    violate(2, api, "expected count * %u to be a multiple of 32 bytes, got %llu * %u (the tail would not be copied)",
            element, static_cast<unsigned long long>(count), element);
}

void check_copy_params(const char* api, uint64_t blocks, uint64_t length, uint64_t, uint64_t) {
  if (blocks > 4095)
    violate(2, api, "blockCount: expected 0 to 4095, got %llu", static_cast<unsigned long long>(blocks));
  (void)length;
}

void copy_in(const char* api, const Slice& dst, const void* src, const CopyShape& c) {
  need_vector(api, dst);
  core->begin_op(kMTE2, api, __builtin_return_address(0));
  if (!c.blocks || !c.bytes) return;
  check_local(api, "dst", dst, extent(c, c.dst_gap));
  touch_global(src, c, c.src_gap, false);
  touch_local(dst, c, c.dst_gap, true);
  core->count(kMTE2, src, uint64_t{c.blocks} * c.bytes);
  core->submit(&run_copy, Copy{local(dst), static_cast<const char*>(src), c.blocks, c.bytes, c.bytes + c.src_gap,
                               c.bytes + c.dst_gap, Type::none});
}

void copy_out(const char* api, void* dst, const Slice& src, const CopyShape& c) {
  need_vector(api, src);
  if (src.space != kUB) violate(17, api, "no path from %s to global memory by DataCopy", kSpaceNames[src.space]);
  core->begin_op(kMTE3, api, __builtin_return_address(0));
  if (!c.blocks || !c.bytes) return;
  check_local(api, "src", src, extent(c, c.src_gap));
  touch_local(src, c, c.src_gap, false);
  touch_global(dst, c, c.dst_gap, true, core->atomic != Type::none);
  core->count(kMTE3, dst, uint64_t{c.blocks} * c.bytes);
  core->submit(&run_copy, Copy{static_cast<char*>(dst), local(src), c.blocks, c.bytes, c.bytes + c.src_gap,
                               c.bytes + c.dst_gap, core->atomic});
}

void copy_local(const char* api, const Slice& dst, const Slice& src, const CopyShape& c) {
  need_vector(api, dst);
  need_vector(api, src);
  if (dst.space != kUB || src.space != kUB) violate(2, api, "between local tensors: expected both in UB");
  core->begin_op(kV, api, __builtin_return_address(0));
  if (!c.blocks || !c.bytes) return;
  check_local(api, "dst", dst, extent(c, c.dst_gap));
  check_local(api, "src", src, extent(c, c.src_gap));
  touch_local(src, c, c.src_gap, false);
  touch_local(dst, c, c.dst_gap, true);
  core->counters.bytes[kV] += uint64_t{c.blocks} * c.bytes;
  core->submit(&run_copy, Copy{local(dst), local(src), c.blocks, c.bytes, c.bytes + c.src_gap, c.bytes + c.dst_gap,
                               Type::none});
}

static void check_pad(const CopyShape& c, uint32_t element) {
  if (c.blocks > 4095) violate(3, "DataCopyPad", "blockCount: expected 0 to 4095, got %u", c.blocks);
  if (c.bytes > 2097151) violate(3, "DataCopyPad", "blockLen: expected 0 to 2097151 bytes, got %u", c.bytes);
  if (c.bytes % element)
    violate(3, "DataCopyPad", "blockLen is in bytes: expected a multiple of %u, got %u", element, c.bytes);
}

void pad_in(const Slice& dst, const void* src, const CopyShape& c, uint32_t element, const Padding& padding) {
  need_vector("DataCopyPad", dst);
  core->begin_op(kMTE2, "DataCopyPad", __builtin_return_address(0));
  check_pad(c, element);
  if (!c.blocks || !c.bytes) return;
  if (padding.left > 32 || padding.right > 32)
    violate(3, "DataCopyPad", "paddings: expected at most 32 bytes each, got %u and %u", padding.left, padding.right);
  if (!padding.on && (padding.left || padding.right))
    violate(3, "DataCopyPad", "paddings without isPad are filled with anything");
  if (element == 8 && padding.value) violate(3, "DataCopyPad", "paddingValue of 8-byte elements: expected 0");
  check_element_aligned("DataCopyPad", src, element);
  const uint32_t padded = (padding.left + c.bytes + padding.right + 31) / 32 * 32;
  const CopyShape in_local{c.blocks, padded, 0, c.dst_gap};
  check_local("DataCopyPad", "dst", dst, extent(in_local, c.dst_gap));
  touch_global(src, c, c.src_gap, false);
  touch_local(dst, in_local, c.dst_gap, true);
  core->count(kMTE2, src, uint64_t{c.blocks} * c.bytes);
  core->submit(&run_pad, PadCopy{{local(dst), static_cast<const char*>(src), c.blocks, c.bytes, c.bytes + c.src_gap,
                                  padded + c.dst_gap, Type::none},
                                 padding.left,
                                 padding.right,
                                 element,
                                 padded,
                                 padding.on,
                                 padding.value});
}

void pad_out(void* dst, const Slice& src, const CopyShape& c, uint32_t element) {
  need_vector("DataCopyPad", src);
  core->begin_op(kMTE3, "DataCopyPad", __builtin_return_address(0));
  check_pad(c, element);
  if (!c.blocks || !c.bytes) return;
  check_element_aligned("DataCopyPad", dst, element);
  const int64_t gap = (c.bytes + 31) / 32 * 32 - int64_t{c.bytes} + c.src_gap;  // blocks start at 32 bytes
  check_local("DataCopyPad", "src", src, extent(c, gap));
  touch_local(src, c, gap, false);
  touch_global(dst, c, c.dst_gap, true, core->atomic != Type::none);
  core->count(kMTE3, dst, uint64_t{c.blocks} * c.bytes);
  core->submit(&run_copy,
               Copy{static_cast<char*>(dst), local(src), c.blocks, c.bytes, c.bytes + gap, c.bytes + c.dst_gap,
                    core->atomic});
}

}  // namespace ascend_emu
