// SPDX-License-Identifier: Apache-2.0
#pragma once
#include <cstddef>
#include <vector>

namespace cuda_emu {

// The asynchronous copies of one thread, oldest first.
struct Copies {
  struct Copy {
    char* to;
    const char* from;
    int bytes, source_bytes;
    const void* pc;  // of the instruction
  };
  std::vector<Copy> all;
  std::vector<size_t> group_ends;   // committed groups end before all[group_ends[i]]
  size_t done = 0, groups_done = 0; // of these

  bool empty() const { return all.empty() && group_ends.empty(); }
  void clear() {
    all.clear();
    group_ends.clear();
    done = groups_done = 0;
  }
};

}  // namespace cuda_emu
