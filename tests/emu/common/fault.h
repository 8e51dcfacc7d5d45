// SPDX-License-Identifier: Apache-2.0
// A memory fault of an emulated kernel ends its launch with a report; the process lives on.
#pragma once
#include <csignal>
#include <cstddef>
#include <cstdint>

namespace emu {

constexpr size_t kFaultStackBytes = 256 * 1024;

enum FaultDetail : uintptr_t { kWrite = 1, kNoAddress = 2 };  // kNoAddress: the processor names none

struct FaultActions {
  // kFaultStackBytes (their low end) for the report of the instruction at `pc`, whatever state the kernel's own stack is
  // in; nullptr if this thread runs no kernel. Called within the signal handler.
  char* (*stack)(void* pc);
  // Runs there in place of that instruction, and must not return.
  void (*report)(const char* address, uintptr_t detail);
};

// While one exists, faults of kernels are caught; all others go to the handler that was there before. One at a time.
class FaultHandler {
 public:
  explicit FaultHandler(const FaultActions& actions);
  ~FaultHandler();
  FaultHandler(const FaultHandler&) = delete;
};

// This OS thread's stack for the handler (kFaultStackBytes): that of a kernel may be what has run out.
class SignalStack {
 public:
  explicit SignalStack(char* stack);
  ~SignalStack();
  SignalStack(const SignalStack&) = delete;

 private:
  stack_t before_{};
};

}  // namespace emu
