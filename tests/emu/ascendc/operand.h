// SPDX-License-Identifier: Apache-2.0
// Operands of vector instructions: which lanes, where, and the rules that hold for them. Internal.
#pragma once
#include "core.h"
#include "vector_math.h"

namespace ascend_emu {

struct Operand {
  const char* name;
  const Slice* slice;  // nullptr: there is none
  uint32_t element, block, repeat_step;
  bool writes;
};

// The lanes of one repeat, as stretches of neighbours.
struct Run {
  uint16_t lane, lanes;
};
struct Runs {
  Run at[128];
  uint32_t count;
  Runs(const uint64_t* mask, uint32_t lanes, const uint16_t* block, const uint16_t* element, char* const* base);
};

void need_vector_unit(const char* api);
void check_vector_operand(const char* api, const Operand& o, const Shape& shape, uint32_t lanes);
void check_overlap(const char* api, const Operand& dst, const Operand& src, const Shape& shape, uint32_t lanes,
                   bool may_accumulate);
// For results of another shape than what is read: `bytes` a repeat, `step` apart. No page lets such an instruction
// write into the blocks that the same repeat or a later one reads; with `earlier`, nor into those read before.
void check_results_apart(const char* api, const Slice& dst, uint32_t bytes, uint32_t step, const Operand& src,
                         const Shape& shape, uint32_t lanes, bool earlier);
void touch_vector(const Operand& o, const Shape& shape, uint32_t lanes);
// Tenths of a cycle that a repeat takes by the documentation's table of vector instructions, from the elements a cycle.
constexpr uint32_t tenths_of(uint32_t lanes, uint32_t elements_a_cycle) { return lanes * 10 / elements_a_cycle; }
constexpr uint32_t kOneCycle = 10;
void count_repeats(uint64_t repeats, uint32_t tenths);
void count_repeats(const Shape& shape, uint32_t lanes, uint32_t tenths = kOneCycle);

}  // namespace ascend_emu
