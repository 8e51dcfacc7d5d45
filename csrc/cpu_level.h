// SPDX-License-Identifier: Apache-2.0
#pragma once
#include <string>
#include <vector>

namespace dsv4 {

struct CpuLevel {
  const char* name;  // as in libdsv4spec_cpu_<name>.so
  bool runs_here;
};

// Instruction-set levels of this architecture, best first.
const std::vector<CpuLevel>& cpu_levels();
std::string cpu_level_names();

}  // namespace dsv4
