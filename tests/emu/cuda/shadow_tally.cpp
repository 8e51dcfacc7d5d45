// SPDX-License-Identifier: Apache-2.0
// Counts what a launch asks of memory: 32-byte sectors of global memory an access of a warp, and bank
// conflicts.
//
// The lanes' accesses with one pc, each its lane's n-th from there, are one access of the warp. The compiler
// splits the copy of an uint4 into four loads or more, which are put together again: one lane's accesses that
// follow one another, from different places in the code, within 16 aligned bytes. An unrolled loop over
// neighbouring scalars counts as vector access too, then, though nvcc may not make it one, and a value that
// is read twice in a row counts as one that stayed in its register.
#include <algorithm>
#include <deque>
#include <map>
#include <string>

#include "shadow.h"

namespace cuda_emu::shadow {
namespace {

constexpr uintptr_t kSector = 32;

struct Traffic {
  uint64_t accesses = 0, bytes = 0, sectors = 0;
  uint64_t block_sectors = 0;                       // different ones, summed over blocks
  uint64_t touched_bytes = 0, touched_sectors = 0;  // different ones, of a launch
};
struct Totals {
  Traffic traffic[3];  // by Access: kRead, kWrite, kAtomic
  uint64_t shared_accesses = 0, shared_wavefronts = 0, shared_conflicts = 0;
};

// An access of a warp.
struct Group {
  uintptr_t address[32];
  uint8_t bytes[32];
  uint32_t lanes = 0;
};
// All accesses of one warp from one place in the code, in the block that runs.
struct Stream {
  Space space;
  Access kind;
  uint32_t count[32] = {};
  uint32_t settled = 0;       // groups that have left the queue
  std::deque<Group> groups;
};
// What one thread did last.
struct Pending {
  uintptr_t unit = 0;
  uint32_t mask = 0;          // of the unit's 16 bytes; 0: nothing
  Space space;
  Access kind;
  uint32_t pcs[16];
  uint32_t count = 0;
};

struct Tally {
  Totals launch;
  std::map<const void*, Totals> kernels;
  std::unordered_map<uint64_t, Stream> streams;  // by pc and warp
  Stream* recent[4096] = {};
  uint64_t recent_keys[4096] = {};
  std::vector<Pending> pending = std::vector<Pending>(1024);
};
Tally& t() {
  static Tally tally;
  return tally;
}

uint32_t sectors_of(const Group& g) {
  uintptr_t all[128];
  uint32_t n = 0;
  for (uint32_t lanes = g.lanes; lanes; lanes &= lanes - 1) {
    const int lane = __builtin_ctz(lanes);
    for (uintptr_t s = g.address[lane] / kSector; s <= (g.address[lane] + g.bytes[lane] - 1) / kSector; ++s)
      if (n == 0 || all[n - 1] != s) all[n++] = s;
  }
  if (std::is_sorted(all, all + n)) return static_cast<uint32_t>(std::unique(all, all + n) - all);
  std::sort(all, all + n);
  return static_cast<uint32_t>(std::unique(all, all + n) - all);
}

// Passes over the 32 banks of 4 bytes that the lanes in `lanes` need: the most different words of one bank.
uint32_t wavefronts_of(const Group& g, uint32_t lanes) {
  uintptr_t words[128];
  uint32_t n = 0;
  for (; lanes; lanes &= lanes - 1) {
    const int lane = __builtin_ctz(lanes);
    const uintptr_t last = (g.address[lane] + g.bytes[lane] - 1) / 4;
    for (uintptr_t w = g.address[lane] / 4; w <= last && n < 128; ++w) words[n++] = w;
  }
  std::sort(words, words + n);
  n = static_cast<uint32_t>(std::unique(words, words + n) - words);
  uint32_t banks[32] = {}, most = 0;
  for (uint32_t i = 0; i < n; ++i) most = std::max(most, ++banks[words[i] % 32]);
  return most;
}

void settle(const Stream& s, const Group& g) {
  Totals& totals = t().launch;
  if (s.space == Space::kGlobal) {
    Traffic& traffic = totals.traffic[static_cast<int>(s.kind)];
    ++traffic.accesses;
    traffic.sectors += sectors_of(g);
    for (uint32_t lanes = g.lanes; lanes; lanes &= lanes - 1) traffic.bytes += g.bytes[__builtin_ctz(lanes)];
    return;
  }
  int widest = 0;
  for (uint32_t lanes = g.lanes; lanes; lanes &= lanes - 1)
    widest = std::max<int>(widest, g.bytes[__builtin_ctz(lanes)]);
  const int step = widest > 8 ? 8 : widest > 4 ? 16 : 32;  // lanes that the hardware serves at a time
  ++totals.shared_accesses;
  for (int first = 0; first < 32; first += step) {
    const uint32_t lanes = g.lanes & (step == 32 ? 0xffffffffu : ((1u << step) - 1) << first);
    if (!lanes) continue;
    const uint32_t passes = wavefronts_of(g, lanes);
    totals.shared_wavefronts += passes;
    totals.shared_conflicts += passes - 1;
  }
}

void flush(Pending& p, uint32_t warp, uint32_t lane) {
  if (!p.mask) return;
  Tally& all = t();
  const uint64_t key = uint64_t{p.pcs[0]} << 8 | warp << 2 | static_cast<uint32_t>(p.space);
  const size_t at = (key ^ key >> 10) % 4096;
  if (all.recent_keys[at] != key || !all.recent[at]) {
    all.recent_keys[at] = key;
    all.recent[at] = &all.streams[key];
  }
  Stream& s = *all.recent[at];
  s.space = p.space;
  s.kind = p.kind == Access::kInFlight ? Access::kWrite : p.kind;
  const uint32_t index = s.count[lane]++ - s.settled;
  while (s.groups.size() <= index) s.groups.emplace_back();
  Group& g = s.groups[index];
  const int first = __builtin_ctz(p.mask);
  g.address[lane] = p.unit * 16 + static_cast<uintptr_t>(first);
  g.bytes[lane] = static_cast<uint8_t>(32 - __builtin_clz(p.mask) - first);
  g.lanes |= 1u << lane;
  p.mask = 0;
  while (!s.groups.empty() && s.groups.front().lanes == 0xffffffffu) {
    settle(s, s.groups.front());
    s.groups.pop_front();
    ++s.settled;
  }
}

void add_unit(Space space, uintptr_t address, size_t bytes, Access kind, uint32_t pc, const Thread& thread) {
  Pending& p = t().pending[thread.linear];
  const uint32_t mask = ((1u << bytes) - 1) << address % 16;
  const bool joins = p.mask && p.unit == address / 16 && p.space == space && p.kind == kind &&
                     (kind == Access::kRead || !(p.mask & mask)) && kind != Access::kAtomic && p.count < 16 &&
                     std::find(p.pcs, p.pcs + p.count, pc) == p.pcs + p.count;
  if (!joins) {
    flush(p, thread.warp, thread.lane);
    p.unit = address / 16;
    p.space = space;
    p.kind = kind;
    p.count = 0;
  }
  p.mask |= mask;
  p.pcs[p.count++] = pc;
}

void add(Traffic& to, const Traffic& from) {
  to.accesses += from.accesses, to.bytes += from.bytes, to.sectors += from.sectors;
  to.block_sectors += from.block_sectors;
  to.touched_bytes += from.touched_bytes, to.touched_sectors += from.touched_sectors;
}

}  // namespace

void tally(Space space, uintptr_t address, size_t bytes, Access kind, uint32_t pc, const Thread& thread) {
  for (size_t here; bytes; address += here, bytes -= here) {
    here = std::min<size_t>(16 - address % 16, bytes);
    add_unit(space, address, here, kind, pc, thread);
  }
}

// Part of a bulk copy, which asks for its sectors once, whatever the number of blocks that get them.
void tally_bulk(uintptr_t address, size_t bytes) {
  Traffic& traffic = t().launch.traffic[static_cast<int>(Access::kRead)];
  ++traffic.accesses;
  traffic.bytes += bytes;
  traffic.sectors += (address + bytes - 1) / kSector - address / kSector + 1;
}

void tally_page(Page& page, uintptr_t address, size_t bytes, Access kind) {
  if (kind == Access::kBulkRead) kind = Access::kRead;
  uint64_t* bits = kind == Access::kRead ? page.read : page.written;
  const size_t first = address % kPage, end = first + bytes;
  for (size_t i = first; i < end;) {
    const size_t here = std::min(end - i, 64 - i % 64);
    bits[i / 64] |= (here == 64 ? ~uint64_t{0} : (uint64_t{1} << here) - 1) << i % 64;
    i += here;
  }
  if (page.block_base != state.block_base + 1) {
    page.block_base = state.block_base + 1;
    page.block_read[0] = page.block_read[1] = page.block_written[0] = page.block_written[1] = 0;
  }
  uint64_t* sectors = kind == Access::kRead ? page.block_read : page.block_written;
  for (size_t s = first / kSector; s <= (end - 1) / kSector; ++s)
    if (!(sectors[s / 64] >> s % 64 & 1)) {
      sectors[s / 64] |= uint64_t{1} << s % 64;
      ++t().launch.traffic[static_cast<int>(kind)].block_sectors;
    }
}

void tally_block_ends() {
  Tally& all = t();
  for (uint32_t i = 0; i < state.block->threads; ++i) flush(all.pending[i], i / 32, i % 32);
  for (auto& [key, s] : all.streams) {
    for (const Group& g : s.groups)
      if (g.lanes) settle(s, g);
    s.groups.clear();
    s.settled = 0;
    std::fill(s.count, s.count + 32, 0);
  }
}

void tally_launch_ends(const void* kernel) {
  Tally& all = t();
  for (const Page* page : pages.all()) {
    if (page->ignored) continue;
    for (int w = 0; w < 64; ++w)
      for (int kind = 0; kind < 2; ++kind) {
        const uint64_t bits = kind ? page->written[w] : page->read[w];
        all.launch.traffic[kind].touched_bytes += static_cast<uint64_t>(__builtin_popcountll(bits));
        all.launch.traffic[kind].touched_sectors += ((bits & 0xffffffffu) != 0) + (bits >> 32 != 0);
      }
  }
  Totals& totals = all.kernels[kernel];
  for (int i = 0; i < 3; ++i) add(totals.traffic[i], all.launch.traffic[i]);
  totals.shared_accesses += all.launch.shared_accesses;
  totals.shared_wavefronts += all.launch.shared_wavefronts;
  totals.shared_conflicts += all.launch.shared_conflicts;
  all.launch = Totals{};
  all.streams.clear();
  std::fill(all.recent, all.recent + 4096, nullptr);
  for (Pending& p : all.pending) p.mask = 0;  // of a launch that failed
}

const char* tally_json(const void* kernel) {
  static std::string text;
  text.clear();
  const auto it = t().kernels.find(kernel);
  if (it == t().kernels.end()) return "";
  const char* names[] = {"read", "write", "atomic"};
  for (int i = 0; i < 3; ++i) {
    const Traffic& x = it->second.traffic[i];
    text += std::string(",\"") + names[i] + "\":{\"accesses\":" + std::to_string(x.accesses) + ",\"bytes\":" +
            std::to_string(x.bytes) + ",\"sectors\":" + std::to_string(x.sectors) + ",\"block_sectors\":" +
            std::to_string(x.block_sectors) + ",\"touched_bytes\":" + std::to_string(x.touched_bytes) +
            ",\"touched_sectors\":" + std::to_string(x.touched_sectors) + "}";
  }
  const Totals& x = it->second;
  text += ",\"shared\":{\"accesses\":" + std::to_string(x.shared_accesses) + ",\"wavefronts\":" +
          std::to_string(x.shared_wavefronts) + ",\"conflicts\":" + std::to_string(x.shared_conflicts) + "}";
  return text.c_str();
}

void clear_tally() { t().kernels.clear(); }

}  // namespace cuda_emu::shadow
