// SPDX-License-Identifier: Apache-2.0
// What the host tells the integer kernels. Plain structs, by value.
#pragma once
#include <cstdint>

// Items 0 .. total-1 in groups that no 64-byte line of an output crosses: the first one ends at item lead +
// unit, the others have `unit` items.
struct LineSplit {
  int64_t total, lead, unit, groups;
};

// Division of non-negative numbers by `value`; shift = -1 where that is no power of two.
struct Division {
  int64_t value;
  int32_t shift;
};

// Bytes from row to row in global memory; elements of 8 bytes or of 4.
struct IntRows {
  int64_t stride;
  int32_t wide;
};
