// SPDX-License-Identifier: Apache-2.0
#include "fault.h"

#if !defined(__SANITIZE_ADDRESS__)
#include <cstdint>
#include <cstdio>
#include <string>

#include "memory.h"
#include "worker.h"

namespace cuda_emu {
namespace {

constexpr uintptr_t kStackReach = 1 << 20;  // a large frame may step over the guard page

std::string classify(const Worker& worker, const char* address, uintptr_t detail) {
  const std::string access = detail & emu::kWrite ? "write" : "read";
  if (detail & emu::kNoAddress)
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

char* stack_of_report(void* pc) {
  if (!local.thread) return nullptr;
  local.worker->fault_pc = pc;
  return local.worker->fault_stack;
}

}  // namespace

FaultHandler::FaultHandler() : emu::FaultHandler({&stack_of_report, &on_fault}) {}
SignalStack::SignalStack(Worker& worker) : emu::SignalStack(worker.signal_stack) {}

}  // namespace cuda_emu
#endif
