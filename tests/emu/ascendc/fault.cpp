// SPDX-License-Identifier: Apache-2.0
#include "fault.h"

#include <cstdio>
#include <string>

#include "cores.h"

namespace ascend_emu {
namespace {

alignas(64) char g_signal_stack[emu::kFaultStackBytes], g_report_stack[emu::kFaultStackBytes];  // one launch at a time
void* g_thread = nullptr;

// Runs on the report's stack in place of the faulting instruction.
[[noreturn]] void on_fault(const char* address, uintptr_t detail) {
  char text[128];
  if (detail & emu::kNoAddress) std::snprintf(text, sizeof text, "an address that no memory can have");
  else
    std::snprintf(text, sizeof text, "%s address %p, where no memory is", detail & emu::kWrite ? "a write to" : "a read from",
                  static_cast<const void*>(address));
  const char* name = core->running.name ? core->running.name : core->op_name;
  const void* pc = core->running.name ? core->running.pc : core->op_pc;
  add_report("rule 19 (" + std::string(rule_name(19)) + "): " + name + where(pc) + ": " + text + " [" +
             launched.kernel + ", " + (core->vector ? "vector" : "cube") + " core " + std::to_string(core->block) +
             "]");
  abandon_core();
}

char* stack_of_report(void*) { return core && __builtin_thread_pointer() == g_thread ? g_report_stack : nullptr; }

}  // namespace

FaultHandler::FaultHandler() : stack_(g_signal_stack), faults_({&stack_of_report, &on_fault}) {
  g_thread = __builtin_thread_pointer();
}

}  // namespace ascend_emu
