// SPDX-License-Identifier: Apache-2.0
// What a library was built from. Every library of the package carries its own copy, so that a stale one is seen.
#pragma once

namespace dsv4 {

struct BuildInfo {
  const char* version;
  const char* git_hash;     // "unknown" outside git and outside a source archive
  const char* source_hash;  // over csrc/, include/ and kernels/; see cmake/stamp.cmake
  const char* summary;      // one line a backend: "NAME: built ..." or "NAME: not built: REASON"
  const char* compiler;
  const char* options;      // one line an option of CMake: NAME=VALUE
};

extern const BuildInfo kBuild;

}  // namespace dsv4
