// SPDX-License-Identifier: Apache-2.0
// What a test reaches through ctypes.
#include <string>

#include "config.h"
#include "memory.h"
#include "run.h"

#define CUDA_EMU_API extern "C" __attribute__((visibility("default")))

// Text of the last launch that failed, or of a call that was refused; "" if there is none since the last clear.
CUDA_EMU_API const char* cuda_emu_report(void) { return cuda_emu::report(); }

// Forgets reports and counters.
CUDA_EMU_API void cuda_emu_clear(void) {
  cuda_emu::clear_reports();
  cuda_emu::clear_counters();
}

// 0, or -1 if there is no such key or the value is out of range (config.h lists them).
CUDA_EMU_API int cuda_emu_configure(const char* key, long value) { return cuda_emu::configure(key, value) ? 0 : -1; }

// Memory with a page out of reach behind its end, up to align - 1 bytes further (a setting). nullptr: none left.
CUDA_EMU_API void* cuda_emu_malloc(size_t bytes) {
  return cuda_emu::allocate(bytes, static_cast<size_t>(cuda_emu::config.align));
}
// 0, or -1 if that is no memory of cuda_emu_malloc.
CUDA_EMU_API int cuda_emu_free(void* memory) { return !memory || cuda_emu::release(memory) ? 0 : -1; }

// JSON: kernel -> {launches, blocks; grid, block, smem of the last; instructions of warps, barriers}, since the last clear.
CUDA_EMU_API const char* cuda_emu_counters(void) {
  static std::string shown;
  shown = cuda_emu::counters();
  return shown.c_str();
}
