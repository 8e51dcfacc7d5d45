// SPDX-License-Identifier: Apache-2.0
#include "fault.h"

#include <ucontext.h>

namespace emu {
namespace {

FaultActions g_actions;
struct sigaction g_before_segv, g_before_bus;

void handler(int number, siginfo_t* info, void* context) {
  auto& registers = static_cast<ucontext_t*>(context)->uc_mcontext.gregs;
  char* stack = g_actions.stack(reinterpret_cast<void*>(registers[REG_RIP]));
  if (!stack) {  // not ours: give it to whoever had it; the instruction faults again there
    sigaction(number, number == SIGSEGV ? &g_before_segv : &g_before_bus, nullptr);
    return;
  }
  uintptr_t detail = registers[REG_ERR] & 2 ? uintptr_t{kWrite} : 0;
  if (info->si_code == SI_KERNEL) detail |= kNoAddress;
  registers[REG_RDI] = reinterpret_cast<greg_t>(info->si_addr);
  registers[REG_RSI] = static_cast<greg_t>(detail);
  registers[REG_RSP] = reinterpret_cast<greg_t>(stack + kFaultStackBytes - 64 - 8);  // as after a call
  registers[REG_RIP] = reinterpret_cast<greg_t>(g_actions.report);
}

}  // namespace

FaultHandler::FaultHandler(const FaultActions& actions) {
  g_actions = actions;
  struct sigaction action {};
  action.sa_sigaction = &handler;
  action.sa_flags = SA_SIGINFO | SA_ONSTACK;
  sigaction(SIGSEGV, &action, &g_before_segv);
  sigaction(SIGBUS, &action, &g_before_bus);
}

FaultHandler::~FaultHandler() {
  sigaction(SIGSEGV, &g_before_segv, nullptr);
  sigaction(SIGBUS, &g_before_bus, nullptr);
}

SignalStack::SignalStack(char* stack) {
  stack_t ours{};
  ours.ss_sp = stack;
  ours.ss_size = kFaultStackBytes;
  sigaltstack(&ours, &before_);
}

SignalStack::~SignalStack() { sigaltstack(&before_, nullptr); }

}  // namespace emu
