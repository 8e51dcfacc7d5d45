// SPDX-License-Identifier: Apache-2.0
#pragma once
#include "ints_tiling.h"

struct MoveAcceptedKvTiling {
  LineSplit pairs;
  int64_t slots;                              // of the pool
  int64_t page_bytes, slot_bytes, row_bytes;  // from page to page, from slot to slot, of a slot's KV
  Division page;
  int64_t pitch;    // from row to row in local memory and in the scratch
  int64_t rows;     // that local memory holds at a time
  int32_t scratch;  // 1: a core has more rows than it holds
};

constexpr int64_t kMoveLists = 512;        // slots of either list at a time
constexpr int64_t kMoveHeld = 160 * 1024;  // bytes of KV
