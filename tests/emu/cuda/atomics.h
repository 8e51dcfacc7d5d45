// SPDX-License-Identifier: Apache-2.0
// Atomics under their CUDA names. Blocks may run on several OS threads, so they are real ones.
#pragma once
#include <cstring>
#include <type_traits>

#include "core.h"

namespace cuda_emu {

// Instrumentation must not take an atomic for a plain access; inlined, it would be part of the kernel.
#if defined(__has_feature)
#if __has_feature(thread_sanitizer)
#define CUDA_EMU_UNCHECKED __attribute__((noinline, disable_sanitizer_instrumentation))
#endif
#endif
#if !defined(CUDA_EMU_UNCHECKED)
#define CUDA_EMU_UNCHECKED inline
#endif

// *address = change(*address), and the value from before.
template <class T, class Change>
CUDA_EMU_UNCHECKED T atomic_update(T* address, Change change) {
  static_assert(sizeof(T) == 2 || sizeof(T) == 4 || sizeof(T) == 8, "CUDA has atomics of 2, 4 and 8 bytes");
  using Word = std::conditional_t<sizeof(T) == 8, uint64_t, std::conditional_t<sizeof(T) == 4, uint32_t, uint16_t>>;
  if (reinterpret_cast<uintptr_t>(address) % sizeof(T))
    fail("misaligned atomic of %zu bytes at %p", sizeof(T), static_cast<void*>(address));
  note_access(address, sizeof(T), Access::kAtomic, __builtin_return_address(0));
  Word* word = reinterpret_cast<Word*>(address);
  Word before = __atomic_load_n(word, __ATOMIC_RELAXED);
  for (;;) {
    T old;
    std::memcpy(static_cast<void*>(&old), &before, sizeof(T));
    const T next = change(old);
    Word after;
    std::memcpy(&after, &next, sizeof(T));
    if (__atomic_compare_exchange_n(word, &before, after, false, __ATOMIC_SEQ_CST, __ATOMIC_SEQ_CST)) return old;
  }
}
template <class T> struct Same { using type = T; };  // takes a parameter out of deduction
template <class T> using Value = typename Same<T>::type;

}  // namespace cuda_emu

template <class T> inline T atomicAdd(T* p, cuda_emu::Value<T> v) {
  return cuda_emu::atomic_update(p, [v](T old) { return static_cast<T>(old + v); });
}
template <class T> inline T atomicSub(T* p, cuda_emu::Value<T> v) {
  return cuda_emu::atomic_update(p, [v](T old) { return static_cast<T>(old - v); });
}
template <class T> inline T atomicExch(T* p, cuda_emu::Value<T> v) {
  return cuda_emu::atomic_update(p, [v](T) { return v; });
}
template <class T> inline T atomicMin(T* p, cuda_emu::Value<T> v) {
  return cuda_emu::atomic_update(p, [v](T old) { return v < old ? v : old; });
}
template <class T> inline T atomicMax(T* p, cuda_emu::Value<T> v) {
  return cuda_emu::atomic_update(p, [v](T old) { return v > old ? v : old; });
}
template <class T> inline T atomicAnd(T* p, cuda_emu::Value<T> v) {
  return cuda_emu::atomic_update(p, [v](T old) { return old & v; });
}
template <class T> inline T atomicOr(T* p, cuda_emu::Value<T> v) {
  return cuda_emu::atomic_update(p, [v](T old) { return old | v; });
}
template <class T> inline T atomicXor(T* p, cuda_emu::Value<T> v) {
  return cuda_emu::atomic_update(p, [v](T old) { return old ^ v; });
}
template <class T> inline T atomicCAS(T* p, cuda_emu::Value<T> expected, cuda_emu::Value<T> v) {
  return cuda_emu::atomic_update(p, [=](T old) { return std::memcmp(&old, &expected, sizeof(T)) == 0 ? v : old; });
}
inline unsigned atomicInc(unsigned* p, unsigned limit) {
  return cuda_emu::atomic_update(p, [=](unsigned old) { return old >= limit ? 0u : old + 1; });
}
inline unsigned atomicDec(unsigned* p, unsigned limit) {
  return cuda_emu::atomic_update(p, [=](unsigned old) { return old == 0 || old > limit ? limit : old - 1; });
}
