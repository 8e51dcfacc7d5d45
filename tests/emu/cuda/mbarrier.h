// SPDX-License-Identifier: Apache-2.0
#pragma once
#include <cstdint>
#include <vector>

#include "core.h"

namespace cuda_emu {

struct Worker;

// An mbarrier. Its eight bytes of shared memory hold a mark, by which an overwritten one is known.
struct Mbarrier {
  char* at;
  uint32_t count, pending;       // arrivals of a phase; of them, those to come
  int64_t bytes = 0;             // expected less landed; below 0: some landed before they were expected
  uint32_t phases = 0;           // complete
  uint32_t thread, arrivals;     // that initialised it; how often it had arrived at the cluster's barrier then
  bool fenced = false;           // fence.mbarrier_init followed
  std::vector<uint16_t> waiting; // threads
};

// A bulk copy to one block that is under way.
struct BulkCopy {
  Worker *issuer, *target;
  uint32_t thread;               // of the issuer
  char* to;
  const char* from;
  uint32_t bytes, barrier;       // index of the target's mbarrier
  Site site;
  void land() const;
};

}  // namespace cuda_emu
