// SPDX-License-Identifier: Apache-2.0
// Launches: all cores of a kernel, and what they did.
#include "launch.h"

#include <cstring>
#include <map>
#include <mutex>

#include "cores.h"
#include "global_memory.h"
#include "random.h"

namespace ascend_emu {

namespace {

std::mutex g_run;  // one launch at a time
thread_local const char* t_scratch = nullptr;
thread_local uint64_t t_scratch_bytes = 0;

struct KernelCounters {
  uint64_t launches = 0, blocks = 0, cores = 0;
  Counters sum;
};
std::map<std::string, KernelCounters> g_counters;

void add(Counters& sum, const Counters& c) {
  for (int p = 0; p < kPipes; ++p) {
    sum.bytes[p] += c.bytes[p], sum.scratch[p] += c.scratch[p];
    sum.instructions[p] += c.instructions[p];
  }
  sum.vector_tenths += c.vector_tenths, sum.vector_repeats += c.vector_repeats;
  sum.scalar_local += c.scalar_local, sum.scalar_global += c.scalar_global;
  sum.cube_macs += c.cube_macs, sum.cube_steps += c.cube_steps, sum.stalls += c.stalls, sum.barriers += c.barriers;
}

}  // namespace

void begin_scratch(void* scratch, uint64_t bytes) {
  if (bytes) std::memset(scratch, 0xff, bytes);
  t_scratch = static_cast<const char*>(scratch), t_scratch_bytes = bytes;
}
void Core::count(Pipe pipe, const void* global, uint64_t bytes) {
  counters.bytes[pipe] += bytes;
  const char* at = static_cast<const char*>(global);
  if (at >= launched.scratch && at < launched.scratch + launched.scratch_bytes) counters.scratch[pipe] += bytes;
}

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
  check_clean();
  for (uint32_t i = 0; i < slot_count; ++i)
    if (slots[i].life == Life::Queued)
      violate(5, "end", "a tensor is left in a queue (position %u)", slots[i].position);
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
  launched.scratch = kernel.has_workspace ? t_scratch : nullptr;
  launched.scratch_bytes = kernel.has_workspace ? t_scratch_bytes : 0;
  launched.remotes.clear();
  launched.cores.clear();
  forget_global_memory();
  random_numbers().seed(static_cast<uint32_t>(config.seed));
  core = nullptr;
  if (kernel.blocks < 1 || kernel.blocks > 1024) {  // the device takes 65535; more than the cores is never needed
    add_report("rule 15 (entry): launch: blocks: expected 1 to 1024, got " + std::to_string(kernel.blocks));
    return false;
  }
  run_cores(kernel);
  KernelCounters& counted = g_counters[kernel.name];
  ++counted.launches;
  counted.blocks = kernel.blocks;
  for (const Core* c : launched.cores) add(counted.sum, c->counters);
  return reports_of_launch() == 0;
}

int vector_cores() { return static_cast<int>(config.cores); }
int cube_cores() { return static_cast<int>((config.cores + 1) / 2); }

bool on_vector_core() { return core->vector; }
int64_t block_index() { return core->block; }
int64_t block_count() { return launched.blocks; }
int64_t sub_block_index() { return core->sub; }
int64_t sub_block_count() { return launched.type == KernelType::MixAic12 ? 2 : 1; }

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
    json +=
        "\"" + name + "\":{\"launches\":" + std::to_string(c.launches) + ",\"blocks\":" + std::to_string(c.blocks) +
        ",\"bytes\":" + list(c.sum.bytes) +
        ",\"scratch\":" + list(c.sum.scratch) + ",\"instructions\":" + list(c.sum.instructions) +
        ",\"vector_repeats\":" + std::to_string(c.sum.vector_repeats) +
        ",\"vector_cycles\":" + std::to_string((c.sum.vector_tenths + 9) / 10) +
        ",\"scalar_local\":" + std::to_string(c.sum.scalar_local) +
        ",\"scalar_global\":" + std::to_string(c.sum.scalar_global) +
        ",\"cube_macs\":" + std::to_string(c.sum.cube_macs) + ",\"cube_steps\":" + std::to_string(c.sum.cube_steps) +
        ",\"stalls\":" + std::to_string(c.sum.stalls) + ",\"barriers\":" + std::to_string(c.sum.barriers) + "}";
  }
  return json + "}";
}

void clear_counters() {
  const std::lock_guard<std::mutex> lock(g_run);
  g_counters.clear();
}

}  // namespace ascend_emu
