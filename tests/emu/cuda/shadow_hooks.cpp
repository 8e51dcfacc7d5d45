// SPDX-License-Identifier: Apache-2.0
// What the calls that -fsanitize=thread puts before each load and store end in. CMake renames the kernels'
// memcpy and its like, which LLVM before 16 calls by their plain names, to those here.
#include <cstring>

#include "worker.h"
#include "shadow.h"

namespace cuda_emu::shadow {
namespace {

inline void watch(const void* p, size_t bytes, Access kind, const void* pc) {
  const State& s = state;
  if (__builtin_thread_pointer() != s.os_thread) return;
  const Thread* thread = s.local->thread;
  if (!thread) return;
  if (static_cast<size_t>(static_cast<const char*>(p) - thread->stack) < kStackBytes) return;
  access(reinterpret_cast<uintptr_t>(p), bytes, kind, pc, *thread);
}

[[gnu::cold, gnu::noinline]] void misaligned(const void* p, size_t bytes, const void* pc) {
  if (__builtin_thread_pointer() == state.os_thread && state.local->thread)
    fail("misaligned access of %zu bytes at %p%s", bytes, p,
         source_of(static_cast<const char*>(pc) - 1).c_str());
}

}  // namespace
}  // namespace cuda_emu::shadow

using cuda_emu::Access;
using cuda_emu::shadow::watch;

extern "C" {
void __tsan_init() {}
void __tsan_func_entry(void*) {}
void __tsan_func_exit() {}
void __tsan_vptr_update(void**, void*) {}
void __tsan_vptr_read(void**) {}

#define CUDA_EMU_HOOK(name, bytes, kind)                                                            \
  void __tsan_##name##bytes(void* p) {                                                              \
    const void* pc = __builtin_return_address(0);                                                   \
    if (reinterpret_cast<uintptr_t>(p) % bytes) cuda_emu::shadow::misaligned(p, bytes, pc);         \
    watch(p, bytes, Access::kind, pc);                                                              \
  }                                                                                                 \
  void __tsan_unaligned_##name##bytes(void* p) { watch(p, bytes, Access::kind, __builtin_return_address(0)); }
#define CUDA_EMU_HOOKS(bytes) CUDA_EMU_HOOK(read, bytes, kRead) CUDA_EMU_HOOK(write, bytes, kWrite)
CUDA_EMU_HOOKS(1) CUDA_EMU_HOOKS(2) CUDA_EMU_HOOKS(4) CUDA_EMU_HOOKS(8) CUDA_EMU_HOOKS(16)

void __tsan_read_range(void* p, size_t n) { watch(p, n, Access::kRead, __builtin_return_address(0)); }
void __tsan_write_range(void* p, size_t n) { watch(p, n, Access::kWrite, __builtin_return_address(0)); }
void* __tsan_memcpy(void* to, const void* from, size_t n) {
  watch(from, n, Access::kRead, __builtin_return_address(0));
  watch(to, n, Access::kWrite, __builtin_return_address(0));
  return std::memcpy(to, from, n);
}
void* __tsan_memmove(void* to, const void* from, size_t n) {
  watch(from, n, Access::kRead, __builtin_return_address(0));
  watch(to, n, Access::kWrite, __builtin_return_address(0));
  return std::memmove(to, from, n);
}
void* __tsan_memset(void* to, int value, size_t n) {
  watch(to, n, Access::kWrite, __builtin_return_address(0));
  return std::memset(to, value, n);
}
}
