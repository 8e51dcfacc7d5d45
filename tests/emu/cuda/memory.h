// SPDX-License-Identifier: Apache-2.0
// "Device" memory: host memory that ends at a page out of reach.
#pragma once
#include <cstddef>
#include <string>

namespace cuda_emu {

// The contents start as NaN bytes. `align`: of the start; the memory then ends up to align - 1 bytes before the page.
void* allocate(size_t bytes, size_t align);
bool release(void* p);                              // false: no such allocation
std::string describe_address(const void* address);  // which allocation it is near; "" if it is near none
bool find_allocation(const void* address, const void** begin, size_t* bytes);

}  // namespace cuda_emu
