// SPDX-License-Identifier: Apache-2.0
#include "fiber.h"

#include <sys/mman.h>

#include <cstdint>
#include <new>

#if !defined(__x86_64__) || !defined(__linux__)
#error "the emulators switch stacks by hand: x86-64 Linux only"
#endif

// The call has saved everything that the ABI lets a callee clobber; what is left are six registers and the stack. It
// goes on with `ret`: fibers mostly wait at one place, so the processor's return predictor is right, which an indirect
// jump is not.
asm(R"(
.text
.globl emu_switch_stack
.hidden emu_switch_stack
.type emu_switch_stack, @function
emu_switch_stack:
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
.size emu_switch_stack, . - emu_switch_stack
)");

namespace emu {
namespace {
constexpr size_t kSlabStacks = 32, kPage = 4096;
}  // namespace

size_t Stacks::stride() const { return bytes_ + kPage; }

void Stacks::grow() {
  void* slab = mmap(nullptr, kSlabStacks * stride(), PROT_READ | PROT_WRITE,
                    MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE, -1, 0);
  if (slab == MAP_FAILED) throw std::bad_alloc();
  slabs_.push_back(static_cast<char*>(slab));
  for (size_t i = kSlabStacks; i-- > 0;) {
    char* guard = static_cast<char*>(slab) + i * stride();
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
    for (size_t i = kSlabStacks; i-- > 0;) free_.push_back(slab + i * stride() + kPage);
}

bool Stacks::in_guard(const void* address) const {
  for (const char* slab : slabs_) {
    const size_t offset = static_cast<const char*>(address) - slab;
    if (offset < kSlabStacks * stride()) return offset % stride() < kPage;
  }
  return false;
}

bool Stacks::contains(const void* address) const {
  for (const char* slab : slabs_)
    if (static_cast<size_t>(static_cast<const char*>(address) - slab) < kSlabStacks * stride()) return true;
  return false;
}

void* fresh_frame(char* stack, size_t bytes, void (*entry)()) {
  // Tops at different offsets in their pages, or the waiting frames of all threads would share a few cache sets.
  const size_t colour = reinterpret_cast<uintptr_t>(stack) / (bytes + kPage) % 32 * 192;
  void** top = reinterpret_cast<void**>(stack + bytes - 64 - colour);
  *--top = nullptr;                            // a return address of nobody ends backtraces
  *--top = reinterpret_cast<void*>(entry);
  for (int i = 0; i < 6; ++i) *--top = nullptr;  // the saved registers
  return top;
}

}  // namespace emu
