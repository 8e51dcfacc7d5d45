// SPDX-License-Identifier: Apache-2.0
// Finds, loads and remembers the backend plug-ins that stand beside this library.
#include "backends.h"

#include <dlfcn.h>
#include <unistd.h>

#include <atomic>
#include <chrono>
#include <cstdlib>
#include <cstring>
#include <mutex>

#include "build_info.h"
#include "cpu_level.h"
#include "thread_pool.h"

namespace dsv4 {
namespace {

const HostServices kHost{kPluginAbi, &parallel_for, &num_threads};

std::string library_dir() {
  Dl_info info;
  if (!dladdr(reinterpret_cast<const void*>(&kHost), &info) || !info.dli_fname) return ".";
  std::string path = info.dli_fname;
  const size_t slash = path.rfind('/');
  return slash == std::string::npos ? "." : path.substr(0, slash);
}

// Emulators have flavours: DSV4SPEC_EMU_FLAVOUR=asan takes lib/emu_asan's library instead of the one beside this.
bool is_emulator(const std::string& stem) { return stem.size() > 4 && stem.compare(stem.size() - 4, 4, "_emu") == 0; }
std::string flavour() {
  const char* name = std::getenv("DSV4SPEC_EMU_FLAVOUR");
  return name ? name : "";
}
std::string path_of(const std::string& stem) {
  const std::string folder = is_emulator(stem) && !flavour().empty() ? "/emu_" + flavour() : "";
  return library_dir() + folder + "/lib" + stem + ".so";
}
// Why this process cannot have that flavour.
std::string flavour_problem(const std::string& stem) {
  if (!is_emulator(stem) || flavour().empty()) return "";
  if (flavour() != "asan" && flavour() != "shadow")
    return "DSV4SPEC_EMU_FLAVOUR: expected asan or shadow, got " + flavour();
  // Its run time ends a process that it did not start with.
  if (flavour() == "asan" && !dlsym(RTLD_DEFAULT, "__asan_init"))
    return "DSV4SPEC_EMU_FLAVOUR=asan: expected libasan.so in LD_PRELOAD";
  return "";
}
bool is_there(const std::string& stem) { return access(path_of(stem).c_str(), F_OK) == 0; }

// "not built: REASON" of a plug-in's line in the build summary ("NAME: not built: ...", "cpu LEVEL: not built: ...").
std::string not_built(const std::string& stem) {
  std::string name = stem.substr(std::strlen("dsv4spec_"));
  if (name.compare(0, 4, "cpu_") == 0) name[3] = ' ';
  if (is_emulator(stem) && !flavour().empty()) name += " " + flavour();
  const std::string summary = std::string("\n") + kBuild.summary + "\n", head = "\n" + name + ": ";
  const size_t at = summary.find(head);
  if (at != std::string::npos) {
    const size_t begin = at + head.size();
    const std::string line = summary.substr(begin, summary.find('\n', begin) - begin);
    if (line.compare(0, 9, "not built") == 0) return line;
  } else if (name.compare(0, 4, "cpu ") != 0) {
    return "not built";
  }
  return path_of(stem).substr(library_dir().size() + 1) + " was built, but is missing";
}

// Loads lib<stem>.so and checks that it is of this build.
const BackendTable* load_plugin(const std::string& stem, std::string* why) {
  *why = flavour_problem(stem);
  if (!why->empty()) return nullptr;
  const std::string path = path_of(stem);
  if (!is_there(stem)) {
    *why = not_built(stem);
    return nullptr;
  }
  void* handle = dlopen(path.c_str(), RTLD_NOW | RTLD_LOCAL);
  if (!handle) {
    *why = dlerror();
    return nullptr;
  }
  auto entry = reinterpret_cast<BackendEntryFn>(dlsym(handle, "dsv4_backend_entry"));
  const BackendTable* table = entry ? entry(&kHost) : nullptr;
  if (!table || table->abi != kPluginAbi) {
    *why = path + " speaks another plug-in ABI; rebuild dsv4spec (pip install .)";
    return nullptr;
  }
  if (std::strcmp(table->build_hash, kBuild.source_hash) != 0) {
    *why = path + " was built from sources " + table->build_hash + ", this library from " + kBuild.source_hash +
           "; rebuild dsv4spec (pip install .)";
    return nullptr;
  }
  if (const char* reason = table->why_not ? table->why_not() : nullptr) {
    *why = reason;
    return nullptr;
  }
  return table;
}

struct Slot {
  const char* name;
  std::once_flag once;
  const BackendTable* table = nullptr;
  std::string why;

  explicit Slot(const char* n) : name(n) {}
  void load() {
    std::call_once(once, [this] {
      if (std::strcmp(name, "cpu") == 0) table = load_cpu(&why);
      else table = load_plugin(std::string("dsv4spec_") + name, &why);
    });
  }
  // The best instruction-set level that this machine runs and that was built; DSV4SPEC_CPU_LEVEL names another.
  static const BackendTable* load_cpu(std::string* why) {
    *why = refused_threads();
    if (!why->empty()) return nullptr;
    const char* forced = std::getenv("DSV4SPEC_CPU_LEVEL");
    std::string reasons;
    for (const CpuLevel& level : cpu_levels()) {
      if (forced && *forced && std::strcmp(forced, level.name) != 0) continue;
      if (!level.runs_here) {
        if (forced && *forced) *why = std::string("DSV4SPEC_CPU_LEVEL=") + forced + ": this CPU lacks it";
        continue;
      }
      const std::string stem = std::string("dsv4spec_cpu_") + level.name;
      if (is_there(stem)) return load_plugin(stem, why);  // a broken or stale level is no reason for a lesser one
      reasons += (reasons.empty() ? "" : "; ") + (std::string(level.name) + " " + not_built(stem));
    }
    if (why->empty())
      *why = !reasons.empty() ? reasons
             : forced && *forced ? std::string("DSV4SPEC_CPU_LEVEL=") + forced + " is not one of " + cpu_level_names()
                             : "no CPU level was built";
    return nullptr;
  }
};

Slot g_slots[] = {Slot("cpu"), Slot("cuda"), Slot("npu"), Slot("cuda_emu"), Slot("ascend_emu")};

constexpr uint64_t kWorkspaceAlignment = 64;
constexpr int kByDevice = -1, kReference = -2;
std::atomic<int> g_route{kByDevice};
thread_local bool t_check_only = false;
thread_local bool t_timing = false;
thread_local int64_t t_kernel_ns = 0;

bool launches_nothing() { return t_check_only || g_route.load(std::memory_order_relaxed) == kReference; }

Slot* find(const char* name) {
  for (Slot& s : g_slots)
    if (std::strcmp(s.name, name) == 0) return &s;
  return nullptr;
}

Slot& loaded(const char* asker, const char* name) {
  Slot* slot = find(name);
  if (!slot)
    throw Refusal(DSV4_INVALID_ARGUMENT, std::string(asker) + ": name: expected cpu, cuda, npu, cuda_emu, ascend_emu or "
                                                              "reference, got " + name);
  slot->load();
  if (!slot->table)
    throw Refusal(DSV4_BACKEND_UNAVAILABLE, std::string(asker) + ": backend " + name + ": " + slot->why);
  return *slot;
}

Slot& slot_of(const char* op, const DLDevice& device) {
  const int route = g_route.load(std::memory_order_relaxed);
  if (route >= 0) return g_slots[route];
  switch (device.device_type) {
    case kDLCPU: return g_slots[0];
    case kDLCUDA: return g_slots[1];
    case kDLExtDev: return g_slots[2];
    default:
      throw Refusal(DSV4_INVALID_ARGUMENT, std::string(op) + ": device: expected cpu, cuda or npu, got " +
                                               device_name(device));
  }
}

const BackendTable& table_for(OpId id, const char* op, const Checker& checked) {
  const DLDevice& device = checked.device();
  Slot& slot = slot_of(op, device);
  slot.load();
  if (!slot.table)
    throw Refusal(DSV4_BACKEND_UNAVAILABLE, std::string(op) + ": backend " + slot.name + ": " + slot.why);
  if (!slot.table->launch[id])
    throw Refusal(DSV4_NOT_SUPPORTED, std::string(op) + ": backend " + slot.name +
                                          " has no kernel for this op; ask for the reference by name "
                                          "(use_backend, --missing reference)");
  if (device.device_type != slot.table->device_type) {  // a routed backend; the memory is not its own
    const DLDevice expected{static_cast<DLDeviceType>(slot.table->device_type), device.device_id};
    throw Refusal(DSV4_INVALID_ARGUMENT, std::string(op) + ": device: expected " + device_name(expected) +
                                             " for backend " + slot.name + ", got " + device_name(device));
  }
  if (const char* half = slot.table->takes_f16[id] ? nullptr : checked.half_argument())
    throw Refusal(DSV4_NOT_SUPPORTED, std::string(op) + ": " + half +
                                          ": expected dtype float32 or bfloat16 on backend " + slot.name +
                                          ", got float16, which no kernel takes there");
  return *slot.table;
}

int32_t timed(LaunchFn kernel, const void* params, const Launch& surroundings) {
  using Clock = std::chrono::steady_clock;
  const Clock::time_point start = Clock::now();
  const int32_t status = kernel(params, &surroundings);
  t_kernel_ns += std::chrono::nanoseconds(Clock::now() - start).count();
  return status;
}

}  // namespace

void launch(OpId id, const char* op, const Checker& checked, const void* params, dsv4_stream stream, void* workspace,
            uint64_t workspace_size) {
  if (launches_nothing()) return;
  const BackendTable& table = table_for(id, op, checked);
  const uint64_t needed = table.workspace[id] ? table.workspace[id](params) : 0;
  if (workspace_size < needed)
    throw Refusal(DSV4_INVALID_ARGUMENT, std::string(op) + ": workspace: expected at least " +
                                             std::to_string(needed) + " bytes, got " +
                                             std::to_string(workspace_size));
  if (needed && (!workspace || reinterpret_cast<uintptr_t>(workspace) % kWorkspaceAlignment))
    throw Refusal(DSV4_INVALID_ARGUMENT, std::string(op) + ": workspace: expected memory aligned to " +
                                             std::to_string(kWorkspaceAlignment) + " bytes, got " +
                                             (workspace ? "memory that is not" : "NULL"));
  char text[1024] = "";  // an emulator's report names places in the source
  const Launch surroundings{stream, checked.device().device_id, workspace, text, sizeof text};
  const int32_t status = t_timing ? timed(table.launch[id], params, surroundings) : table.launch[id](params, &surroundings);
  if (status != DSV4_OK)
    throw Refusal(static_cast<dsv4_status>(status), std::string(op) + ": " + (*text ? text : "launch failed"));
}

uint64_t workspace_bytes(OpId id, const char* op, const Checker& checked, const void* params) {
  if (launches_nothing()) return 0;
  const BackendTable& table = table_for(id, op, checked);
  return table.workspace[id] ? table.workspace[id](params) : 0;
}

bool check_only(bool on) {
  const bool before = t_check_only;
  t_check_only = on;
  return before;
}

int64_t time_kernels(bool on) {
  const int64_t taken = t_kernel_ns;
  t_timing = on;
  t_kernel_ns = 0;
  return taken;
}

void use_backend(const char* name) {
  if (!name) return g_route.store(kByDevice);
  if (std::strcmp(name, "reference") == 0) return g_route.store(kReference);
  g_route.store(static_cast<int>(&loaded("use_backend", name) - g_slots));
}

void check_backend(const char* name, const char* op) {
  int id = 0;
  while (op && id < kOpCount && std::strcmp(op_desc(static_cast<OpId>(id))->name, op) != 0) ++id;
  if (id == kOpCount)
    throw Refusal(DSV4_INVALID_ARGUMENT, std::string("check_backend: op: expected the name of an op, got ") + op);
  if (name && std::strcmp(name, "reference") == 0) return;
  const Slot& slot = loaded("check_backend", name ? name : "NULL");
  if (op && !slot.table->launch[id])
    throw Refusal(DSV4_NOT_SUPPORTED, std::string("check_backend: backend ") + name + " has no kernel for " + op);
}

std::vector<BackendState> backend_states() {
  std::vector<BackendState> out;
  for (Slot& s : g_slots) {
    s.load();
    out.push_back(BackendState{s.name, s.table, s.why});
  }
  return out;
}

}  // namespace dsv4

extern "C" const dsv4::Reflection* dsv4_reflection(void) {
  static const dsv4::Reflection reflection{dsv4::kBuild.source_hash, &dsv4::op_desc, &dsv4::backend_states,
                                           &dsv4::cpu_levels, &dsv4::check_only, &dsv4::time_kernels};
  return &reflection;
}
