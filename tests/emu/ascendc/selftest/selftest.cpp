// SPDX-License-Identifier: Apache-2.0
#include "selftest.h"

#include <map>
#include <string>

#include "launch.h"

namespace selftest {
namespace {
std::map<std::string, void (*)(Args)>& cases() {
  static std::map<std::string, void (*)(Args)> all;
  return all;
}
}  // namespace

bool add(const char* name, void (*kernel)(Args)) { return cases().emplace(name, kernel).second; }

}  // namespace selftest

// 0: clean; 1: see ascend_emu_report(); -1: there is no such case.
extern "C" __attribute__((visibility("default"))) int selftest_run(const char* name, int plant, void* a, void* b,
                                                                   void* out, void* work, long n, int blocks) {
  const auto it = selftest::cases().find(name);
  if (it == selftest::cases().end()) return -1;
  const auto byte = [](void* p) { return static_cast<uint8_t*>(p); };
  const selftest::Args args{byte(a), byte(b), byte(out), byte(work), n, plant};
  return ascend_emu::launch(name, it->second, static_cast<uint32_t>(blocks), work != nullptr, args) ? 0 : 1;
}

// "name name ...": all cases.
extern "C" __attribute__((visibility("default"))) const char* selftest_names(void) {
  static std::string names;
  names.clear();
  for (const auto& entry : selftest::cases()) names += (names.empty() ? "" : " ") + entry.first;
  return names.c_str();
}
