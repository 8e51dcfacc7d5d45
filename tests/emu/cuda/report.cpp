// SPDX-License-Identifier: Apache-2.0
#include <cstdarg>
#include <cstdio>

#include "config.h"
#include "worker.h"

namespace cuda_emu {
namespace {

constexpr int kMaxReports = 8;  // of a launch; more of them say nothing new

struct Reports {
  std::mutex mutex;
  std::string text, shown;
  int count = 0;
  bool stale = false;  // the text belongs to an earlier launch
};
Reports& reports() {
  static Reports r;
  return r;
}

}  // namespace

void begin_reports() {
  const std::lock_guard<std::mutex> lock(reports().mutex);
  reports().stale = true;
}

void add_report(const std::string& text) {
  Reports& r = reports();
  const std::lock_guard<std::mutex> lock(r.mutex);
  if (r.stale) r.text.clear(), r.count = 0, r.stale = false;
  if (r.count++ < kMaxReports) r.text += (r.text.empty() ? "" : "\n") + text;
}

void clear_reports() {
  Reports& r = reports();
  const std::lock_guard<std::mutex> lock(r.mutex);
  r.text.clear();
  r.count = 0;
}

const char* report() {
  Reports& r = reports();
  const std::lock_guard<std::mutex> lock(r.mutex);
  r.shown = r.text;
  return r.shown.c_str();
}

std::string with_source(const std::string& text, const std::string& source) {
  return !source.empty() && text.find(source.substr(1)) != std::string::npos ? text : text + source;
}

std::string describe(const Thread& thread) {
  const Block& b = *local.block;
  char text[128];
  std::snprintf(text, sizeof text, ": block (%u,%u,%u) thread (%u,%u,%u)", b.index.x, b.index.y, b.index.z,
                thread.index.x, thread.index.y, thread.index.z);
  return kernel_name(b.kernel) + text;
}

void fail(const char* format, ...) {
  char text[1024];
  va_list values;
  va_start(values, format);
  std::vsnprintf(text, sizeof text, format, values);
  va_end(values);
  add_report(with_source(describe(*local.thread) + ": " + text, source_of_caller()));
  local.worker->abandon_block();
}

}  // namespace cuda_emu
