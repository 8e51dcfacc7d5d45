// SPDX-License-Identifier: Apache-2.0
// Reductions, comparisons, selection, gathering, broadcasts.
#include <cstring>

#include "numbers.h"
#include "operand.h"

namespace ascend_emu {
namespace {

struct Reduce {
  char *dst, *src;
  uint64_t mask[2];
  uint32_t repeats, lanes, count, element, block, repeat_step, group, dst_step;
  int order;
  Reduction op;
  Type type;
  bool counted, with_index;
};

bool active(const Reduce& r, uint32_t repeat, uint32_t lane) {
  return r.counted ? repeat * r.lanes + lane < r.count : r.mask[lane / 64] >> lane % 64 & 1;
}
const char* lane_of(const Reduce& r, uint32_t repeat, uint32_t lane) {
  const uint32_t per_block = kBlockBytes / r.element;
  return r.src + (r.counted ? size_t{repeat} * kRepeatBytes : repeat * size_t{r.repeat_step} * kBlockBytes) +
         lane / per_block * r.block * size_t{kBlockBytes} + lane % per_block * r.element;
}
double rounded(Type t, double x) {
  return t == Type::f32 ? static_cast<double>(static_cast<float>(x)) : static_cast<double>(half_float(half_bits(static_cast<float>(x), kRint)));
}
bool better(Reduction op, double a, double b) { return std::isnan(a) || (op == Reduction::Max ? a > b : a < b); }

struct Best {
  double value;
  uint32_t at;
  bool any;
};
// Lanes [first, first + n) of a repeat. Sums: a binary tree of neighbours, an idle lane counts as zero.
Best reduce_lanes(const Reduce& r, uint32_t repeat, uint32_t first, uint32_t n) {
  if (r.op == Reduction::Sum) {
    double tree[128];
    bool any = false;
    for (uint32_t i = 0; i < n; ++i) {
      const bool on = active(r, repeat, first + i);
      tree[i] = on ? value_of(r.type, lane_of(r, repeat, first + i)) : 0.0;
      any = any || on;
    }
    for (uint32_t width = n; width > 1; width /= 2)
      for (uint32_t i = 0; i < width / 2; ++i) tree[i] = rounded(r.type, tree[2 * i] + tree[2 * i + 1]);
    return {tree[0], 0, any};
  }
  Best best{0, 0, false};
  for (uint32_t i = 0; i < n; ++i) {
    if (!active(r, repeat, first + i)) continue;
    const double v = value_of(r.type, lane_of(r, repeat, first + i));
    if (!best.any || (better(r.op, v, best.value) && !std::isnan(best.value))) best = {v, first + i, true};
  }
  return best;
}
void put_index(const Reduce& r, char* to, uint32_t index) { std::memcpy(to, &index, r.element); }

void run_reduce(const void* payload) {
  const Reduce& r = *static_cast<const Reduce*>(payload);
  Best all{0, 0, false};
  for (uint32_t i = 0; i < r.repeats; ++i) {
    const Best b = reduce_lanes(r, i, 0, r.lanes);
    if (!b.any) continue;
    if (!all.any) all = {b.value, i * r.lanes + b.at, true};
    else if (r.op == Reduction::Sum) all.value = rounded(r.type, all.value + b.value);  // one repeat after the other
    else if (better(r.op, b.value, all.value) && !std::isnan(all.value)) all = {b.value, i * r.lanes + b.at, true};
  }
  store_value(r.type, r.dst, all.value);
  if (r.with_index) put_index(r, r.dst + r.element, all.at);
}

void run_groups(const void* payload) {
  const Reduce& r = *static_cast<const Reduce*>(payload);
  const uint32_t n = r.group / r.element;
  for (uint32_t i = 0; i < r.repeats; ++i)
    for (uint32_t g = 0; g < r.lanes / n; ++g) {
      const Best b = reduce_lanes(r, i, g * n, n);
      if (!b.any) continue;
      char* to = r.dst + size_t{i} * r.dst_step + g * r.element;
      switch (r.order) {
        case 0: store_value(r.type, to, b.value), put_index(r, to + r.element, b.at - g * n); break;
        case 1: put_index(r, to, b.at - g * n), store_value(r.type, to + r.element, b.value); break;
        case 3: put_index(r, to, b.at - g * n); break;
        default: store_value(r.type, to, b.value);
      }
    }
}

Reduce reduction(Reduction op, Type type, const Slice& dst, const Slice& src, const Shape& shape) {
  Reduce r{};
  r.dst = local(dst), r.src = local(src);
  r.mask[0] = shape.mask[0], r.mask[1] = shape.mask[1];
  r.element = size_of(type), r.lanes = kRepeatBytes / r.element;
  r.counted = shape.counted, r.count = shape.count;
  r.repeats = shape.counted ? (shape.count + r.lanes - 1) / r.lanes : shape.repeat;
  r.block = shape.counted ? 1 : shape.src0_block, r.repeat_step = shape.src0_repeat;
  r.op = op, r.type = type;
  return r;
}
bool nothing(const Shape& s) { return s.counted ? !s.count : !s.repeat || !(s.mask[0] | s.mask[1]); }

void check_element_aligned(const char* api, const Slice& s, uint32_t element) {
  if (s.space != kUB) violate(1, api, "dst: expected a tensor in UB, got %s", kSpaceNames[s.space]);
  if (s.address % element) violate(1, api, "dst: expected an address aligned to %u bytes, got UB+%u", element, s.address);
}

}  // namespace

void reduce(const char* api, Reduction op, Type type, const Slice& dst, const Slice& src, const Slice& work,
            const Shape& shape, bool with_index) {
  need_vector_unit(api);
  core->begin_op(kV, api, __builtin_return_address(0));
  if (nothing(shape)) return;
  const Operand from{"src", &src, size_of(type), shape.src0_block, shape.src0_repeat, false};
  Reduce r = reduction(op, type, dst, src, shape);
  r.with_index = with_index;
  check_vector_operand(api, from, shape, r.lanes);
  check_element_aligned(api, dst, r.element);
  check_inside(api, "dst", dst, 0, r.element * (with_index ? 2u : 1u));
  check_aligned(api, "sharedTmpBuffer", work, kBlockBytes);
  // ReduceSum with a count leaves it alone; the others keep what each repeat gives (with its index), and reduce that.
  const bool uses_work = !(op == Reduction::Sum && shape.counted);
  uint32_t needed = 0;
  if (uses_work) {
    const uint32_t per_block = kBlockBytes / r.element;
    uint32_t results = r.repeats * (op == Reduction::Sum ? 1 : 2);
    do {
      needed += (results + per_block - 1) / per_block * per_block;
      results = (results + r.lanes - 1) / r.lanes * 2;
    } while (with_index && results > 2 && needed < 65536);
    check_inside(api, "sharedTmpBuffer", work, 0, uint64_t{needed} * r.element);
  } else {
    check_slice(api, work);
  }
  touch_vector(from, shape, r.lanes);
  if (uses_work) core->touch(work.space, work.address, needed * r.element, true);
  core->touch(dst.space, dst.address, r.element * (with_index ? 2u : 1u), true);
  count_repeats(shape, r.lanes);
  core->submit(&run_reduce, r);
}

void reduce_groups(const char* api, Reduction op, Type type, const Slice& dst, const Slice& src, const Shape& shape,
                   uint32_t group, int order) {
  need_vector_unit(api);
  core->begin_op(kV, api, __builtin_return_address(0));
  if (nothing(shape)) return;
  const Operand from{"src", &src, size_of(type), shape.src0_block, shape.src0_repeat, false};
  Reduce r = reduction(op, type, dst, src, shape);
  r.group = group, r.order = order;
  check_vector_operand(api, from, shape, r.lanes);
  check_element_aligned(api, dst, r.element);
  const uint32_t results = group == kRepeatBytes ? (order < 2 ? 2 : 1) : kRepeatBytes / group;
  const uint32_t unit = group == kRepeatBytes ? results : 8 * kBlockBytes / group;  // of dstRepStride, in elements
  r.dst_step = (shape.counted ? 1 : shape.dst_repeat) * unit * r.element;
  check_inside(api, "dst", dst, 0, uint64_t{r.repeats - 1} * r.dst_step + results * r.element);
  touch_vector(from, shape, r.lanes);
  const uint32_t lanes_of_group = group / r.element;
  for (uint32_t i = 0; i < r.repeats; ++i)
    for (uint32_t g = 0; g < r.lanes / lanes_of_group; ++g) {
      bool any = false;
      for (uint32_t lane = 0; lane < lanes_of_group; ++lane) any = any || active(r, i, g * lanes_of_group + lane);
      if (any) core->touch(dst.space, dst.address + i * r.dst_step + g * r.element,
                           group == kRepeatBytes ? results * r.element : r.element, true);
    }
  count_repeats(shape, r.lanes);
  core->submit(&run_groups, r);
}

namespace {

struct Choose {  // Compare and Select
  char *dst, *a, *b, *bits;
  uint64_t scalar;
  uint32_t count, lanes;
  Type type;
  int mode;
};

bool holds(double a, double b, int mode) {
  switch (mode) {
    case 0: return a < b;
    case 1: return a > b;
    case 2: return a == b;
    case 3: return a <= b;
    case 4: return a >= b;
    default: return a != b;
  }
}
void run_compare(const void* payload) {
  const Choose& c = *static_cast<const Choose*>(payload);
  const uint32_t size = size_of(c.type);
  for (uint32_t i = 0; i < c.count; i += 8) {
    uint8_t byte = 0;
    for (uint32_t k = 0; k < 8; ++k) {
      const double a = value_of(c.type, c.a + (i + k) * size);
      const double b = c.b ? value_of(c.type, c.b + (i + k) * size) : value_of(c.type, &c.scalar);
      byte |= static_cast<uint8_t>(holds(a, b, c.mode) << k);
    }
    c.dst[i / 8] = static_cast<char>(byte);
  }
}
void run_select(const void* payload) {
  const Choose& c = *static_cast<const Choose*>(payload);
  const uint32_t size = size_of(c.type);
  for (uint32_t i = 0; i < c.count; ++i) {
    const uint32_t at = c.mode == 0 ? i % c.lanes : i;
    const bool first = static_cast<uint8_t>(c.bits[at / 8]) >> at % 8 & 1;
    const void* from = first ? c.a + i * size : c.b ? c.b + i * size : reinterpret_cast<const char*>(&c.scalar);
    std::memmove(c.dst + i * size, from, size);
  }
}

}  // namespace

void compare(const char* api, Type type, const Slice& dst, const Slice& src0, const Slice* src1, uint64_t scalar,
             int mode, const Shape& shape) {
  need_vector_unit(api);
  core->begin_op(kV, api, __builtin_return_address(0));
  if (!shape.count) return;
  const uint32_t size = size_of(type), lanes = kRepeatBytes / size;
  if (shape.count * size % kRepeatBytes)
    violate(6, api, "expected count * %u to be a multiple of 256 bytes, got %u * %u", size, shape.count, size);
  if (type == Type::i32 && mode != 2) violate(7, api, "int32_t: expected CMPMODE::EQ");
  const Operand a{"src0", &src0, size, 1, 8, false}, b{"src1", src1, size, 1, 8, false};
  check_vector_operand(api, a, shape, lanes);
  if (src1) check_vector_operand(api, b, shape, lanes);
  check_aligned(api, "dst", dst, kBlockBytes);
  check_inside(api, "dst", dst, 0, shape.count / 8);
  touch_vector(a, shape, lanes);
  if (src1) touch_vector(b, shape, lanes);
  core->touch(dst.space, dst.address, shape.count / 8, true);
  count_repeats(shape, lanes);
  core->submit(&run_compare, Choose{local(dst), local(src0), src1 ? local(*src1) : nullptr, nullptr, scalar, shape.count,
                                    lanes, type, mode});
}

void select(Type type, const Slice& dst, const Slice& mask, const Slice& src0, const Slice* src1, uint64_t scalar,
            int mode, const Shape& shape) {
  need_vector_unit("Select");
  core->begin_op(kV, "Select", __builtin_return_address(0));
  if (!shape.count) return;
  if ((mode == 1) == (src1 != nullptr)) violate(6, "Select", "SELMODE %d does not go with a %s", mode, src1 ? "tensor" : "scalar");
  const uint32_t size = size_of(type), lanes = kRepeatBytes / size;
  const Operand d{"dst", &dst, size, 1, 8, true}, a{"src0", &src0, size, 1, 8, false}, b{"src1", src1, size, 1, 8, false};
  check_vector_operand("Select", d, shape, lanes);
  check_vector_operand("Select", a, shape, lanes);
  check_overlap("Select", d, a, shape, lanes, false);
  if (src1) {
    check_vector_operand("Select", b, shape, lanes);
    check_overlap("Select", d, b, shape, lanes, false);
  }
  check_aligned("Select", "selMask", mask, kBlockBytes);
  const uint32_t bits = mode == 0 ? lanes : shape.count;
  check_inside("Select", "selMask", mask, 0, (bits + 7) / 8);
  touch_vector(a, shape, lanes);
  if (src1) touch_vector(b, shape, lanes);
  core->touch(mask.space, mask.address, (bits + 7) / 8, false);
  touch_vector(d, shape, lanes);
  count_repeats(shape, lanes);
  core->submit(&run_select, Choose{local(dst), local(src0), src1 ? local(*src1) : nullptr, local(mask), scalar,
                                   shape.count, lanes, type, mode});
}

namespace {

struct GatherOp {
  char *dst, *src, *offsets;
  uint32_t count, element, base, room;
  Core* owner;
};
void run_gather(const void* payload) {
  const GatherOp& g = *static_cast<const GatherOp*>(payload);
  for (uint32_t i = 0; i < g.count; ++i) {
    uint32_t offset;
    std::memcpy(&offset, g.offsets + i * 4, 4);
    const uint64_t at = uint64_t{g.base} + offset;
    if (at % g.element) violate(1, "Gather", "offset %u of element %u is no multiple of %u bytes", offset, i, g.element);
    if (at + g.element > g.room) violate(19, "Gather", "offset %u of element %u leaves the buffer (%u bytes)", offset, i, g.room);
    std::memcpy(g.dst + i * g.element, g.src + at, g.element);
  }
}

struct Spread {
  char *dst, *src;
  uint32_t repeats, element, block, repeat_step;
};
void run_spread(const void* payload) {
  const Spread& s = *static_cast<const Spread*>(payload);
  for (uint32_t r = 0; r < s.repeats; ++r)
    for (uint32_t b = 0; b < 8; ++b)
      for (uint32_t i = 0; i < kBlockBytes; i += s.element)
        std::memcpy(s.dst + (r * s.repeat_step + b * s.block) * size_t{kBlockBytes} + i, s.src + (r * 8 + b) * s.element,
                    s.element);
}

struct Count {
  char* dst;
  uint64_t first;
  uint32_t count;
  Type type;
};
void run_index(const void* payload) {
  const Count& c = *static_cast<const Count*>(payload);
  const double first = value_of(c.type, &c.first);
  for (uint32_t i = 0; i < c.count; ++i) store_value(c.type, c.dst + i * size_of(c.type), first + i);
}

}  // namespace

void gather(Type type, const Slice& dst, const Slice& src, const Slice& offsets, uint32_t base, const Shape& shape) {
  need_vector_unit("Gather");
  core->begin_op(kV, "Gather", __builtin_return_address(0));
  if (!shape.count) return;
  const uint32_t size = size_of(type), lanes = kRepeatBytes / 4;
  const Operand d{"dst", &dst, size, 1, 8, true}, o{"srcOffset", &offsets, 4, 1, 8, false};
  check_vector_operand("Gather", d, shape, lanes);
  check_vector_operand("Gather", o, shape, lanes);
  check_aligned("Gather", "src", src, kBlockBytes);
  check_slice("Gather", src);
  if (src.begin == dst.begin && dst.address < src.end && src.address < dst.address + shape.count * size && src.slot == dst.slot &&
      src.address == dst.address)
    violate(6, "Gather", "src and dst are the same memory");
  touch_vector(o, shape, lanes);
  core->touch(src.space, src.address, src.bytes, false, false);  // which of them, the offsets will say
  touch_vector(d, shape, lanes);
  count_repeats(shape, lanes);
  core->submit(&run_gather, GatherOp{local(dst), local(src), local(offsets), shape.count, size, base,
                                     src.end - src.address, core});
}

void broadcast_blocks(Type type, const Slice& dst, const Slice& src, uint32_t repeat, uint32_t dst_block,
                      uint32_t dst_repeat) {
  need_vector_unit("Brcb");
  core->begin_op(kV, "Brcb", __builtin_return_address(0));
  if (!repeat) return;
  const uint32_t size = size_of(type);
  check_aligned("Brcb", "dst", dst, kBlockBytes);
  check_aligned("Brcb", "src", src, kBlockBytes);
  check_inside("Brcb", "src", src, 0, repeat * 8 * size);
  check_inside("Brcb", "dst", dst, 0, ((repeat - 1) * dst_repeat + 7 * dst_block + 1) * kBlockBytes);
  core->touch(src.space, src.address, repeat * 8 * size, false);
  for (uint32_t r = 0; r < repeat; ++r)
    for (uint32_t b = 0; b < 8; ++b)
      core->touch(dst.space, dst.address + (r * dst_repeat + b * dst_block) * kBlockBytes, kBlockBytes, true);
  core->counters.vector_repeats += repeat;
  core->submit(&run_spread, Spread{local(dst), local(src), repeat, size, dst_block, dst_repeat});
}

void create_index(Type type, const Slice& dst, uint64_t first, const Shape& shape) {
  need_vector_unit("CreateVecIndex");
  core->begin_op(kV, "CreateVecIndex", __builtin_return_address(0));
  if (!shape.count) return;
  const uint32_t lanes = kRepeatBytes / size_of(type);
  const Operand d{"dst", &dst, size_of(type), 1, 8, true};
  check_vector_operand("CreateVecIndex", d, shape, lanes);
  touch_vector(d, shape, lanes);
  count_repeats(shape, lanes);
  core->submit(&run_index, Count{local(dst), first, shape.count, type});
}

}  // namespace ascend_emu
