// SPDX-License-Identifier: Apache-2.0
// Compares the CANN that the kernels were built with and the one that this process runs under. Plain C++.
#pragma once
#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <fstream>
#include <string>

namespace dsv4::ascend {

// "8.5" of the first line of a version file that holds a number such as 8.5.0; empty if there is none.
inline std::string release_in(const std::string& path) {
  std::ifstream file(path);
  for (std::string line; std::getline(file, line);)
    for (size_t i = 0; i < line.size(); ++i) {
      int major = 0, minor = 0;
      const bool starts = i == 0 || std::strchr("0123456789.", line[i - 1]) == nullptr;
      if (!starts || line[i] < '0' || line[i] > '9') continue;
      if (std::sscanf(line.c_str() + i, "%2d.%2d", &major, &minor) == 2)
        return std::to_string(major) + "." + std::to_string(minor);
    }
  return "";
}

// Writes one sentence and returns true if ASCEND_HOME_PATH names a toolkit of another release than `built` ("CANN
// 8.5.0"). A toolkit or a build that does not tell its version is taken as it is.
inline bool other_cann_version(const char* built, char* text, size_t size) {
  const char* home = std::getenv("ASCEND_HOME_PATH");
  int major = 0, minor = 0;
  if (!home || !*home || std::sscanf(built, "CANN %d.%d", &major, &minor) != 2) return false;
  std::string now = release_in(std::string(home) + "/version.cfg");
  if (now.empty()) now = release_in(std::string(home) + "/compiler/version.info");
  if (now.empty() || now == std::to_string(major) + "." + std::to_string(minor)) return false;
  std::snprintf(text, size, "built with %s, but ASCEND_HOME_PATH=%s is CANN %s; source the set_env.sh of the former, "
                "or rebuild dsv4spec (pip install .)", built, home, now.c_str());
  return true;
}

}  // namespace dsv4::ascend
