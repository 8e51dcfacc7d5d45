// SPDX-License-Identifier: Apache-2.0
// Accesses to memory that is not there end the launch with a report, not the process. Internal.
#pragma once
#include <csignal>

namespace ascend_emu {

class FaultHandler {  // for the length of a launch, on the OS thread that runs it
 public:
  FaultHandler();
  ~FaultHandler();
  FaultHandler(const FaultHandler&) = delete;

 private:
  stack_t stack_before_;
};

}  // namespace ascend_emu
