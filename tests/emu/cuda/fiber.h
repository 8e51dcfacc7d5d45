// SPDX-License-Identifier: Apache-2.0
// Stacks of the emulated threads, and the switch between them (x86-64, System V ABI).
#pragma once
#include <cstddef>
#include <vector>

extern "C" void cuda_emu_switch(void** save, void* resume);

namespace cuda_emu {

#if defined(__SANITIZE_ADDRESS__)
constexpr size_t kStackBytes = 256 * 1024;
#else
constexpr size_t kStackBytes = 64 * 1024;
#endif

// Stacks of one OS thread, last in first out: a thread that ends leaves a warm one to the next.
class Stacks {
 public:
  char* take();                            // low end of kStackBytes; below it lies a guard page
  void give(char* stack) { free_.push_back(stack); }
  void give_all();                         // after a failed launch, which leaves threads half way
  bool in_guard(const void* address) const;
  bool contains(const void* address) const;

 private:
  void grow();
  std::vector<char*> free_, slabs_;
};

// A stack pointer that starts `entry` when it is resumed; entry must not return.
void* fresh_frame(char* stack, void (*entry)());

}  // namespace cuda_emu
