// SPDX-License-Identifier: Apache-2.0
// Vector instructions of elements: masks, repeats and strides, their rules, and their issue.
#include <algorithm>
#include <cstring>

#include "operand.h"

namespace ascend_emu {
namespace {

struct Vector {
  Flat run;
  char* base[3];
  uint16_t element[3];
  uint16_t block[3], repeat_step[3];  // strides in 32-byte blocks
  uint64_t scalar, mask[2];
  uint32_t repeats, lanes, count;     // count: of a contiguous instruction; 0: by repeats
};

inline char* lane_at(const Vector& v, int k, uint32_t repeat, uint32_t lane) {
  if (!v.base[k]) return nullptr;
  const uint32_t per_block = kBlockBytes / v.element[k];
  return v.base[k] + repeat * v.repeat_step[k] * size_t{kBlockBytes} +
         lane / per_block * v.block[k] * size_t{kBlockBytes} + lane % per_block * v.element[k];
}

void run_vector(const void* payload) {
  const Vector& v = *static_cast<const Vector*>(payload);
  if (v.count) return v.run(v.base[0], v.base[1], v.base[2], v.scalar, v.count);
  Runs runs(v.mask, v.lanes, v.block, v.element, v.base);
  for (uint32_t r = 0; r < v.repeats; ++r)
    for (uint32_t i = 0; i < runs.count; ++i) {
      const Run& run = runs.at[i];
      v.run(lane_at(v, 0, r, run.lane), lane_at(v, 1, r, run.lane), lane_at(v, 2, r, run.lane), v.scalar, run.lanes);
    }
}

}  // namespace

Runs::Runs(const uint64_t* mask, uint32_t lanes, const uint16_t* block, const uint16_t* element, char* const* base) {
  uint32_t most = lanes;  // of a run: a block where any operand's blocks are not neighbours
  for (int k = 0; k < 3; ++k)
    if (base[k] && block[k] != 1) most = std::min<uint32_t>(most, kBlockBytes / element[k]);
  count = 0;
  for (uint32_t lane = 0; lane < lanes;) {
    if (!(mask[lane / 64] >> lane % 64 & 1)) {
      ++lane;
      continue;
    }
    const uint32_t end = std::min(lanes, (lane / most + 1) * most);
    uint32_t stop = lane + 1;
    while (stop < end && (mask[stop / 64] >> stop % 64 & 1)) ++stop;
    at[count++] = {static_cast<uint16_t>(lane), static_cast<uint16_t>(stop - lane)};
    lane = stop;
  }
}

void need_vector_unit(const char* api) {
  if (!core->vector) violate(13, api, "vector instructions run on vector cores; this is a cube core");
}

Shape shape_of_mask(uint64_t mask, uint32_t element, uint32_t repeat) {
  Shape s;
  s.repeat = repeat;
  const uint32_t lanes = kRepeatBytes / element;
  if (core->counter_mode) {  // the mask is then the number of elements, and the repeats are ignored
    s.counted = true;
    s.count = static_cast<uint32_t>(mask);
    return s;
  }
  if (mask > lanes) violate(6, "mask", "expected 1 to %u for elements of %u bytes, got %llu", lanes, element,
                            static_cast<unsigned long long>(mask));
  s.mask[0] = mask >= 64 ? ~0ull : (1ull << mask) - 1;
  s.mask[1] = mask > 64 ? (mask >= 128 ? ~0ull : (1ull << (mask - 64)) - 1) : 0;
  return s;
}
Shape shape_of_register(uint32_t element, uint32_t repeat) {
  Shape s;
  s.repeat = repeat;
  const uint32_t lanes = kRepeatBytes / element;
  s.counted = core->counter_mode;
  s.count = static_cast<uint32_t>(core->mask[0]);
  s.mask[0] = core->mask[0], s.mask[1] = lanes > 64 ? core->mask[1] : 0;
  if (lanes < 64) s.mask[0] &= (1ull << lanes) - 1;
  return s;
}
void set_mask(uint64_t high, uint64_t low) { core->mask[0] = low, core->mask[1] = high; }
void set_mask_mode(bool counter) { core->counter_mode = counter; }

void check_vector_operand(const char* api, const Operand& o, const Shape& shape, uint32_t lanes) {
  if (o.slice->space != kUB)
    violate(1, api, "%s: expected a tensor in UB, got %s", o.name, kSpaceNames[o.slice->space]);
  check_aligned(api, o.name, *o.slice, kBlockBytes);
  if (shape.counted) return check_inside(api, o.name, *o.slice, 0, uint64_t{shape.count} * o.element);
  if (o.writes && o.block == 0) violate(6, api, "%s: a block stride of 0 is undefined for results", o.name);
  uint32_t last = 0;
  for (uint32_t lane = 0; lane < lanes; ++lane)
    if (shape.mask[lane / 64] >> lane % 64 & 1) last = lane;
  const uint32_t per_block = kBlockBytes / o.element;
  const uint64_t end = uint64_t{shape.repeat - 1} * o.repeat_step * kBlockBytes +
                       uint64_t{last / per_block} * o.block * kBlockBytes + (last % per_block + 1) * o.element;
  check_inside(api, o.name, *o.slice, 0, end);
}

void touch_vector(const Operand& o, const Shape& shape, uint32_t lanes) {
  const Slice& s = *o.slice;
  if (shape.counted) return core->touch(s.space, s.address, shape.count * o.element, o.writes);
  const uint16_t block[3] = {static_cast<uint16_t>(o.block), 1, 1},
                 element[3] = {static_cast<uint16_t>(o.element), 1, 1};
  char* const base[3] = {core->memory[s.space], nullptr, nullptr};
  const Runs runs(shape.mask, lanes, block, element, base);
  const uint32_t per_block = kBlockBytes / o.element;
  for (uint32_t r = 0; r < shape.repeat; ++r)
    for (uint32_t i = 0; i < runs.count; ++i)
      core->touch(s.space,
                  s.address + r * o.repeat_step * kBlockBytes + runs.at[i].lane / per_block * o.block * kBlockBytes +
                      runs.at[i].lane % per_block * o.element,
                  runs.at[i].lanes * o.element, o.writes);
}

namespace {
struct Blocks {  // of one repeat, that lanes take part in
  uint32_t first, count = 0, step;
  uint32_t at[8];
  uint32_t repeats, of_last;  // a count may end within its last repeat
  uint32_t of(uint32_t repeat) const { return repeat + 1 == repeats ? of_last : count; }
  uint32_t last() const { return first + (repeats - 1) * step + at[of_last - 1]; }
};
uint32_t repeats_of(const Shape& shape, uint32_t lanes) {
  return shape.counted ? (shape.count + lanes - 1) / lanes : shape.repeat;
}
Blocks blocks_of(const Operand& o, const Shape& shape, uint32_t lanes) {
  Blocks b;
  b.first = o.slice->address / kBlockBytes;
  const uint32_t per_block = kBlockBytes / o.element, n = lanes / per_block;
  b.step = shape.counted ? n : o.repeat_step;
  for (uint32_t i = 0; i < n; ++i) {
    bool used = shape.counted;
    for (uint32_t lane = i * per_block; !used && lane < (i + 1) * per_block; ++lane)
      used = shape.mask[lane / 64] >> lane % 64 & 1;
    if (used) b.at[b.count++] = shape.counted ? i : i * o.block;
  }
  b.repeats = repeats_of(shape, lanes);
  b.of_last = b.count;
  if (shape.counted) b.of_last = ((shape.count - 1) % lanes) / per_block + 1;
  return b;
}
}  // namespace

void check_overlap(const char* api, const Operand& dst, const Operand& src, const Shape& shape, uint32_t lanes,
                   bool may_accumulate) {
  const Slice &d = *dst.slice, &s = *src.slice;
  if (d.space != s.space || d.begin != s.begin) return;
  if (d.address == s.address && dst.element == src.element && shape.counted) return;
  const Blocks to = blocks_of(dst, shape, lanes), from = blocks_of(src, shape, lanes);
  const uint32_t repeats = to.repeats;
  if (!to.count || to.last() < from.first || from.last() < to.first) return;
  const bool narrows = dst.element < src.element;  // every result lies at or before its source
  for (uint32_t r = 0; r < repeats; ++r) {
    uint32_t same = 0, next = 0;
    for (uint32_t i = 0; i < to.of(r); ++i)
      for (uint32_t j = 0; j < from.count; ++j) {
        const uint32_t written = to.first + r * to.step + to.at[i], read = from.first + r * from.step + from.at[j];
        same += written == read && j < from.of(r);
        next += r + 1 < repeats && written == read + from.step && j < from.of(r + 1);
      }
    if (same && same < to.of(r) && !(narrows && d.address <= s.address))
      violate(6, api, "dst and %s overlap in part within a repeat (UB+%u and UB+%u)", src.name, d.address, s.address);
    if (next && !may_accumulate)
      violate(6, api, "dst of repeat %u is %s of repeat %u (UB+%u and UB+%u)", r, src.name, r + 1, d.address,
              s.address);
  }
}

void check_results_apart(const char* api, const Slice& dst, uint32_t bytes, uint32_t step, const Operand& src,
                         const Shape& shape, uint32_t lanes, bool earlier) {
  if (dst.space != src.slice->space || dst.begin != src.slice->begin) return;
  const Blocks from = blocks_of(src, shape, lanes);
  const uint32_t repeats = from.repeats;
  const auto block_at = [](uint32_t address) { return address / kBlockBytes; };
  if (!from.count || block_at(dst.address + (repeats - 1) * step + bytes - 1) < from.first ||
      block_at(dst.address) > from.last())
    return;
  for (uint32_t r = 0; r < repeats; ++r) {
    const uint32_t first = block_at(dst.address + r * step), last = block_at(dst.address + r * step + bytes - 1);
    for (uint32_t later = earlier ? 0 : r; later < repeats; ++later)
      for (uint32_t i = 0; i < from.of(later); ++i) {
        const uint32_t read = from.first + later * from.step + from.at[i];
        if (read >= first && read <= last)
          violate(6, api, "dst of repeat %u lies in %s of repeat %u (UB+%u and UB+%u)", r, src.name, later, dst.address,
                  src.slice->address);
      }
  }
}

void count_repeats(uint64_t repeats, uint32_t tenths) {
  core->counters.vector_repeats += repeats;
  core->counters.vector_tenths += repeats * tenths;
}
void count_repeats(const Shape& shape, uint32_t lanes, uint32_t tenths) {
  count_repeats(repeats_of(shape, lanes), tenths);
}

namespace {

void issue(const char* api, const void* pc, Flat run, uint64_t scalar, Operand* operands, int n, const Shape& shape,
           bool may_accumulate, bool reads_dst, uint32_t slower = 1) {
  need_vector_unit(api);
  core->begin_op(kV, api, pc);
  if (shape.counted ? !shape.count : !shape.repeat || !(shape.mask[0] | shape.mask[1])) return;
  if (!shape.counted && shape.repeat > 255) violate(6, api, "repeatTime: expected 0 to 255, got %u", shape.repeat);
  uint32_t widest = 1;
  for (int k = 0; k < n; ++k)
    if (operands[k].slice) widest = std::max(widest, operands[k].element);
  const uint32_t lanes = kRepeatBytes / widest;
  Vector v{};
  v.run = run, v.scalar = scalar, v.lanes = lanes, v.repeats = shape.repeat;
  v.mask[0] = shape.mask[0], v.mask[1] = shape.mask[1];
  bool contiguous = shape.counted;
  const bool full = lanes == 128 ? (v.mask[0] & v.mask[1]) == ~0ull
                                 : lanes == 64 ? v.mask[0] == ~0ull : v.mask[0] == (1ull << lanes) - 1;
  bool neighbours = full;
  for (int k = 0; k < n; ++k) {
    Operand& o = operands[k];
    if (!o.slice) continue;
    check_vector_operand(api, o, shape, lanes);
    neighbours = neighbours && o.block == 1 && o.repeat_step * kBlockBytes == lanes * o.element;
    v.base[k] = local(*o.slice);
    v.element[k] = static_cast<uint16_t>(o.element);
    v.block[k] = static_cast<uint16_t>(o.block);
    v.repeat_step[k] = static_cast<uint16_t>(o.repeat_step);
  }
  for (int k = 1; k < n; ++k)
    if (operands[k].slice)  // sums over repeats: dst and the second source, one of which stays where it is
      check_overlap(api, operands[0], operands[k], shape, lanes,
                    may_accumulate && k == 2 && (!operands[0].repeat_step || !operands[2].repeat_step));
  if (contiguous) v.count = shape.count;
  else if (neighbours) v.count = shape.repeat * lanes;
  for (int k = 1; k < n; ++k)
    if (operands[k].slice) touch_vector(operands[k], shape, lanes);
  if (reads_dst) {
    Operand d = operands[0];
    d.writes = false;
    touch_vector(d, shape, lanes);
  }
  touch_vector(operands[0], shape, lanes);
  count_repeats(shape, lanes, slower * kOneCycle);
  core->submit(&run_vector, v);
}

}  // namespace

void elementwise(const char* api, Math op, Type dst_type, Type src_type, const Slice& dst, const Slice* src0,
                 const Slice* src1, uint64_t scalar, const Shape& shape) {
  const Flat run = math_of(op, dst_type, src_type);
  if (!run) violate(7, api, "not for these types");
  Operand operands[3] = {{"dst", &dst, size_of(dst_type), shape.dst_block, shape.dst_repeat, true},
                         {src1 ? "src0" : "src", src0, size_of(src_type), shape.src0_block, shape.src0_repeat, false},
                         {"src1", src1, size_of(src_type), shape.src1_block, shape.src1_repeat, false}};
  const bool accumulates = op <= Math::Min && op != Math::Div && dst_type != Type::i16;
  // 32 elements a cycle, whatever their size, or half of what others do.
  const bool by_32 = op == Math::Exp || op == Math::Ln || op == Math::Sqrt || op == Math::Div;
  issue(api, __builtin_return_address(0), run, scalar, operands, 3, shape, accumulates,
        op == Math::Axpy || op == Math::MulAddDst, by_32 ? 8 / size_of(dst_type) : op == Math::MulAddDst ? 2 : 1);
}

void cast(const Slice& dst, Type dst_type, const Slice& src, Type src_type, int mode, const Shape& shape) {
  if (!cast_allows(dst_type, src_type, mode))
    violate(9, "Cast", "round mode %d is not one that these types take", mode);
  Operand operands[3] = {{"dst", &dst, size_of(dst_type), shape.dst_block, shape.dst_repeat, true},
                         {"src", &src, size_of(src_type), shape.src0_block, shape.src0_repeat, false},
                         {"", nullptr, 1, 1, 8, false}};
  issue("Cast", __builtin_return_address(0), cast_of(dst_type, src_type), static_cast<uint64_t>(mode), operands, 3,
        shape, false, false);
}

}  // namespace ascend_emu
