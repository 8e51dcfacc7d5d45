// SPDX-License-Identifier: Apache-2.0
// What a test reaches through ctypes.
#include <string>

#include "config.h"

#define ASCEND_EMU_EXPORT extern "C" __attribute__((visibility("default")))

// Text of the last launch that failed; "" if there is none since the last clear.
ASCEND_EMU_EXPORT const char* ascend_emu_report(void) { return ascend_emu::report(); }

// Forgets reports and counters.
ASCEND_EMU_EXPORT void ascend_emu_clear(void) {
  ascend_emu::clear_reports();
  ascend_emu::clear_counters();
}

// 0, or -1 if there is no such key or the value is out of range (config.h lists them).
ASCEND_EMU_EXPORT int ascend_emu_configure(const char* key, long value) {
  return ascend_emu::configure(key, value) ? 0 : -1;
}

// Memory between guard zones, 512-byte aligned, NaN bytes. nullptr: none left.
ASCEND_EMU_EXPORT void* ascend_emu_malloc(size_t bytes) { return ascend_emu::allocate(bytes); }
// 0, or -1 if that is no memory of ascend_emu_malloc.
ASCEND_EMU_EXPORT int ascend_emu_free(void* memory) { return !memory || ascend_emu::release(memory) ? 0 : -1; }

// JSON: kernel -> counters, since the last clear.
ASCEND_EMU_EXPORT const char* ascend_emu_counters(void) {
  static std::string shown;
  shown = ascend_emu::counters();
  return shown.c_str();
}
