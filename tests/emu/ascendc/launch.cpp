// SPDX-License-Identifier: Apache-2.0
// Launches: all cores of a kernel, and what they did.
#include "launch.h"

#include <map>
#include <memory>
#include <mutex>

#include "core.h"
#include "global_memory.h"

namespace ascend_emu {

void seed_order(uint32_t seed);

namespace {

std::mutex g_run;  // one launch at a time
std::vector<std::unique_ptr<Core>> g_cores;

struct KernelCounters {
  uint64_t launches = 0, blocks = 0, cores = 0;
  Counters sum;
};
std::map<std::string, KernelCounters> g_counters;

void add(Counters& sum, const Counters& c) {
  for (int p = 0; p < kPipes; ++p) sum.bytes[p] += c.bytes[p], sum.instructions[p] += c.instructions[p];
  sum.vector_repeats += c.vector_repeats, sum.scalar_local += c.scalar_local, sum.scalar_global += c.scalar_global;
  sum.cube_macs += c.cube_macs, sum.stalls += c.stalls, sum.barriers += c.barriers;
}

void run_core(const Kernel& kernel, uint32_t i) {
  core = launched.cores[i];
  core->begin(i, true, i, 0);
  kernel.run(kernel.args);
  core->finish();
}

}  // namespace

void Core::finish() {
  drain_all();
  for (int from = 0; from < kPipes; ++from)
    for (int to = 0; to < kPipes; ++to)
      for (int id = 0; id < kEvents; ++id) {
        const Flag& flag = flags[from][to][id];
        if (flag.pending && !flag.of_queue)
          violate(10, "end", "event %s_%s %d was set and never waited for (%s)", kPipeNames[from], kPipeNames[to], id,
                  source_of(flag.pc).c_str());
      }
  for (uint32_t i = 0; i < slot_count; ++i)
    if (slots[i].life == Life::Queued) violate(5, "end", "a tensor is left in a queue (position %u)", slots[i].position);
}

bool launch(const Kernel& kernel) {
  const std::lock_guard<std::mutex> lock(g_run);
  begin_reports();
  if (!config_problem.empty()) {
    add_report(config_problem);
    return false;
  }
  launched.kernel = kernel.name;
  launched.blocks = kernel.blocks;
  launched.type = KernelType::None;
  launched.remotes.clear();
  launched.cores.clear();
  forget_global_memory();
  seed_order(static_cast<uint32_t>(config.seed));
  core = nullptr;
  try {
    if (kernel.blocks < 1 || kernel.blocks > 65535)
      violate(15, "launch", "blocks: expected 1 to 65535, got %u", kernel.blocks);
    for (uint32_t i = 0; i < kernel.blocks; ++i) {
      if (i == g_cores.size()) g_cores.push_back(std::make_unique<Core>());
      launched.cores.push_back(g_cores[i].get());
    }
    KernelCounters& counted = g_counters[kernel.name];
    ++counted.launches;
    counted.blocks = kernel.blocks;
    for (uint32_t i = 0; i < kernel.blocks; ++i) {
      run_core(kernel, i);
      add(counted.sum, core->counters);
    }
  } catch (const Violation&) {
  }
  core = nullptr;
  return reports_of_launch() == 0;
}

int vector_cores() { return static_cast<int>(config.cores); }
int cube_cores() { return static_cast<int>((config.cores + 1) / 2); }

void set_kernel_type(KernelType type) { launched.type = type; }
bool on_vector_core() { return core->vector; }
int64_t block_index() { return core->block; }
int64_t block_count() { return launched.blocks; }
int64_t sub_block_index() { return core->sub; }
int64_t sub_block_count() { return launched.type == KernelType::MixAic12 ? 2 : 1; }
void sync_all(bool) { violate(12, "SyncAll", "not available here yet"); }

std::string counters() {
  const std::lock_guard<std::mutex> lock(g_run);
  std::string json = "{";
  const auto list = [](const uint64_t* values) {
    std::string s = "{";
    for (int p = 0; p < kPipes; ++p)
      s += (p ? ",\"" : "\"") + std::string(kPipeNames[p]) + "\":" + std::to_string(values[p]);
    return s + "}";
  };
  for (const auto& [name, c] : g_counters) {
    if (json.size() > 1) json += ",";
    json += "\"" + name + "\":{\"launches\":" + std::to_string(c.launches) + ",\"blocks\":" + std::to_string(c.blocks) +
            ",\"bytes\":" + list(c.sum.bytes) + ",\"instructions\":" + list(c.sum.instructions) +
            ",\"vector_repeats\":" + std::to_string(c.sum.vector_repeats) +
            ",\"scalar_local\":" + std::to_string(c.sum.scalar_local) +
            ",\"scalar_global\":" + std::to_string(c.sum.scalar_global) +
            ",\"cube_macs\":" + std::to_string(c.sum.cube_macs) + ",\"stalls\":" + std::to_string(c.sum.stalls) +
            ",\"barriers\":" + std::to_string(c.sum.barriers) + "}";
  }
  return json + "}";
}

void clear_counters() {
  const std::lock_guard<std::mutex> lock(g_run);
  g_counters.clear();
}

}  // namespace ascend_emu
