// SPDX-License-Identifier: Apache-2.0
#include "fault.h"

#include <ucontext.h>

#include <cstdint>
#include <cstdio>
#include <string>

#include "memory.h"
#include "worker.h"

namespace cuda_emu {
namespace {

struct sigaction g_before_segv, g_before_bus;

constexpr uintptr_t kStackReach = 1 << 20;  // a large frame may step over the guard page

enum Detail : uintptr_t { kWrite = 1, kNoAddress = 2, kBus = 4 };

std::string classify(const Worker& worker, const char* address, uintptr_t detail) {
  const std::string access = detail & kWrite ? "write" : "read";
  if (detail & kNoAddress)
    return "misaligned vector access, or an address that no memory can have (the processor names none)";
  char where[64];
  std::snprintf(where, sizeof where, " at address %p", static_cast<const void*>(address));
  const std::string near = describe_address(address);
  if (!near.empty()) return access + " out of bounds" + where + ": " + near;
  const uintptr_t below = reinterpret_cast<uintptr_t>(local.thread->stack) - reinterpret_cast<uintptr_t>(address);
  if (worker.on_block_stack(address) || below < kStackReach)
    return "the thread's stack is full (" + std::to_string(kStackBytes) + " bytes)";
  if (worker.in_dynamic_guard(address))
    return access + " out of bounds" + where + ": offset " + std::to_string(address - worker.block.dynamic) + " of " +
           std::to_string(worker.block.dynamic_size) + " bytes of dynamic shared memory";
  if (reinterpret_cast<uintptr_t>(address) < 65536) return access + " through a null pointer" + where;
  return access + " out of bounds" + where + ", which is near no known memory";
}

// Runs on the worker's fault stack in place of the faulting instruction.
[[noreturn]] void on_fault(const char* address, uintptr_t detail) {
  Worker& worker = *local.worker;
  const Thread& thread = *local.thread;
  std::string text = describe(thread) + ": " + classify(worker, address, detail);
  if (thread.waits_for)
    text += std::string(", in ") + thread.waits_for + source_of(static_cast<const char*>(thread.waits_pc) - 1);
  add_report(text + source_of(worker.fault_pc));
  worker.abandon_block();
}

void handler(int number, siginfo_t* info, void* context) {
  if (!local.thread) {  // not ours: give it to whoever had it; the instruction faults again there
    sigaction(number, number == SIGSEGV ? &g_before_segv : &g_before_bus, nullptr);
    return;
  }
  auto& registers = static_cast<ucontext_t*>(context)->uc_mcontext.gregs;
  uintptr_t detail = registers[REG_ERR] & 2 ? uintptr_t{kWrite} : 0;
  if (number == SIGBUS) detail |= kBus;
  if (info->si_code == SI_KERNEL) detail |= kNoAddress;
  Worker& worker = *local.worker;
  worker.fault_pc = reinterpret_cast<void*>(registers[REG_RIP]);
  registers[REG_RDI] = reinterpret_cast<greg_t>(info->si_addr);
  registers[REG_RSI] = static_cast<greg_t>(detail);
  registers[REG_RSP] = reinterpret_cast<greg_t>(worker.fault_stack + kFaultStackBytes - 64 - 8);  // as after a call
  registers[REG_RIP] = reinterpret_cast<greg_t>(&on_fault);
}

}  // namespace

#if defined(__SANITIZE_ADDRESS__)  // AddressSanitizer reports faults itself, with its own stack trace
FaultHandler::FaultHandler() { (void)&handler; }
FaultHandler::~FaultHandler() {}
SignalStack::SignalStack(Worker&) {}
SignalStack::~SignalStack() {}
#else
FaultHandler::FaultHandler() {
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
SignalStack::SignalStack(Worker& worker) {
  stack_t stack{};
  stack.ss_sp = worker.signal_stack;
  stack.ss_size = kFaultStackBytes;
  sigaltstack(&stack, &before_);
}
SignalStack::~SignalStack() { sigaltstack(&before_, nullptr); }
#endif

}  // namespace cuda_emu
