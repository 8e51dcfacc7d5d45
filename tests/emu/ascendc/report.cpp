// SPDX-License-Identifier: Apache-2.0
// Reports: rules by number and name, the kernel's core, the line of its source.
#include <dlfcn.h>
#include <unwind.h>

#include <cstdarg>
#include <cstdio>
#include <cstring>
#include <map>
#include <mutex>

#include "core.h"

namespace ascend_emu {
namespace {

constexpr uint32_t kMaxReports = 8;  // of a launch; more of them say nothing new

struct Reports {
  std::mutex mutex;
  std::string text, shown;
  uint32_t count = 0;
  bool stale = false;
};
Reports& reports() {
  static Reports r;
  return r;
}

bool in_this_module(const void* pc, Dl_info* info) {
  Dl_info mine{};
  return dladdr(pc, info) && dladdr(reinterpret_cast<const void*>(&rule_name), &mine) && info->dli_fname &&
         info->dli_fbase == mine.dli_fbase;
}

// "path/file.cpp:12": a kernel's, or the emulator's own?
bool is_kernel_source(char* line) {
  line[std::strcspn(line, " \n")] = 0;
  const char* folder = std::strstr(line, "/kernels/ascendc/");
  if (!folder) folder = std::strstr(line, "/emu/ascendc/selftest/");
  return folder && std::strchr(line, ':');
}

struct Trace {
  std::string source;
  int depth = 0;
};
_Unwind_Reason_Code visit_frame(_Unwind_Context* context, void* data) {
  Trace& trace = *static_cast<Trace*>(data);
  const uintptr_t pc = _Unwind_GetIP(context);
  if (!pc || ++trace.depth > 16) return _URC_END_OF_STACK;
  trace.source = source_of(reinterpret_cast<const void*>(pc));
  return trace.source.empty() ? _URC_NO_REASON : _URC_END_OF_STACK;
}

}  // namespace

const char* rule_name(int rule) {
  static const char* const names[] = {
      "", "alignment", "DataCopy", "DataCopyPad", "memory budget", "queues", "vector iteration", "data types",
      "ReduceSum", "Cast", "pipes and flags", "data cache", "cross-core", "kernel type", "block index", "entry",
      "workspace", "cube", "never written", "bounds"};
  return rule > 0 && rule < static_cast<int>(sizeof names / sizeof *names) ? names[rule] : "";
}

void begin_reports() {
  const std::lock_guard<std::mutex> lock(reports().mutex);
  reports().stale = true;
  reports().count = 0;
}
uint32_t reports_of_launch() { return reports().count; }

void add_report(const std::string& text) {
  Reports& r = reports();
  const std::lock_guard<std::mutex> lock(r.mutex);
  if (r.stale) r.text.clear(), r.stale = false;
  if (r.count++ < kMaxReports) r.text += (r.text.empty() ? "" : "\n") + text;
}

void clear_reports() {
  const std::lock_guard<std::mutex> lock(reports().mutex);
  reports().text.clear();
  reports().count = 0;
}

const char* report() {
  Reports& r = reports();
  const std::lock_guard<std::mutex> lock(r.mutex);
  r.shown = r.text;
  return r.shown.c_str();
}

std::string describe_core() {
  if (!core) return launched.kernel;
  return std::string(launched.kernel) + ", " + (core->vector ? "vector" : "cube") + " core " +
         std::to_string(core->vector ? core->block : core->index);
}

void violate(int rule, const char* api, const char* format, ...) {
  char text[1024];
  va_list values;
  va_start(values, format);
  std::vsnprintf(text, sizeof text, format, values);
  va_end(values);
  const std::string source = source_of_caller();
  add_report("rule " + std::to_string(rule) + " (" + rule_name(rule) + "): " + api + ": " + text + " [" +
             describe_core() + (source.empty() ? "" : ", " + source) + "]");
  throw Violation("rule");
}

std::string source_of(const void* pc) {
  static std::mutex mutex;
  static std::map<const void*, std::string> known;
  const std::lock_guard<std::mutex> lock(mutex);
  const auto it = known.find(pc);
  if (it != known.end()) return it->second;
  std::string& text = known[pc];
  Dl_info info{};
  if (!pc || !in_this_module(pc, &info)) return text;
  char command[1024];
  std::snprintf(command, sizeof command, "exec addr2line -i -e '%s' %#tx 2>/dev/null", info.dli_fname,
                static_cast<const char*>(pc) - static_cast<const char*>(info.dli_fbase) - 1);  // the call itself
  FILE* pipe = popen(command, "r");
  if (!pipe) return text;
  char line[1024];
  std::string before;
  for (int frames = 0; std::fgets(line, sizeof line, pipe);) {
    if (!is_kernel_source(line) || frames == 2) continue;
    const std::string name = std::strrchr(line, '/') + 1;
    if (name == before) continue;
    before = name;
    text += (frames++ ? ", from " : "") + name;
  }
  pclose(pipe);
  return text;
}

std::string source_of_caller() {
  Trace trace;
  _Unwind_Backtrace(&visit_frame, &trace);
  return trace.source;
}

}  // namespace ascend_emu
