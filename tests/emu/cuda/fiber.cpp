// SPDX-License-Identifier: Apache-2.0
#include "fiber.h"

#include <sys/mman.h>

#include <cstdint>
#include <new>

#include "config.h"

#if !defined(__x86_64__) || !defined(__linux__)
#error "the CUDA emulator switches stacks by hand: x86-64 Linux only"
#endif

// The call has saved everything that the ABI lets a callee clobber; what is left are six registers and the stack. It
// goes on with `ret`: all threads of a block wait at one place, so the processor's return predictor is right, which
// an indirect jump is not.
asm(R"(
.text
.globl cuda_emu_switch
.hidden cuda_emu_switch
.type cuda_emu_switch, @function
cuda_emu_switch:
  pushq %rbp
  pushq %rbx
  pushq %r12
  pushq %r13
  pushq %r14
  pushq %r15
  movq %rsp, (%rdi)
  movq %rsi, %rsp
  popq %r15
  popq %r14
  popq %r13
  popq %r12
  popq %rbx
  popq %rbp
  ret
.size cuda_emu_switch, . - cuda_emu_switch
)");

namespace cuda_emu {
namespace {
constexpr size_t kSlabStacks = 32;
constexpr size_t kStride = kStackBytes + kPage;
}  // namespace

void Stacks::grow() {
  void* slab = mmap(nullptr, kSlabStacks * kStride, PROT_READ | PROT_WRITE,
                    MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE, -1, 0);
  if (slab == MAP_FAILED) throw std::bad_alloc();
  slabs_.push_back(static_cast<char*>(slab));
  for (size_t i = kSlabStacks; i-- > 0;) {
    char* guard = static_cast<char*>(slab) + i * kStride;
    if (mprotect(guard, kPage, PROT_NONE)) throw std::bad_alloc();
    free_.push_back(guard + kPage);
  }
}

char* Stacks::take() {
  if (free_.empty()) grow();
  char* stack = free_.back();
  free_.pop_back();
  return stack;
}

void Stacks::give_all() {
  free_.clear();
  for (char* slab : slabs_)
    for (size_t i = kSlabStacks; i-- > 0;) free_.push_back(slab + i * kStride + kPage);
}

bool Stacks::in_guard(const void* address) const {
  for (const char* slab : slabs_) {
    const size_t offset = static_cast<const char*>(address) - slab;
    if (offset < kSlabStacks * kStride) return offset % kStride < kPage;
  }
  return false;
}

bool Stacks::contains(const void* address) const {
  for (const char* slab : slabs_)
    if (static_cast<size_t>(static_cast<const char*>(address) - slab) < kSlabStacks * kStride) return true;
  return false;
}

void* fresh_frame(char* stack, void (*entry)()) {
  // Tops at different offsets in their pages, or the waiting frames of all threads would share a few cache sets.
  const size_t colour = reinterpret_cast<uintptr_t>(stack) / kStride % 32 * 192;
  void** top = reinterpret_cast<void**>(stack + kStackBytes - 64 - colour);
  *--top = nullptr;                            // a return address of nobody ends backtraces
  *--top = reinterpret_cast<void*>(entry);
  for (int i = 0; i < 6; ++i) *--top = nullptr;  // the saved registers
  return top;
}

}  // namespace cuda_emu
