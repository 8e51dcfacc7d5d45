// SPDX-License-Identifier: Apache-2.0
#pragma once
#include <atomic>
#include <string>
#include <vector>

#include "cpu_level.h"
#include "op.h"

namespace dsv4 {

struct BackendState {
  const char* name;
  const BackendTable* table;  // nullptr: not loadable, see why
  std::string why;
};

// Loads every backend that is there (cheap after the first call).
std::vector<BackendState> backend_states();
void use_backend(const char* name);
void check_backend(const char* name, const char* op);
// Calls of this thread check their contract and launch nothing while this is on; returns what was in force.
bool check_only(bool on);
// From now on, time the kernels that this thread launches, or do not. Returns the nanoseconds that they took since the last
// call of this function (0 if they were not timed): of kernels of the CPU all their work, elsewhere what launching took.
int64_t time_kernels(bool on);

// What the Python binding reads besides the public ABI: the ops as data. Not part of the ABI; the source hash says
// whether binding and library belong together.
struct Reflection {
  const char* source_hash;
  const OpDesc* (*op_desc)(OpId id);
  std::vector<BackendState> (*backend_states)();
  const std::vector<CpuLevel>& (*cpu_levels)();
  bool (*check_only)(bool on);
  int64_t (*time_kernels)(bool on);
};

}  // namespace dsv4

extern "C" DSV4_API const dsv4::Reflection* dsv4_reflection(void);
