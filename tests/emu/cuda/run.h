// SPDX-License-Identifier: Apache-2.0
#pragma once
#include <string>

#include "core.h"

namespace cuda_emu {

cudaError_t run(const LaunchInfo& launch);          // now, on this OS thread (and more of them if configured)
cudaError_t set_max_dynamic_shared(const void* kernel, int bytes);
cudaError_t allow_large_clusters(const void* kernel, bool allowed);  // of more than 8 blocks
cudaError_t remember(cudaError_t error);            // as this OS thread's last error

std::string counters();                             // JSON: per kernel, since the last clear
void clear_counters();

}  // namespace cuda_emu
