// SPDX-License-Identifier: Apache-2.0
#include "cpu_level.h"

namespace dsv4 {

const std::vector<CpuLevel>& cpu_levels() {
#if defined(__x86_64__)
  // The compiler's feature test also asks the operating system for the wide registers (XGETBV).
  static const std::vector<CpuLevel> levels = [] {
    __builtin_cpu_init();
    const bool v2 = __builtin_cpu_supports("sse4.2") && __builtin_cpu_supports("ssse3") &&
                    __builtin_cpu_supports("popcnt");
    const bool v3 = v2 && __builtin_cpu_supports("avx2") && __builtin_cpu_supports("fma") &&
                    __builtin_cpu_supports("bmi") && __builtin_cpu_supports("bmi2");
    const bool v4 = v3 && __builtin_cpu_supports("avx512f") && __builtin_cpu_supports("avx512bw") &&
                    __builtin_cpu_supports("avx512cd") && __builtin_cpu_supports("avx512dq") &&
                    __builtin_cpu_supports("avx512vl");
    // Byte permutes come with all processors that have bfloat16 products but the first.
    const bool bf16 = v4 && __builtin_cpu_supports("avx512bf16") && __builtin_cpu_supports("avx512vbmi");
    return std::vector<CpuLevel>{{"v4_bf16", bf16},
                                 {"v4", v4},
                                 {"v3", v3},
                                 {"v2", v2}};
  }();
#else
  static const std::vector<CpuLevel> levels{{"generic", true}};
#endif
  return levels;
}

std::string cpu_level_names() {
  std::string s;
  for (const CpuLevel& l : cpu_levels()) s += (s.empty() ? "" : ", ") + std::string(l.name);
  return s;
}

}  // namespace dsv4
