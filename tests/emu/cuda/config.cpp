// SPDX-License-Identifier: Apache-2.0
#include "config.h"

#include <climits>
#include <cstdlib>
#include <cstring>
#include <string>

namespace cuda_emu {
std::string config_problem;

namespace {

struct Key {
  const char* name;
  long Config::*member;
  long initial, least, most;
};
constexpr Key kKeys[] = {
    {"order", &Config::order, kFifo, kFifo, kWarpPriority}, {"seed", &Config::seed, 1, 0, INT_MAX},
    {"threads", &Config::threads, 1, 1, 64},                {"poison", &Config::poison, 1, 0, 1},
    {"defer", &Config::defer, 1, 0, 1},                     {"strict", &Config::strict, 1, 0, 1},
    {"races", &Config::races, 1, 0, 1},                     {"count", &Config::count, 1, 0, 1},
    {"align", &Config::align, 16, 1, 256},
};

Config from_environment() {
  Config c{};
  for (const Key& key : kKeys) {
    std::string name = std::string("CUDA_EMU_") + key.name;
    for (char& ch : name) ch = ch >= 'a' && ch <= 'z' ? static_cast<char>(ch - 'a' + 'A') : ch;
    c.*key.member = key.initial;
    const char* text = std::getenv(name.c_str());
    if (!text || !*text) continue;
    char* end = nullptr;
    const long value = std::strtol(text, &end, 10);
    if (*end || value < key.least || value > key.most)
      config_problem += name + ": expected a number from " + std::to_string(key.least) + " to " +
                        std::to_string(key.most) + ", got " + text + "\n";
    else
      c.*key.member = value;
  }
  return c;
}

}  // namespace

Config config = from_environment();

bool configure(const char* key, long value) {
  for (const Key& k : kKeys)
    if (std::strcmp(k.name, key) == 0 && value >= k.least && value <= k.most) {
      config.*k.member = value;
      return true;
    }
  return false;
}

}  // namespace cuda_emu
