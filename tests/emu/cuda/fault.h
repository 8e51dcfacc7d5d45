// SPDX-License-Identifier: Apache-2.0
// A memory fault of an emulated thread ends its launch with a report; the process lives on.
#pragma once
#include <csignal>

namespace cuda_emu {

struct Worker;

// While one exists, faults of kernels are caught; all others go to the handler that was there before.
class FaultHandler {
 public:
  FaultHandler();
  ~FaultHandler();
};

// This OS thread's stack for the handler: that of a kernel's thread may be what has run out.
class SignalStack {
 public:
  explicit SignalStack(Worker& worker);
  ~SignalStack();

 private:
  stack_t before_{};
};

}  // namespace cuda_emu
