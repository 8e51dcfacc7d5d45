// SPDX-License-Identifier: Apache-2.0
// The only file that sees the hashes: an edit anywhere recompiles this file, and links the libraries again.
#include "build_info.h"

#include "build_config.h"  // written at configure time
#include "build_stamp.h"   // written at build time, when it changed

namespace dsv4 {

const BuildInfo kBuild{DSV4_VERSION, DSV4_GIT_HASH, DSV4_SOURCE_HASH, kBuildSummary, DSV4_COMPILER,
                       kBuildOptions};

}  // namespace dsv4
