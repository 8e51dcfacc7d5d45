// SPDX-License-Identifier: Apache-2.0
// A memory fault of an emulated thread ends its launch with a report; the process lives on.
#pragma once
#include "../common/fault.h"

namespace cuda_emu {

struct Worker;

#if defined(__SANITIZE_ADDRESS__)  // AddressSanitizer reports faults itself, with its own stack trace
struct FaultHandler {
  FaultHandler() {}
};
struct SignalStack {
  explicit SignalStack(Worker&) {}
};
#else
struct FaultHandler : emu::FaultHandler {
  FaultHandler();
};
struct SignalStack : emu::SignalStack {
  explicit SignalStack(Worker& worker);
};
#endif

}  // namespace cuda_emu
