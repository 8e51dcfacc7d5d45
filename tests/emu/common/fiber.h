// SPDX-License-Identifier: Apache-2.0
// Stacks of emulated threads and cores, and the switch between them (x86-64, System V ABI).
#pragma once
#include <cstddef>
#include <vector>

extern "C" void emu_switch_stack(void** save, void* resume);

namespace emu {

// Stacks of one OS thread, last in first out: a fiber that ends leaves a warm one to the next.
class Stacks {
 public:
  explicit Stacks(size_t bytes) : bytes_(bytes) {}  // of a stack; a multiple of 4096
  char* take();                            // low end; below it lies a guard page
  void give(char* stack) { free_.push_back(stack); }
  void give_all();                         // after a failed launch, which leaves fibers half way
  bool in_guard(const void* address) const;
  bool contains(const void* address) const;

 private:
  void grow();
  size_t stride() const;
  size_t bytes_;
  std::vector<char*> free_, slabs_;
};

// A stack pointer that starts `entry` when it is resumed; entry must not return.
void* fresh_frame(char* stack, size_t bytes, void (*entry)());

}  // namespace emu
