// SPDX-License-Identifier: Apache-2.0
// The threads of the CPU backends. One pool a process; a caller that finds it busy runs its work alone.
#pragma once
#include <cstdint>
#include <string>

namespace dsv4 {

void parallel_for(int64_t n, int64_t grain, void (*fn)(void* ctx, int64_t begin, int64_t end), void* ctx);
int32_t num_threads();
std::string refused_threads();  // what is wrong with DSV4SPEC_NUM_THREADS; "": nothing
void set_num_threads(int32_t n);

}  // namespace dsv4
