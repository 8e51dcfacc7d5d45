// SPDX-License-Identifier: Apache-2.0
// Settings of an emulator: named numbers with a range, from the environment at first, then by its C function.
#pragma once
#include <cstdlib>
#include <cstring>
#include <string>

namespace emu {

template <class Config>
struct Key {
  const char* name;
  long Config::*member;
  long initial, least, most;
};

// PREFIX_NAME of every key, where it is set. What is wrong with the environment is added to `problem`.
template <class Config, size_t kCount>
Config from_environment(const std::string& prefix, const Key<Config> (&keys)[kCount], std::string& problem) {
  Config c{};
  for (const Key<Config>& key : keys) {
    std::string name = prefix + key.name;
    for (char& ch : name) ch = ch >= 'a' && ch <= 'z' ? static_cast<char>(ch - 'a' + 'A') : ch;
    c.*key.member = key.initial;
    const char* text = std::getenv(name.c_str());
    if (!text || !*text) continue;
    char* end = nullptr;
    const long value = std::strtol(text, &end, 10);
    if (*end || value < key.least || value > key.most)
      problem += name + ": expected a number from " + std::to_string(key.least) + " to " + std::to_string(key.most) +
                 ", got " + text + "\n";
    else
      c.*key.member = value;
  }
  return c;
}

// False: no such key, or a value out of range.
template <class Config, size_t kCount>
bool configure(Config& config, const Key<Config> (&keys)[kCount], const char* name, long value) {
  for (const Key<Config>& key : keys)
    if (std::strcmp(key.name, name) == 0 && value >= key.least && value <= key.most) {
      config.*key.member = value;
      return true;
    }
  return false;
}

}  // namespace emu
