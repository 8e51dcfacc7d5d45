// SPDX-License-Identifier: Apache-2.0
#include <algorithm>
#include <cstdio>
#include <set>
#include <string>

#include "memory.h"
#include "shadow.h"

namespace cuda_emu::shadow {
namespace {

std::vector<std::pair<uint32_t, uint64_t>> g_blocks;  // of this launch, as they ran: base, index in the grid
std::set<std::pair<uint32_t, uint32_t>> g_pairs;           // of places in the code that have been reported
std::set<std::string> g_lines;                             // the same, by lines of the source

std::string verb(Access kind) {
  switch (kind) {
    case Access::kRead:
    case Access::kBulkRead: return "read";
    case Access::kWrite: return "write";
    case Access::kAtomic: return "atomic";
    case Access::kBulk:
    case Access::kLanded: return "cp.async.bulk";
    default: return "cp.async";
  }
}

std::string line_of(const Stamp& stamp) {  // the pc is a return address
  return source_of(reinterpret_cast<const void*>(state.module + stamp.pc - 1));
}

std::string triple(uint64_t x, uint64_t y, uint64_t z) {
  return "(" + std::to_string(x) + "," + std::to_string(y) + "," + std::to_string(z) + ")";
}

std::string thread_of(const Stamp& stamp) {
  const dim3 d = state.block->dim;
  const uint32_t t = stamp.thread();
  return "thread " + triple(t % d.x, t / d.x % d.y, t / d.x / d.y);
}

std::string block_of(const Stamp& stamp) {
  auto it = std::lower_bound(g_blocks.begin(), g_blocks.end(), stamp.epoch,
                             [](const auto& block, uint32_t epoch) { return block.first < epoch; });
  const uint64_t b = it == g_blocks.begin() ? 0 : (it - 1)->second;
  const dim3 g = state.block->grid;
  return "block " + triple(b % g.x, b / g.x % g.y, b / g.x / g.y) + " ";
}

std::string block_if_other(const Stamp& stamp) { return of_running_block(stamp.epoch) ? "" : block_of(stamp); }

std::string place(Space space, uintptr_t address) {
  if (space == Space::kDynamic && address - state.dynamic < state.dynamic_size)
    return "offset " + std::to_string(address - state.dynamic) + " of dynamic shared memory";
  if (space == Space::kDynamic) return "dynamic shared memory of another block of the cluster";
  if (space == Space::kStatic) return "static shared memory";
  char text[64];
  std::snprintf(text, sizeof text, "global memory at %#zx", static_cast<size_t>(address));
  const std::string near = describe_address(reinterpret_cast<const void*>(address));
  return near.empty() ? text : text + (": " + near);
}

// One report for each pair of lines: a line may stand for many places in the code.
void report(const Stamp& now, const Stamp& before, const std::string& line, const std::string& text) {
  state.reported = true;
  if (g_pairs.emplace(now.pc, before.pc).second && g_lines.insert(line).second)
    add_report(describe(*local.thread) + ": " + text);
}
bool is_known(const Stamp& now, const Stamp& before) { return g_pairs.count({now.pc, before.pc}) != 0; }

}  // namespace

void begin_race_reports() {
  g_blocks.clear();
  g_pairs.clear();
  g_lines.clear();
}

void add_block(uint32_t base, uint64_t linear) { g_blocks.emplace_back(base, linear); }

void report_race(Space space, uintptr_t address, Access kind, const Stamp& now, const Stamp& before,
                 Access before_kind) {
  if (is_known(now, before)) return;
  const bool same_block = of_running_block(before.epoch), same_cluster = before.epoch > state.cluster_base;
  const char* missing = !same_block ? (same_cluster ? "no cluster_sync lies between them" : "nothing orders the blocks")
                        : before.warp() == now.warp() ? "neither a barrier nor a __syncwarp lies between them"
                                                      : "no barrier lies between them";
  const std::string here = verb(kind) + line_of(now), there = line_of(before);
  report(now, before, here + " " + verb(before_kind) + there,
         "race: " + here + " after the " + verb(before_kind) + " of " + (same_block ? "" : block_of(before)) + thread_of(before) + there + "; " + missing + "; " +
         place(space, address));
}

void report_unwritten(Space space, uintptr_t address, const Stamp& now) {
  if (is_known(now, Stamp{})) return;
  const std::string text = "read of what nothing has written" + line_of(now);
  report(now, Stamp{}, text, text + "; " + place(space, address));
}

void report_in_flight(Space space, uintptr_t address, Access kind, const Stamp& now, const Stamp& copy, Access copy_kind) {
  if (is_known(now, copy)) return;
  const std::string here = verb(kind) + line_of(now), there = line_of(copy);
  report(now, copy, here + there, here + " where the " + verb(copy_kind) + " of " + block_if_other(copy) +
         thread_of(copy) + there + " is still in flight; " + place(space, address));
}

void report_landed(Space space, uintptr_t address, Access kind, const Stamp& now, const Stamp& copy) {
  if (is_known(now, copy)) return;
  const std::string here = verb(kind) + line_of(now), there = line_of(copy);
  report(now, copy, here + there, "race: " + here + " after the cp.async.bulk of " + block_if_other(copy) +
         thread_of(copy) + there + "; no mbarrier_wait lies between them; " + place(space, address));
}

void report_no_proxy_fence(Space space, uintptr_t address, const Stamp& now, const Stamp& before) {
  if (is_known(now, before)) return;
  const std::string here = verb(Access::kBulk) + line_of(now), there = line_of(before);
  report(now, before, here + there, here + " over the write of " + block_if_other(before) + thread_of(before) + there +
         ", which no fence.proxy.async followed; " + place(space, address));
}

}  // namespace cuda_emu::shadow
