// SPDX-License-Identifier: Apache-2.0
// Global memory: hazards by the bytes of 64-byte lines, across pipes and cores, and the scalar unit's data cache.
#include "global_memory.h"

#include <cstring>
#include <memory>
#include <vector>

#include "core.h"

namespace ascend_emu {
namespace {

constexpr uint64_t kLineBytes = 64;

struct Record {
  uint64_t mask;  // bytes of the line
  uint32_t time, seq;
  uint16_t core;
  uint8_t pipe;
  bool write, atomic;  // atomic writes need no order among themselves
};
struct Cached {    // a line in the data cache of a core's scalar unit
  uint32_t since;  // 0: it is not there
  uint64_t dirty;  // bytes that SetValue left there
  uint32_t core;
};
struct Rest {      // what few lines need
  std::vector<Record> more;
  std::vector<Cached> cached;
};
struct Line {
  uint64_t key = 0;  // address / 64 + 1; 0: free
  uint32_t launch = 0;
  uint32_t count = 0;
  Record few[3];
  std::unique_ptr<Rest> rest;

  Record& at(uint32_t i) { return i < 3 ? few[i] : rest->more[i - 3]; }
  void add(const Record& r) {
    if (count < 3) {
      few[count++] = r;
      return;
    }
    if (!rest) rest = std::make_unique<Rest>();
    if (count == 3) rest->more.clear();
    rest->more.push_back(r);
    ++count;
  }
};

struct Lines {
  std::vector<Line> table = std::vector<Line>(4096);
  size_t used = 0;
  uint32_t launch = 0;

  Line& find(uint64_t key) {
    for (size_t i = hash(key);; i = (i + 1) & (table.size() - 1)) {
      Line& line = table[i];
      if (line.launch == launch && line.key == key) return line;
      if (line.launch == launch) continue;
      if (used * 2 >= table.size()) {
        grow();
        return find(key);
      }
      ++used;
      line.key = key, line.launch = launch, line.count = 0;
      if (line.rest) line.rest->cached.clear();
      return line;
    }
  }
  // Neighbours stay neighbours.
  size_t hash(uint64_t key) const { return (key + (key >> 12) * 0x9e3779b97f4a7c15ull) & (table.size() - 1); }
  void grow() {
    std::vector<Line> old = std::move(table);
    table = std::vector<Line>(old.size() * 4);
    for (Line& line : old) {
      if (line.launch != launch) continue;
      size_t i = hash(line.key);
      while (table[i].launch == launch) i = (i + 1) & (table.size() - 1);
      table[i] = std::move(line);
    }
  }
};
Lines& lines() {
  static Lines l;
  return l;
}
uint32_t g_time = 0;  // of accesses, in the order of issue

Cached& cached_by(Line& line, uint32_t core_index) {
  if (!line.rest) line.rest = std::make_unique<Rest>();
  for (Cached& c : line.rest->cached)
    if (c.core == core_index) return c;
  line.rest->cached.push_back({0, 0, core_index});
  return line.rest->cached.back();
}

bool ordered(const Record& r) {
  const Clock& know = core->pipes[core->op_pipe].know;
  if (r.core == core->index) return know.own[r.pipe] >= r.seq;
  if (know.remote < 0) return false;
  const auto& remote = launched.remotes[static_cast<size_t>(know.remote)];
  const size_t i = r.core * size_t{8} + r.pipe;
  return i < remote.size() && remote[i] >= r.seq;
}

std::string describe(const Record& r) {
  const Core* other = launched.cores[r.core];
  const OpInfo& op = other->pipes[r.pipe].log[r.seq];
  return std::string(op.name) + " (" + kPipeNames[r.pipe] + ")" + where(op.pc) +
         (r.core == core->index ? std::string()
                                : std::string(" of ") + (other->vector ? "vector" : "cube") + " core " +
                                      std::to_string(other->block));
}

std::string core_name(const Core& c) {
  return std::string(c.vector ? "vector" : "cube") + " core " + std::to_string(c.block);
}

// Rule 11: what stands in a data cache, and in nobody else's sight.
void check_caches(Line& line, uint64_t mask, bool write, const void* address) {
  const bool scalar = core->op_pipe == kS;
  if (!line.rest || line.rest->cached.empty()) return;
  const char* problem = nullptr;
  const Core* other = core;
  for (const Cached& c : line.rest->cached) {
    if (!c.dirty || (scalar && c.core == core->index)) continue;
    if (!write && !(c.dirty & mask)) continue;
    problem = write && scalar ? "two cores write to one line of 64 bytes: the other is"
                              : "it is in a data cache, not cleaned (DataCacheCleanAndInvalid), of";
    other = launched.cores[c.core];
  }
  if (scalar && !write) {
    const Cached& mine = cached_by(line, core->index);
    for (uint32_t i = 0; mine.since > core->cache_emptied && i < line.count; ++i) {
      const Record& r = line.at(i);
      if (!r.write || !(r.mask & mask) || r.time <= mine.since || (r.core == core->index && r.pipe == kS)) continue;
      problem =
          "this core read the line before, and its data cache still has it (DataCacheCleanAndInvalid); written by";
      other = launched.cores[r.core];
    }
  }
  if (!problem || core->hazard_reported) return;
  core->hazard_reported = true;
  char at[32];
  std::snprintf(at, sizeof at, "%p", address);
  add_report("rule 11 (" + std::string(rule_name(11)) + "): " + core->op_name + " (" + kPipeNames[core->op_pipe] +
             ") of " + "global memory " + at + where(core->op_pc) + ": " + problem + " " + core_name(*other) + " [" +
             launched.kernel + ", " + core_name(*core) + "]");
}

void report(const char* kind, const void* address, const Record& r, bool same_line_only) {
  if (core->hazard_reported) return;
  core->hazard_reported = true;
  const int rule = r.core == core->index ? 10 : same_line_only ? 11 : 12;
  if (same_line_only) kind = "two cores write to one line of 64 bytes: write after write";
  char at[32];
  std::snprintf(at, sizeof at, "%p", address);
  add_report("rule " + std::to_string(rule) + " (" + rule_name(rule) + "): " + kind + " hazard on global memory " +
             at + ": " + describe(r) + " and " + core->op_name + " (" + kPipeNames[core->op_pipe] + ")" +
             where(core->op_pc) + " are not ordered [" + launched.kernel + ", " + (core->vector ? "vector" : "cube") +
             " core " + std::to_string(core->block) + "]");
}

}  // namespace

void forget_global_memory() {
  Lines& l = lines();
  ++l.launch;
  l.used = 0;
  g_time = 0;
}

void Core::touch_global(const void* address, uint64_t bytes, bool write, bool atomic) {
  if (!bytes) return;
  const std::string outside = describe_outside(address, bytes);
  if (!outside.empty()) violate(19, op_name, "%s of %llu bytes: %s", write ? "a write" : "a read",
                                static_cast<unsigned long long>(bytes), outside.c_str());
  if (!config.check) return;
  const uint32_t seq = pipes[op_pipe].seq;
  ++g_time;
  const uint64_t first = reinterpret_cast<uint64_t>(address), end = first + bytes;
  for (uint64_t line_address = first / kLineBytes * kLineBytes; line_address < end; line_address += kLineBytes) {
    const uint64_t low = line_address < first ? first - line_address : 0;
    const uint64_t high = line_address + kLineBytes > end ? end - line_address : kLineBytes;
    const uint64_t mask = high - low == 64 ? ~0ull : ((1ull << (high - low)) - 1) << low;
    Line& line = lines().find(line_address / kLineBytes + 1);
    check_caches(line, mask, write, reinterpret_cast<const void*>(line_address + low));
    Record* slot = nullptr;  // for this access: an older one of this pipe that it makes superfluous
    for (uint32_t i = 0; i < line.count; ++i) {
      Record& r = line.at(i);
      const bool own = r.core == index && r.pipe == op_pipe;
      if (own && r.seq == seq) {
        if (r.write == write) slot = &r;
        continue;
      }
      // The scalar unit writes back whole lines.
      const bool whole_line = r.core != index && r.write && write && (r.pipe == kS || op_pipe == kS);
      if (!(r.mask & mask) && !whole_line) continue;
      if ((write || r.write) && !(atomic && r.atomic) && !ordered(r))
        report(write ? (r.write ? "write after write" : "write after read") : "read after write",
               reinterpret_cast<const void*>(line_address + low), r, !(r.mask & mask));
    }
    if (op_pipe == kS) {
      Cached& c = cached_by(line, index);
      if (c.since <= cache_emptied) c.since = g_time;
      if (write && !c.dirty) dirty_lines.push_back(line.key);
      if (write) c.dirty |= mask;
    }
    if (slot) {
      slot->mask |= mask;
      continue;
    }
    for (uint32_t i = 0; i < line.count; ++i) {  // whoever is ordered after this access is so after those
      Record& r = line.at(i);
      if (r.core != index || r.pipe != op_pipe || r.write != write || r.atomic != atomic) continue;
      r.mask &= ~mask;
      if (!r.mask) slot = &r;
    }
    const Record now{mask, g_time, seq, static_cast<uint16_t>(index), op_pipe, write, atomic};
    if (slot) *slot = now;
    else line.add(now);
  }
}

void scalar_read_gm(const void* address, void* value, uint32_t bytes) {
  core->begin_op(kS, "GlobalTensor::GetValue", __builtin_return_address(0));
  if (reinterpret_cast<uintptr_t>(address) % bytes)
    violate(1, "GlobalTensor::GetValue", "expected an address aligned to %u bytes, got %p", bytes, address);
  core->touch_global(address, bytes, false);
  ++core->counters.scalar_global;
  std::memcpy(value, address, bytes);
}

void scalar_write_gm(void* address, const void* value, uint32_t bytes) {
  core->begin_op(kS, "GlobalTensor::SetValue", __builtin_return_address(0));
  if (reinterpret_cast<uintptr_t>(address) % bytes)
    violate(1, "GlobalTensor::SetValue", "expected an address aligned to %u bytes, got %p", bytes, address);
  core->touch_global(address, bytes, true);
  ++core->counters.scalar_global;
  std::memcpy(address, value, bytes);
}

void clean_cache(const void* address, bool entire) {
  core->begin_op(kS, "DataCacheCleanAndInvalid", __builtin_return_address(0));
  const uint64_t only = reinterpret_cast<uint64_t>(address) / kLineBytes + 1;
  auto& dirty = core->dirty_lines;
  size_t kept = 0;
  for (const uint64_t key : dirty) {
    if (entire || key == only) cached_by(lines().find(key), core->index).dirty = 0;
    else dirty[kept++] = key;
  }
  dirty.resize(kept);
  if (entire) core->cache_emptied = g_time;
  else cached_by(lines().find(only), core->index).since = 0;
}

void check_clean() {
  if (!core->dirty_lines.empty())
    violate(11, "end",
            "SetValue of global memory %p stays in the data cache: DataCacheCleanAndInvalid comes after it",
            reinterpret_cast<void*>((core->dirty_lines[0] - 1) * kLineBytes));
}

}  // namespace ascend_emu
