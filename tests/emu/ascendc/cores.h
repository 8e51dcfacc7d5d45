// SPDX-License-Identifier: Apache-2.0
// The cores of a launch, each a fiber. One runs until it waits for another core or ends. Internal.
#pragma once
#include "core.h"
#include "launch.h"

namespace ascend_emu {

// Runs all cores of a kernel to their ends. Violations are in the reports.
void run_cores(const Kernel& kernel);

// The running core is given up, and with it the launch: there is a report.
[[noreturn]] void abandon_core();

// Suspends the running core until `ready`; `what` is named if no core can go on.
void wait_until(bool (*ready)(const void* context), const void* context, const char* what);

// ---- cross-core flags (cross_core.cpp)
void forget_cross_core();
void check_cross_core_ended();  // reports flags that nobody has waited for

}  // namespace ascend_emu
