// SPDX-License-Identifier: Apache-2.0
// cp.async. A copy is done when its thread waits for it, not before; until then its target holds NaN bytes, so that
// a wait that is missing or too weak shows every time.
#include "copies.h"

#include <cstring>

#include "worker.h"

namespace cuda_emu {
namespace {

void perform(const Copies::Copy& c) {
  note_access(c.to, static_cast<size_t>(c.bytes), Access::kArrived, c.pc);
  std::memcpy(c.to, c.from, static_cast<size_t>(c.source_bytes));
  std::memset(c.to + c.source_bytes, 0, static_cast<size_t>(c.bytes - c.source_bytes));
}

}  // namespace

__attribute__((noinline)) void copy_async(void* shared, const void* global, int bytes, int source_bytes, Site site) {
  Thread& thread = *local.thread;
  const auto misaligned = [&](const void* p) {
    return reinterpret_cast<uintptr_t>(p) % static_cast<unsigned>(bytes);
  };
  if (misaligned(shared) || misaligned(global))
    fail("cp.async (%s:%d): to %p from %p, expected multiples of %d", site.name(), site.line, shared, global, bytes);
  thread.waits_for = "cp.async";  // named by the report of a fault
  thread.waits_at = site;
  const void* pc = thread.waits_pc = __builtin_return_address(0);
  const Copies::Copy copy{static_cast<char*>(shared), static_cast<const char*>(global), bytes, source_bytes, pc};
  if (source_bytes) {
    note_access(global, static_cast<size_t>(source_bytes), Access::kRead, pc);
    volatile char touched = copy.from[0];
    touched = copy.from[source_bytes - 1];
    (void)touched;
  }
  if (config.defer) {
    note_access(shared, static_cast<size_t>(bytes), Access::kInFlight, pc);
    std::memset(shared, 0xff, static_cast<size_t>(bytes));
    thread.copies->all.push_back(copy);
  } else {
    note_access(shared, static_cast<size_t>(bytes), Access::kWrite, pc);
    perform(copy);
  }
  thread.waits_for = nullptr;
}

void copy_commit() {
  Copies& c = *local.thread->copies;
  c.group_ends.push_back(c.all.size());
}

void copy_wait(int groups_in_flight) {
  Copies& c = *local.thread->copies;
  while (c.groups_done + static_cast<size_t>(groups_in_flight) < c.group_ends.size()) {
    for (const size_t end = c.group_ends[c.groups_done++]; c.done < end; ++c.done) perform(c.all[c.done]);
  }
  if (c.done == c.all.size() && c.groups_done == c.group_ends.size()) c.clear();
}

}  // namespace cuda_emu
