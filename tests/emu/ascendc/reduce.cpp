// SPDX-License-Identifier: Apache-2.0
// Reductions: of everything, of repeats, of blocks.
#include <cstring>
#include <vector>

#include "numbers.h"
#include "operand.h"

namespace ascend_emu {
namespace {

constexpr uint32_t kTreeTenths = 7 * kOneCycle;  // a repeat down to one value

struct Reduce {
  char *dst, *src, *work;
  uint64_t mask[2];
  uint32_t repeats, lanes, count, element, block, repeat_step, group, dst_step, work_bytes;
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
  const float f = static_cast<float>(x);
  return t == Type::f32 ? f : half_float(half_bits(f, kRint));
}
bool better(Reduction op, double a, double b) { return std::isnan(a) || (op == Reduction::Max ? a > b : a < b); }

struct Best {
  double value;
  uint32_t at;
  bool any;
};
// Neighbours first: a binary tree over a power of two of values.
double tree_sum(Type t, double* values, uint32_t n) {
  for (; n > 1; n /= 2)
    for (uint32_t i = 0; i < n / 2; ++i) values[i] = rounded(t, values[2 * i] + values[2 * i + 1]);
  return values[0];
}
// Lanes [first, first + n) of a repeat; an idle lane adds zero.
Best reduce_lanes(const Reduce& r, uint32_t repeat, uint32_t first, uint32_t n) {
  if (r.op == Reduction::Sum) {
    double values[128];
    bool any = false;
    for (uint32_t i = 0; i < n; ++i) {
      const bool on = active(r, repeat, first + i);
      values[i] = on ? value_of(r.type, lane_of(r, repeat, first + i)) : 0.0;
      any = any || on;
    }
    return {tree_sum(r.type, values, n), 0, any};
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

// The sums of the repeats, again by repeats of a binary tree, until one is left.
double sum_of_sums(const Reduce& r, std::vector<double> sums) {
  while (sums.size() > 1) {
    std::vector<double> next;
    for (size_t i = 0; i < sums.size(); i += r.lanes) {
      double values[128] = {};
      for (uint32_t k = 0; k < r.lanes && i + k < sums.size(); ++k) values[k] = sums[i + k];
      next.push_back(tree_sum(r.type, values, r.lanes));
    }
    sums = std::move(next);
  }
  return sums[0];
}

void run_reduce(const void* payload) {
  const Reduce& r = *static_cast<const Reduce*>(payload);
  Best all{0, 0, false};
  std::vector<double> sums;
  for (uint32_t i = 0; i < r.repeats; ++i) {
    const Best b = reduce_lanes(r, i, 0, r.lanes);
    if (r.op == Reduction::Sum && !r.counted) sums.push_back(b.value);
    if (!b.any) continue;
    if (!all.any) all = {b.value, i * r.lanes + b.at, true};
    else if (r.op == Reduction::Sum) all.value = rounded(r.type, all.value + b.value);  // one repeat after the other
    else if (better(r.op, b.value, all.value) && !std::isnan(all.value)) all = {b.value, i * r.lanes + b.at, true};
  }
  if (!sums.empty()) all.value = sum_of_sums(r, std::move(sums));
  if (r.work) std::memset(r.work, 0xff, r.work_bytes);  // nothing to rely on
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
        case 3: {
          const uint32_t index = b.at - g * n;
          std::memcpy(to, &index, 4);
          break;
        }
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

void check_result(const char* api, const Slice& s, uint32_t alignment) {
  if (s.space != kUB) violate(1, api, "dst: expected a tensor in UB, got %s", kSpaceNames[s.space]);
  check_aligned(api, "dst", s, alignment);
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
  check_result(api, dst, op == Reduction::Sum ? r.element : 2 * r.element);
  check_inside(api, "dst", dst, 0, r.element * (with_index ? 2u : 1u));
  // ReduceSum with a count leaves it alone; the others keep what each repeat gives (with its index), and reduce that.
  const bool uses_work = !(op == Reduction::Sum && shape.counted);
  uint32_t needed = 0;
  if (uses_work) {
    check_aligned(api, "sharedTmpBuffer", work, kBlockBytes);
    const uint32_t per_block = kBlockBytes / r.element;
    const auto round = [&](uint32_t results) { needed += (results + per_block - 1) / per_block * per_block; };
    uint32_t results = r.repeats * (op == Reduction::Sum ? 1 : 2);
    round(results);
    if (with_index) {  // each round keeps its own, down to one value and index
      do round(results = (results + r.lanes - 1) / r.lanes * 2);
      while (results > 2);
    }
    check_inside(api, "sharedTmpBuffer", work, 0, uint64_t{needed} * r.element);
    check_results_apart(api, work, needed * r.element, 0, from, shape, r.lanes, true);
  } else {
    check_slice(api, work);
  }
  check_results_apart(api, dst, r.element * (with_index ? 2u : 1u), 0, from, shape, r.lanes, true);
  touch_vector(from, shape, r.lanes);
  if (uses_work) {
    r.work = local(work), r.work_bytes = needed * r.element;
    core->touch(work.space, work.address, r.work_bytes, true);
  }
  core->touch(dst.space, dst.address, r.element * (with_index ? 2u : 1u), true);
  count_repeats(shape, r.lanes, kTreeTenths);  // each repeat is reduced, and then what they give
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
  if (shape.repeat > 255) violate(6, api, "repeatTime: expected 0 to 255, got %u", shape.repeat);
  check_vector_operand(api, from, shape, r.lanes);
  // Results of a repeat, in bytes: also the unit of dstRepStride, and what dst is aligned to.
  const uint32_t whole = order < 2 ? 2 * r.element : order == 3 ? 4 : r.element;
  const uint32_t unit = group == kRepeatBytes ? whole : kRepeatBytes / group * r.element;
  const uint32_t results = unit / r.element;
  check_result(api, dst, unit < kBlockBytes ? unit : kBlockBytes);
  r.dst_step = (shape.counted ? 1 : shape.dst_repeat) * unit;
  check_inside(api, "dst", dst, 0, uint64_t{r.repeats - 1} * r.dst_step + results * r.element);
  check_results_apart(api, dst, results * r.element, r.dst_step, from, shape, r.lanes, false);
  touch_vector(from, shape, r.lanes);
  const uint32_t lanes_of_group = group / r.element;
  for (uint32_t i = 0; i < r.repeats; ++i)
    for (uint32_t g = 0; g < r.lanes / lanes_of_group; ++g) {
      bool any = false;
      for (uint32_t lane = 0; lane < lanes_of_group; ++lane) any = any || active(r, i, g * lanes_of_group + lane);
      if (any) core->touch(dst.space, dst.address + i * r.dst_step + g * r.element,
                           group == kRepeatBytes ? results * r.element : r.element, true);
    }
  count_repeats(shape, r.lanes, group == kRepeatBytes || (group == kBlockBytes && r.element == 2) ? kTreeTenths : kOneCycle);
  core->submit(&run_groups, r);
}

}  // namespace ascend_emu
