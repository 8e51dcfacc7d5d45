// SPDX-License-Identifier: Apache-2.0
// Accesses to memory that is not there end the launch with a report, not the process. Internal.
#pragma once
#include "../common/fault.h"

namespace ascend_emu {

class FaultHandler {  // for the length of a launch, on the OS thread that runs it
 public:
  FaultHandler();

 private:
  emu::SignalStack stack_;
  emu::FaultHandler faults_;
};

}  // namespace ascend_emu
