// SPDX-License-Identifier: Apache-2.0
// Local memories of a core: hazards by 32-byte blocks, bytes never written, bounds, and the scalar unit's accesses.
#include <sys/mman.h>

#include <cstring>
#include <new>

#include "core.h"

namespace ascend_emu {

const char* const kSpaceNames[] = {"UB", "L1", "L0A", "L0B", "L0C", "BT", "FB"};

namespace {
void* map_zeros(size_t bytes) {
  void* p = mmap(nullptr, bytes, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE, -1, 0);
  if (p == MAP_FAILED) throw std::bad_alloc();
  return p;
}
}  // namespace

Core::Core() {
  for (int s = 0; s < kSpaces; ++s) {
    memory[s] = static_cast<char*>(map_zeros(kSpaceBytes[s]));
    shadow[s] = static_cast<Shadow*>(map_zeros(kSpaceBytes[s] / kBlockBytes * sizeof(Shadow)));
  }
}

void Core::begin(uint32_t number, bool is_vector, int64_t block_number, int64_t sub_number) {
  index = number, vector = is_vector, block = block_number, sub = sub_number;
  for (uint32_t& u : used) u = 0;
  for (PipeState& p : pipes) {
    p.seq = 0, p.know = Clock{}, p.head = 0;
    p.log.resize(1);
    p.queue.clear();
  }
  for (auto& row : flags)
    for (auto& cell : row)
      for (Flag& f : cell) f = Flag{};
  slot_count = 0;
  for (uint32_t& n : position_buffers) n = 0;
  pipe_object = nullptr;
  running.name = nullptr;
  mask[0] = mask[1] = ~0ull;
  counter_mode = false;
  atomic = Type::none;
  last_small_product = 0;
  counters = Counters{};
  dirty_lines.clear();
  cache_emptied = 0;
  for (int p = 0; p < kPipes; ++p) marks_issued[p] = marks_done[p] = 0;
}

std::string where(const void* pc) {
  const std::string source = source_of(pc);
  return source.empty() ? "" : " at " + source;
}

__attribute__((cold)) void Core::report_hazard(const char* kind, Space space, uint32_t address, Pipe other,
                                               uint32_t other_seq) {
  if (hazard_reported) return;  // one an instruction
  hazard_reported = true;
  const OpInfo& earlier = pipes[other].log[other_seq];
  char text[512];
  std::snprintf(text, sizeof text, "%s hazard on %s+%u: %s (%s)%s and %s (%s)%s are not ordered", kind,
                kSpaceNames[space], address, earlier.name, kPipeNames[other], where(earlier.pc).c_str(), op_name,
                kPipeNames[op_pipe], where(op_pc).c_str());
  std::string report = std::string("rule 10 (") + rule_name(10) + "): " + text + "; needs " +
                       (other == op_pipe ? std::string("PipeBarrier<PIPE_") + kPipeNames[other] + ">"
                                         : std::string(kPipeNames[other]) + "_" + kPipeNames[op_pipe]) +
                       " [" + launched.kernel + ", " + (vector ? "vector" : "cube") + " core " +
                       std::to_string(block) + "]";
  add_report(report);
}

__attribute__((cold)) void Core::report_unwritten(Space space, uint32_t first, uint32_t address, uint32_t bytes) {
  if (hazard_reported) return;
  hazard_reported = true;
  add_report("rule 18 (" + std::string(rule_name(18)) + "): " + op_name + " reads " + kSpaceNames[space] + "+" +
             std::to_string(first) + ", byte " + std::to_string(first - address) + " of " + std::to_string(bytes) +
             ", which nothing has written" + where(op_pc) + " [" + launched.kernel + ", " +
             (vector ? "vector" : "cube") + " core " + std::to_string(block) + "]");
}

void Core::touch(Space space, uint32_t address, uint32_t bytes, bool write, bool must_be_written) {
  if (!bytes || !config.check) return;
  const PipeState& me = pipes[op_pipe];
  const uint32_t* know = me.know.own;
  const uint32_t seq = me.seq, end = address + bytes;
  for (uint32_t b = address / kBlockBytes; b * kBlockBytes < end; ++b) {
    Shadow& s = shadow[space][b];
    const uint32_t low = b * kBlockBytes < address ? address - b * kBlockBytes : 0;
    const uint32_t high = (b + 1) * kBlockBytes > end ? end - b * kBlockBytes : kBlockBytes;
    const uint32_t bits = (high - low == 32 ? ~0u : ((1u << (high - low)) - 1) << low);
    const bool same_write = s.write_pipe == op_pipe && s.write_seq == seq;
    for (uint32_t left = write ? s.readers : 0; left; left &= left - 1) {
      const uint32_t p = static_cast<uint32_t>(__builtin_ctz(left));
      if (know[p] < s.read_seq[p] && !(p == op_pipe && s.read_seq[p] == seq))
        report_hazard("write after read", space, b * kBlockBytes, static_cast<Pipe>(p), s.read_seq[p]);
    }
    if (s.write_seq && know[s.write_pipe] < s.write_seq && !same_write)
      report_hazard(write ? "write after write" : "read after write", space, b * kBlockBytes,
                    static_cast<Pipe>(s.write_pipe), s.write_seq);
    if (!write) {
      if (must_be_written && (s.written & bits) != bits)
        report_unwritten(space, b * kBlockBytes + static_cast<uint32_t>(__builtin_ctz(~s.written & bits)), address,
                         bytes);
      s.read_seq[op_pipe] = seq;
      s.readers |= static_cast<uint8_t>(1u << op_pipe);
      continue;
    }
    s.readers = 0;
    s.written |= bits;
    s.write_pipe = op_pipe;
    s.write_seq = seq;
  }
}

void check_slice(const char* api, const Slice& s) {
  if (s.slot >= core->slot_count || core->slots[s.slot].begin != s.begin || core->slots[s.slot].space != s.space)
    violate(5, api, "a LocalTensor that no buffer of this core stands behind");
  const Slot& slot = core->slots[s.slot];
  if (slot.lives != s.life || slot.life == Life::Free)
    violate(5, api, "a LocalTensor after its FreeTensor (buffer at %s+%u)", kSpaceNames[s.space], s.begin);
  if (slot.life == Life::Queued)
    violate(5, api, "a LocalTensor between EnQue and DeQue (buffer at %s+%u)", kSpaceNames[s.space], s.begin);
}

void check_inside(const char* api, const char* what, const Slice& s, uint64_t offset, uint64_t bytes) {
  check_slice(api, s);
  const uint64_t first = s.address + offset;
  if (first < s.begin || first + bytes > s.end)
    violate(19, api, "%s: bytes %llu to %llu of a buffer of %u", what,
            static_cast<unsigned long long>(first - s.begin),
            static_cast<unsigned long long>(first - s.begin + bytes), s.end - s.begin);
}

void check_aligned(const char* api, const char* what, const Slice& s, uint32_t alignment) {
  if (s.address % alignment)
    violate(1, api, "%s: expected an address aligned to %u bytes, got %s+%u", what, alignment, kSpaceNames[s.space],
            s.address);
}

Slice subslice(const Slice& s, uint64_t offset, uint32_t element) {
  const uint64_t bytes = offset * element;
  if (s.address + bytes > s.end)
    violate(19, "LocalTensor[]", "element %llu starts at byte %llu of a buffer of %u",
            static_cast<unsigned long long>(offset), static_cast<unsigned long long>(s.address + bytes - s.begin),
            s.end - s.begin);
  Slice t = s;
  t.address += static_cast<uint32_t>(bytes);
  t.bytes = s.bytes > bytes ? s.bytes - static_cast<uint32_t>(bytes) : 0;
  return t;
}

void* scalar_read(const Slice& s, uint64_t offset, uint32_t bytes) {
  check_inside("GetValue", "this", s, offset, bytes);
  core->begin_op(kS, "GetValue", __builtin_return_address(0));
  core->touch(s.space, s.address + static_cast<uint32_t>(offset), bytes, false);
  ++core->counters.scalar_local;
  return local(s, offset);
}

void scalar_write(const Slice& s, uint64_t offset, const void* value, uint32_t bytes) {
  check_inside("SetValue", "this", s, offset, bytes);
  core->begin_op(kS, "SetValue", __builtin_return_address(0));
  core->touch(s.space, s.address + static_cast<uint32_t>(offset), bytes, true);
  ++core->counters.scalar_local;
  std::memcpy(local(s, offset), value, bytes);
}

}  // namespace ascend_emu
