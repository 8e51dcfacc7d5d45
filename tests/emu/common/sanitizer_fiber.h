// SPDX-License-Identifier: Apache-2.0
// Tells AddressSanitizer about switches of stacks; nothing in the other flavours.
#pragma once
#include <cstddef>

#if defined(__SANITIZE_ADDRESS__)
#include <sanitizer/asan_interface.h>
#include <sanitizer/common_interface_defs.h>

namespace emu {
// save: where the stack that is left keeps its fake frames; nullptr if it ends.
inline void leave_stack(void** save, const void* to_stack, size_t to_bytes) {
  __sanitizer_start_switch_fiber(save, to_stack, to_bytes);
}
inline void arrive_on_stack(void* saved, const void** from_stack = nullptr, size_t* from_bytes = nullptr) {
  __sanitizer_finish_switch_fiber(saved, from_stack, from_bytes);
}
inline void unpoison(void* p, size_t bytes) { __asan_unpoison_memory_region(p, bytes); }
}  // namespace emu
#else
namespace emu {
inline void leave_stack(void**, const void*, size_t) {}
inline void arrive_on_stack(void*, const void** = nullptr, size_t* = nullptr) {}
inline void unpoison(void*, size_t) {}
}  // namespace emu
#endif
