// SPDX-License-Identifier: Apache-2.0
#include "fault.h"

#include <ucontext.h>

#include <cstdio>
#include <string>

#include "cores.h"

namespace ascend_emu {
namespace {

struct sigaction g_before_segv, g_before_bus;
constexpr size_t kStack = 256 * 1024;
alignas(64) char g_signal_stack[kStack], g_report_stack[kStack];  // one launch at a time
void* g_thread = nullptr;

// Runs on the report's stack in place of the faulting instruction.
[[noreturn]] void on_fault(const char* address, uintptr_t detail) {
  char text[128];
  if (detail & 2) std::snprintf(text, sizeof text, "an address that no memory can have");
  else
    std::snprintf(text, sizeof text, "%s address %p, where no memory is", detail & 1 ? "a write to" : "a read from",
                  static_cast<const void*>(address));
  const char* name = core->running.name ? core->running.name : core->op_name;
  const void* pc = core->running.name ? core->running.pc : core->op_pc;
  add_report("rule 19 (" + std::string(rule_name(19)) + "): " + name + where(pc) + ": " + text + " [" +
             launched.kernel + ", " + (core->vector ? "vector" : "cube") + " core " + std::to_string(core->block) +
             "]");
  abandon_core();
}

void handler(int number, siginfo_t* info, void* context) {
  if (!core || __builtin_thread_pointer() != g_thread) {  // not ours: it faults again where it belongs
    sigaction(number, number == SIGSEGV ? &g_before_segv : &g_before_bus, nullptr);
    return;
  }
  auto& registers = static_cast<ucontext_t*>(context)->uc_mcontext.gregs;
  const uintptr_t detail = (registers[REG_ERR] & 2 ? 1 : 0) | (info->si_code == SI_KERNEL ? 2 : 0);
  registers[REG_RDI] = reinterpret_cast<greg_t>(info->si_addr);
  registers[REG_RSI] = static_cast<greg_t>(detail);
  registers[REG_RSP] = reinterpret_cast<greg_t>(g_report_stack + kStack - 64 - 8);  // as after a call
  registers[REG_RIP] = reinterpret_cast<greg_t>(&on_fault);
}

}  // namespace

FaultHandler::FaultHandler() {
  g_thread = __builtin_thread_pointer();
  stack_t stack{};
  stack.ss_sp = g_signal_stack;
  stack.ss_size = kStack;
  sigaltstack(&stack, &stack_before_);
  struct sigaction action {};
  action.sa_sigaction = &handler;
  action.sa_flags = SA_SIGINFO | SA_ONSTACK;
  sigaction(SIGSEGV, &action, &g_before_segv);
  sigaction(SIGBUS, &action, &g_before_bus);
}
FaultHandler::~FaultHandler() {
  sigaction(SIGSEGV, &g_before_segv, nullptr);
  sigaction(SIGBUS, &g_before_bus, nullptr);
  sigaltstack(&stack_before_, nullptr);
}

}  // namespace ascend_emu
