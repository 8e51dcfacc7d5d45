// SPDX-License-Identifier: Apache-2.0
// Comparisons, selection, gathering, broadcasts, indices, compaction, transposition.
#include <cstring>

#include "numbers.h"
#include "operand.h"

namespace ascend_emu {
namespace {

struct Choose {  // Compare and Select
  char *dst, *a, *b, *bits;
  uint64_t scalar;
  uint64_t mask[2];
  uint32_t repeats, lanes, count;  // count: of the form with a count; else all lanes of the mask
  uint16_t block[3], repeat_step[3];
  Type type;
  int mode;
};

size_t offset_of(const Choose& c, int k, uint32_t repeat, uint32_t lane) {
  const uint32_t size = size_of(c.type), per_block = kBlockBytes / size;
  if (c.count) return (size_t{repeat} * c.lanes + lane) * size;
  return (size_t{repeat} * c.repeat_step[k] + lane / per_block * c.block[k]) * kBlockBytes + lane % per_block * size;
}
bool takes_part(const Choose& c, uint32_t repeat, uint32_t lane) {
  return c.count ? repeat * c.lanes + lane < c.count : c.mask[lane / 64] >> lane % 64 & 1;
}

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
  for (uint32_t r = 0; r < c.repeats; ++r)
    for (uint32_t first = 0; first < c.lanes; first += 8) {
      uint8_t byte = 0;
      for (uint32_t k = 0; k < 8; ++k) {
        const double a = value_of(c.type, c.a + offset_of(c, 1, r, first + k));
        const double b =
            value_of(c.type, c.b ? c.b + offset_of(c, 2, r, first + k) : reinterpret_cast<const char*>(&c.scalar));
        byte |= static_cast<uint8_t>(holds(a, b, c.mode) << k);
      }
      c.dst[(r * c.lanes + first) / 8] = static_cast<char>(byte);
    }
}
void run_select(const void* payload) {
  const Choose& c = *static_cast<const Choose*>(payload);
  for (uint32_t r = 0; r < c.repeats; ++r)
    for (uint32_t lane = 0; lane < c.lanes; ++lane) {
      if (!takes_part(c, r, lane)) continue;
      const uint32_t at = c.mode == 0 ? lane : r * c.lanes + lane;
      const bool first = static_cast<uint8_t>(c.bits[at / 8]) >> at % 8 & 1;
      const char* from = first ? c.a + offset_of(c, 1, r, lane)
                         : c.b ? c.b + offset_of(c, 2, r, lane) : reinterpret_cast<const char*>(&c.scalar);
      std::memmove(c.dst + offset_of(c, 0, r, lane), from, size_of(c.type));
    }
}

Choose choice(Type type, const Slice& dst, const Slice& src0, const Slice* src1, uint64_t scalar, int mode,
              const Shape& shape) {
  Choose c{};
  c.dst = local(dst), c.a = local(src0), c.b = src1 ? local(*src1) : nullptr;
  c.scalar = scalar, c.type = type, c.mode = mode;
  c.lanes = kRepeatBytes / size_of(type);
  c.mask[0] = shape.mask[0], c.mask[1] = shape.mask[1];
  c.count = shape.counted ? shape.count : 0;
  c.repeats = shape.counted ? (shape.count + c.lanes - 1) / c.lanes : shape.repeat;
  c.block[0] = static_cast<uint16_t>(shape.dst_block), c.repeat_step[0] = static_cast<uint16_t>(shape.dst_repeat);
  c.block[1] = static_cast<uint16_t>(shape.src0_block), c.repeat_step[1] = static_cast<uint16_t>(shape.src0_repeat);
  c.block[2] = static_cast<uint16_t>(shape.src1_block), c.repeat_step[2] = static_cast<uint16_t>(shape.src1_repeat);
  return c;
}
bool nothing(const Shape& s) { return s.counted ? !s.count : !s.repeat; }

}  // namespace

void compare(const char* api, Type type, const Slice& dst, const Slice& src0, const Slice* src1, uint64_t scalar,
             int mode, const Shape& given) {
  need_vector_unit(api);
  core->begin_op(kV, api, __builtin_return_address(0));
  if (nothing(given)) return;
  const uint32_t size = size_of(type), lanes = kRepeatBytes / size;
  Shape shape = given;
  shape.mask[0] = ~0ull, shape.mask[1] = lanes > 64 ? ~0ull : 0;  // dav-2201 ignores the mask here
  if (shape.counted && shape.count * size % kRepeatBytes)
    violate(6, api, "expected count * %u to be a multiple of 256 bytes, got %u * %u", size, shape.count, size);
  if (type == Type::i32 && mode != 2) violate(7, api, "int32_t: expected CMPMODE::EQ");
  const Operand a{"src0", &src0, size, shape.src0_block, shape.src0_repeat, false};
  const Operand b{"src1", src1, size, shape.src1_block, shape.src1_repeat, false};
  check_vector_operand(api, a, shape, lanes);
  if (src1) check_vector_operand(api, b, shape, lanes);
  const Choose c = choice(type, dst, src0, src1, scalar, mode, shape);
  const uint32_t bytes = c.repeats * lanes / 8;
  check_aligned(api, "dst", dst, kBlockBytes);
  check_inside(api, "dst", dst, 0, bytes);
  check_results_apart(api, dst, lanes / 8, lanes / 8, a, shape, lanes, true);
  if (src1) check_results_apart(api, dst, lanes / 8, lanes / 8, b, shape, lanes, true);
  touch_vector(a, shape, lanes);
  if (src1) touch_vector(b, shape, lanes);
  core->touch(dst.space, dst.address, bytes, true);
  count_repeats(shape, lanes);
  core->submit(&run_compare, c);
}

void select(Type type, const Slice& dst, const Slice& mask, const Slice& src0, const Slice* src1, uint64_t scalar,
            int mode, const Shape& shape) {
  const char* const api = "Select";
  need_vector_unit(api);
  core->begin_op(kV, api, __builtin_return_address(0));
  if (nothing(shape)) return;
  if ((mode == 1) == (src1 != nullptr))
    violate(6, api, "SELMODE %d does not go with a %s", mode, src1 ? "tensor" : "scalar");
  const uint32_t size = size_of(type), lanes = kRepeatBytes / size;
  const Operand d{"dst", &dst, size, shape.dst_block, shape.dst_repeat, true};
  const Operand a{"src0", &src0, size, shape.src0_block, shape.src0_repeat, false};
  const Operand b{"src1", src1, size, shape.src1_block, shape.src1_repeat, false};
  check_vector_operand(api, d, shape, lanes);
  check_vector_operand(api, a, shape, lanes);
  check_overlap(api, d, a, shape, lanes, false);
  if (src1) {
    check_vector_operand(api, b, shape, lanes);
    check_overlap(api, d, b, shape, lanes, false);
  }
  Choose c = choice(type, dst, src0, src1, scalar, mode, shape);
  c.bits = local(mask);
  check_aligned(api, "selMask", mask, kBlockBytes);
  const uint32_t bytes = ((mode == 0 ? lanes : c.count ? c.count : c.repeats * lanes) + 7) / 8;
  check_inside(api, "selMask", mask, 0, bytes);
  touch_vector(a, shape, lanes);
  if (src1) touch_vector(b, shape, lanes);
  core->touch(mask.space, mask.address, bytes, false);
  touch_vector(d, shape, lanes);
  count_repeats(shape, lanes);
  core->submit(&run_select, c);
}

namespace {

struct GatherOp {
  char *dst, *src, *offsets;
  uint32_t count, element, base, room;   // count: of the form with a count
  uint64_t mask[2];
  uint32_t repeats, lanes, repeat_step;
};
void gather_one(const GatherOp& g, uint32_t i, char* to) {
  uint32_t offset;
  std::memcpy(&offset, g.offsets + i * size_t{4}, 4);
  const uint64_t at = uint64_t{g.base} + offset;
  if (at % g.element)
    violate(1, "Gather", "offset %u of element %u is no multiple of %u bytes", offset, i, g.element);
  if (at + g.element > g.room)
    violate(19, "Gather", "offset %u of element %u leaves the buffer (%u bytes)", offset, i, g.room);
  std::memcpy(to, g.src + at, g.element);
}
void run_gather(const void* payload) {
  const GatherOp& g = *static_cast<const GatherOp*>(payload);
  for (uint32_t i = 0; i < g.count; ++i) gather_one(g, i, g.dst + i * size_t{g.element});
  if (g.count) return;
  for (uint32_t r = 0; r < g.repeats; ++r)
    for (uint32_t lane = 0; lane < g.lanes; ++lane)
      if (g.mask[lane / 64] >> lane % 64 & 1)
        gather_one(g, r * g.lanes + lane, g.dst + size_t{r} * g.repeat_step * kBlockBytes + lane * g.element);
}

struct Spread {
  char *dst, *src;
  uint32_t repeats, element, block, repeat_step;
};
void run_spread(const void* payload) {
  const Spread& s = *static_cast<const Spread*>(payload);
  for (uint32_t r = 0; r < s.repeats; ++r)
    for (uint32_t b = 0; b < 8; ++b) {
      char* to = s.dst + (r * s.repeat_step + b * s.block) * size_t{kBlockBytes};
      for (uint32_t i = 0; i < kBlockBytes; i += s.element)
        std::memcpy(to + i, s.src + (r * 8 + b) * s.element, s.element);
    }
}

struct Count {
  char* dst;
  uint64_t first;
  uint32_t count, repeats, block, repeat_step;  // count: of the form with a count
  uint64_t mask[2];
  Type type;
};
void run_index(const void* payload) {
  const Count& c = *static_cast<const Count*>(payload);
  const double first = value_of(c.type, &c.first);
  const uint32_t size = size_of(c.type), lanes = kRepeatBytes / size, per_block = kBlockBytes / size;
  for (uint32_t i = 0; i < c.count; ++i) store_value(c.type, c.dst + i * size_t{size}, first + i);
  for (uint32_t r = 0; !c.count && r < c.repeats; ++r)
    for (uint32_t lane = 0; lane < lanes; ++lane)
      if (c.mask[lane / 64] >> lane % 64 & 1)
        store_value(c.type, c.dst + (r * c.repeat_step + lane / per_block * c.block) * size_t{kBlockBytes} +
                                lane % per_block * size, first + r * lanes + lane);
}

struct Square {
  char *dst, *src;
};
void run_transpose(const void* payload) {
  const Square& s = *static_cast<const Square*>(payload);
  uint16_t from[256], to[256];
  std::memcpy(from, s.src, sizeof from);
  for (int i = 0; i < 16; ++i)
    for (int j = 0; j < 16; ++j) to[j * 16 + i] = from[i * 16 + j];
  std::memcpy(s.dst, to, sizeof to);
}

}  // namespace

void gather(Type type, const Slice& dst, const Slice& src, const Slice& offsets, uint32_t base, const Shape& shape) {
  const char* const api = "Gather";
  need_vector_unit(api);
  core->begin_op(kV, api, __builtin_return_address(0));
  if (shape.counted ? !shape.count : !shape.repeat || !(shape.mask[0] | shape.mask[1])) return;
  const uint32_t size = size_of(type), lanes = kRepeatBytes / size;
  Shape of_offsets = shape;  // one a lane, one after the other
  of_offsets.counted = true;
  of_offsets.count = shape.counted ? shape.count : shape.repeat * lanes;
  const Operand d{"dst", &dst, size, 1, shape.dst_repeat, true}, o{"srcOffset", &offsets, 4, 1, 8, false};
  check_vector_operand(api, d, shape, lanes);
  check_vector_operand(api, o, of_offsets, lanes);
  check_aligned(api, "src", src, kBlockBytes);
  check_slice(api, src);
  if (base % size) violate(1, api, "srcBaseAddr: expected a multiple of %u bytes, got %u", size, base);
  if (src.slot == dst.slot && src.address == dst.address) violate(6, api, "src and dst are the same memory");
  touch_vector(o, of_offsets, lanes);
  core->touch(src.space, src.address, src.bytes, false, false);  // which of them, the offsets will say
  touch_vector(d, shape, lanes);
  count_repeats(shape, lanes, tenths_of(lanes, 5));
  core->submit(&run_gather, GatherOp{local(dst),
                                     local(src),
                                     local(offsets),
                                     shape.counted ? shape.count : 0,
                                     size,
                                     base,
                                     src.end - src.address,
                                     {shape.mask[0], shape.mask[1]},
                                     shape.repeat,
                                     lanes,
                                     shape.dst_repeat});
}

void broadcast_blocks(Type type, const Slice& dst, const Slice& src, uint32_t repeat, uint32_t dst_block,
                      uint32_t dst_repeat) {
  need_vector_unit("Brcb");
  core->begin_op(kV, "Brcb", __builtin_return_address(0));
  if (!repeat) return;
  if (!dst_block) violate(6, "Brcb", "dstBlkStride: a block stride of 0 is undefined for results");
  const uint32_t size = size_of(type);
  check_aligned("Brcb", "dst", dst, kBlockBytes);
  check_aligned("Brcb", "src", src, kBlockBytes);
  check_inside("Brcb", "src", src, 0, repeat * 8 * size);
  check_inside("Brcb", "dst", dst, 0, ((repeat - 1) * dst_repeat + 7 * dst_block + 1) * kBlockBytes);
  for (uint32_t r = 0; r < repeat; ++r)
    for (uint32_t b = 0; b < 8; ++b) {
      const uint32_t to = dst.address + (r * dst_repeat + b * dst_block) * kBlockBytes;
      if (dst.space == src.space && to < src.address + repeat * 8 * size && src.address < to + kBlockBytes)
        violate(6, "Brcb", "dst lies in src (UB+%u and UB+%u)", to, src.address);
    }
  core->touch(src.space, src.address, repeat * 8 * size, false);
  for (uint32_t r = 0; r < repeat; ++r)
    for (uint32_t b = 0; b < 8; ++b)
      core->touch(dst.space, dst.address + (r * dst_repeat + b * dst_block) * kBlockBytes, kBlockBytes, true);
  count_repeats(repeat, kOneCycle);
  core->submit(&run_spread, Spread{local(dst), local(src), repeat, size, dst_block, dst_repeat});
}

void create_index(Type type, const Slice& dst, uint64_t first, const Shape& shape) {
  need_vector_unit("CreateVecIndex");
  core->begin_op(kV, "CreateVecIndex", __builtin_return_address(0));
  if (nothing(shape)) return;
  const uint32_t lanes = kRepeatBytes / size_of(type);
  const Operand d{"dst", &dst, size_of(type), shape.dst_block, shape.dst_repeat, true};
  check_vector_operand("CreateVecIndex", d, shape, lanes);
  touch_vector(d, shape, lanes);
  count_repeats(shape, lanes);
  core->submit(&run_index, Count{local(dst), first, shape.counted ? shape.count : 0, shape.repeat, shape.dst_block,
                                 shape.dst_repeat, {shape.mask[0], shape.mask[1]}, type});
}

void transpose16(const Slice& dst, const Slice& src) {
  need_vector_unit("Transpose");
  core->begin_op(kV, "Transpose", __builtin_return_address(0));
  for (const Slice* s : {&dst, &src}) {
    check_aligned("Transpose", s == &dst ? "dst" : "src", *s, kBlockBytes);
    check_inside("Transpose", s == &dst ? "dst" : "src", *s, 0, 512);
  }
  core->touch(src.space, src.address, 512, false);
  core->touch(dst.space, dst.address, 512, true);
  count_repeats(2, kOneCycle);
  core->submit(&run_transpose, Square{local(dst), local(src)});
}

}  // namespace ascend_emu
