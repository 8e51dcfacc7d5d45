// SPDX-License-Identifier: Apache-2.0
#pragma once
#include "ints_tiling.h"

struct AssignDraftSlotsTiling {
  LineSplit requests;
  IntRows table, live;
  int64_t slots_stride;  // bytes
  int64_t topk, steps, width;
  Division page;
  int64_t tile;  // slots of a request at a time
  int64_t rows;  // requests at a time
};

constexpr int64_t kAssignSlots = 2048;  // that local memory holds at a time
constexpr int64_t kAssignRequests = 256;
