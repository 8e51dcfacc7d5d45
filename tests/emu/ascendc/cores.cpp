// SPDX-License-Identifier: Apache-2.0
#include "cores.h"

#include <algorithm>
#include <memory>

#include "../common/fiber.h"
#include "../common/sanitizer_fiber.h"
#include "fault.h"
#include "random.h"

namespace ascend_emu {
namespace {

constexpr size_t kStackBytes = 256 * 1024;

struct Fiber {
  char* stack = nullptr;
  void* pointer = nullptr;
  void* sanitizer = nullptr;
  bool done = false;
  bool (*ready)(const void*) = nullptr;  // nullptr: it can go on
  const void* context = nullptr;
  const char* waits_for = "";
};

emu::Stacks g_stacks(kStackBytes);
std::vector<std::unique_ptr<Core>> g_cores;
std::vector<Fiber> g_fibers;
const Kernel* g_kernel = nullptr;
void* g_scheduler = nullptr;
void* g_scheduler_sanitizer = nullptr;
const void* g_scheduler_stack = nullptr;
size_t g_scheduler_bytes = 0;
uint32_t g_running = 0;
bool g_failed = false;

void to_scheduler(Fiber& from, bool ends) {
  emu::leave_stack(ends ? nullptr : &from.sanitizer, g_scheduler_stack, g_scheduler_bytes);
  emu_switch_stack(&from.pointer, g_scheduler);
  emu::arrive_on_stack(from.sanitizer);
}

void fiber_main() {
  emu::arrive_on_stack(nullptr, g_scheduler_stack ? nullptr : &g_scheduler_stack,
                       g_scheduler_stack ? nullptr : &g_scheduler_bytes);
  try {
    g_kernel->run(g_kernel->args);
    core->finish();
  } catch (const Violation&) {
    g_failed = true;
  }
  Fiber& me = g_fibers[g_running];
  me.done = true;
  to_scheduler(me, true);
  __builtin_unreachable();
}

void resume(uint32_t i) {
  Fiber& f = g_fibers[i];
  g_running = i;
  core = launched.cores[i];
  if (!f.stack) {
    f.stack = g_stacks.take();
    emu::unpoison(f.stack, kStackBytes);
    f.pointer = emu::fresh_frame(f.stack, kStackBytes, &fiber_main);
  }
  emu::leave_stack(&g_scheduler_sanitizer, f.stack, kStackBytes);
  emu_switch_stack(&g_scheduler, f.pointer);
  emu::arrive_on_stack(g_scheduler_sanitizer);
  if (g_fibers[i].done) {
    g_stacks.give(g_fibers[i].stack);
    g_fibers[i].stack = nullptr;
  }
}

void add_core(bool vector, int64_t block, int64_t sub) {
  const uint32_t i = static_cast<uint32_t>(launched.cores.size());
  if (i == g_cores.size()) g_cores.push_back(std::make_unique<Core>());
  g_cores[i]->begin(i, vector, block, sub);
  launched.cores.push_back(g_cores[i].get());
  g_fibers.emplace_back();
}

void report_deadlock() {
  std::string text = "rule 12 (" + std::string(rule_name(12)) + "): deadlock:";
  for (uint32_t i = 0; i < g_fibers.size(); ++i)
    if (!g_fibers[i].done) {
      const Core& c = *launched.cores[i];
      text += std::string(c.vector ? " vector" : " cube") + " core " + std::to_string(c.block) + " waits for " +
              g_fibers[i].waits_for + ";";
    }
  add_report(text + " [" + launched.kernel + "]");
}

}  // namespace

void run_cores(const Kernel& kernel) {
  const FaultHandler faults;
  g_kernel = &kernel;
  g_failed = false;
  g_fibers.clear();
  g_fibers.reserve(4096);  // references stay valid while cores are added
  add_core(true, 0, 0);    // it names the kernel type, and the others come then
  forget_cross_core();
  std::vector<uint32_t> order;
  for (;;) {
    bool moved = false, left = false;
    order.clear();
    for (uint32_t i = 0; i < g_fibers.size(); ++i)
      if (!g_fibers[i].done) order.push_back(i);
    if (config.order == kShuffled) std::shuffle(order.begin(), order.end(), random_numbers());
    for (const uint32_t i : order) {
      Fiber& f = g_fibers[i];
      core = launched.cores[i];
      if (f.ready && !f.ready(f.context)) {
        left = true;
        continue;
      }
      f.ready = nullptr;
      moved = true;
      resume(i);
      if (g_failed) break;
      left = left || !g_fibers[i].done || g_fibers.size() > order.size();
    }
    if (g_failed || !left) break;
    if (!moved) {
      report_deadlock();
      g_failed = true;
      break;
    }
  }
  if (g_failed) g_stacks.give_all();
  else check_cross_core_ended();
  core = nullptr;
}

void abandon_core() {
  g_failed = true;
  g_fibers[g_running].done = true;
  to_scheduler(g_fibers[g_running], true);
  __builtin_unreachable();
}

void wait_until(bool (*ready)(const void*), const void* context, const char* what) {
  if (ready(context)) return;
  Fiber& me = g_fibers[g_running];
  me.ready = ready, me.context = context, me.waits_for = what;
  ++core->counters.stalls;
  to_scheduler(me, false);
}

void set_kernel_type(KernelType type) {
  if (launched.type == type) return;
  if (launched.type != KernelType::None) violate(13, "KERNEL_TASK_TYPE_DEFAULT", "another type was set before");
  launched.type = type;
  const bool mixed = type != KernelType::AivOnly && type != KernelType::AicOnly;
  if (mixed && !g_kernel->has_workspace)
    violate(13, "KERNEL_TASK_TYPE_DEFAULT", "a mixed type needs a workspace of more than 0 bytes");
  const int64_t blocks = launched.blocks;
  const bool cube_only = type == KernelType::AicOnly || type == KernelType::MixAic10;
  if (cube_only) core->vector = false;
  const int64_t per_block = type == KernelType::MixAic12 ? 2 : 1;
  for (int64_t i = 1; i < blocks * per_block; ++i) add_core(!cube_only, i, i % per_block);
  if (type == KernelType::MixAic11 || type == KernelType::MixAic12)
    for (int64_t i = 0; i < blocks; ++i) add_core(false, i, 0);
}

}  // namespace ascend_emu
