// SPDX-License-Identifier: Apache-2.0
// Looks for races and for reads of shared memory that nothing has written.
//
// Approximations. A named barrier ends the interval of the whole block: races across it are missed. Warp
// epochs count the __syncwarps that a lane took part in: lanes of one warp that meet under different partial
// masks may look ordered when they are not. Shuffles and votes bring lanes together but order no memory, as
// CUDA documents them. The order of blocks is the emulator's: a block's accesses are compared with those of
// the blocks that ran before it.
#include "shadow.h"

#include <link.h>

#include <algorithm>

#include "worker.h"

namespace cuda_emu::shadow {

State state;
Order order;

namespace {

struct SharedCells {
  std::vector<Cell> dynamic, statics;
};
SharedCells& shared_cells(uint32_t cluster_rank) {
  static SharedCells cells[kLargestCluster];
  return cells[cluster_rank];
}

// Nothing orders `before` ahead of `now`.
inline bool conflict(Space space, const Stamp& before, Access before_kind, const Stamp& now) {
  if (!of_running_block(before.epoch)) {
    if (state.span && before.epoch > state.cluster_base) {
      if (ordered_in_cluster(before)) return false;
      if (space != Space::kGlobal) return true;
    }
    return space == Space::kGlobal && before.epoch > state.launch_base &&  // else of nobody
           !order.acquired(before, before_kind == Access::kAtomic, now);
  }
  return !ordered_in_block(before, now) && !(state.span && ordered_in_cluster(before));
}

inline void remember_reader(Cell& c, const Stamp& now) {
  if (!of_running_block(c.reader.epoch)) {
    if (c.reader.epoch > state.launch_base) c.earlier_reader = c.reader;
    if (c.other_reader.epoch > state.launch_base) c.earlier_reader = c.other_reader;
    c.reader = now;
    c.other_reader.epoch = 0;
  } else if (c.reader.epoch != now.epoch) {
    c.reader = now;
    c.other_reader.epoch = 0;
  } else if (c.reader.warp() == now.warp() && c.reader.warp_epoch() < now.warp_epoch()) {
    c.reader = now;
    if (c.other_reader.warp() == now.warp()) c.other_reader.epoch = 0;
  } else if (c.reader.thread() != now.thread()) {
    if (c.other_reader.epoch != now.epoch || c.other_reader.warp() == c.reader.warp() ||
        c.other_reader.warp() == now.warp())
      c.other_reader = now;
  }
}

void check(Cell& c, Space space, uintptr_t address, Access kind, const Stamp& now) {
  if (kind == Access::kArrived) {  // what came between was reported when it came
    c.write = now;
    c.write_kind = Access::kWrite;
    return;
  }
  bool landed = false;
  if (space != Space::kGlobal) {
    const bool written = c.write.epoch > state.cluster_base;
    const bool reads = kind == Access::kRead || kind == Access::kAtomic;
    if (written && (c.write_kind == Access::kInFlight || c.write_kind == Access::kBulk))
      report_in_flight(space, address, kind, now, c.write, c.write_kind);
    else if (!written && reads) report_unwritten(space, address, now);
    landed = written && c.write_kind == Access::kLanded;
    if (landed && !phases.known(c.barrier, c.phase, now)) report_landed(space, address, kind, now, c.write);
    if (written && kind == Access::kBulk && c.write_kind <= Access::kAtomic && !proxy_fenced(c.write))
      report_no_proxy_fence(space, address, now, c.write);
  }
  const bool both_atomic = kind == Access::kAtomic && c.write_kind == Access::kAtomic;
  if (!both_atomic && !landed && conflict(space, c.write, c.write_kind, now))
    report_race(space, address, kind, now, c.write, c.write_kind);
  if (is_read(kind)) return remember_reader(c, now);
  for (const Stamp* reader : {&c.reader, &c.other_reader, &c.earlier_reader})
    if (conflict(space, *reader, Access::kRead, now)) {
      report_race(space, address, kind, now, *reader, Access::kRead);
      break;
    }
  c.write = now;
  c.write_kind = kind;
}

// `count` bytes of one word.
void check_part(Cell& c, Space space, uintptr_t address, size_t count, Access kind, const Stamp& now) {
  if (!c.split) {
    if (!c.bytes) c.bytes = new Cell[4];
    for (int i = 0; i < 4; ++i) {
      Cell* kept = c.bytes[i].bytes;
      c.bytes[i] = c;
      c.bytes[i].bytes = kept;
    }
    c.split = true;
  }
  for (size_t i = 0; i < count; ++i) check(c.bytes[(address + i) % 4], space, address + i, kind, now);
}

// `first` is the cell of the word that holds `address`; all bytes lie in its array.
void check_range(Cell* first, Space space, uintptr_t address, size_t bytes, Access kind, const Stamp& now) {
  for (; bytes; ++first) {
    const size_t here = std::min<size_t>(4 - address % 4, bytes);
    if (here == 4 && !first->split) {
      check(*first, space, address, kind, now);
    } else {
      check_part(*first, space, address, here, kind, now);
      if (here == 4 && !is_read(kind) && kind != Access::kAtomic) {  // earlier readers no longer matter
        Cell* parts = first->bytes;
        *first = parts[0];
        first->bytes = parts;
        first->split = false;
      }
    }
    address += here;
    bytes -= here;
  }
}

void access_global(uintptr_t address, size_t bytes, Access kind, const Stamp& now, const Thread& thread) {
  for (size_t here; bytes; address += here, bytes -= here) {
    here = std::min<size_t>(kPage - address % kPage, bytes);
    Page& page = pages.at(address / kPage);
    if (page.ignored) continue;
    if (state.count) {
      tally_page(page, address, here, kind);
      if (kind == Access::kBulkRead) tally_bulk(address, here);
      else tally(Space::kGlobal, address, here, kind, now.pc, thread);
    }
    if (!state.races) continue;
    if (kind == Access::kAtomic) order.atomic(address, now);
    check_range(&page.cells[address % kPage / 4], Space::kGlobal, address, here, kind, now);
  }
}

class Shadow : public Observer {
 public:
  void launch_begins(const LaunchInfo& launch) override {
    kernel_ = launch.kernel;
    state.races = config.races;
    state.count = config.count;
    state.launch_base = state.block_base;
    state.reported = false;
    pages.launch_begins(launch);
    order.launch_begins();
    begin_race_reports();
  }
  void block_begins(Block& block) override {
    if (state.span) state.block_base = state.cluster_base + block.cluster_rank * kClusterSpan;
    auto& cells = shared_cells(block.cluster_rank);
    const auto fit = [](std::vector<Cell>& c, size_t bytes) {
      if (c.size() < bytes / 4 + 2) c.resize(bytes / 4 + 2);
    };
    fit(cells.dynamic, block.dynamic_size);
    fit(cells.statics, block.statics_size);
    order.block_begins(state.block_base, block.threads);
    add_block(state.block_base, block.linear);
    phases.block_begins(block.cluster_rank);
    runs(block);
  }
  void block_ends(Block& block) override {
    state.os_thread = nullptr;
    if (state.count) tally_block_ends();
    if (!state.span) forget_up_to(state.block_base + block.epoch);
    if (state.reported) failed = true;
  }
  void block_pauses(Block&) override {
    state.os_thread = nullptr;
    if (state.count) tally_block_ends();
    if (state.reported) failed = true;
  }
  void block_resumes(Block& block) override {
    state.block_base = state.cluster_base + block.cluster_rank * kClusterSpan;
    runs(block);
  }
  void cluster_begins(uint32_t) override { state.span = kClusterSpan; }
  void cluster_ends() override {
    state.span = 0;
    forget_up_to(state.cluster_base + kLargestCluster * kClusterSpan);
  }
  void launch_ends() override {
    if (state.count) tally_launch_ends(kernel_);
  }
  void access(const void* address, size_t bytes, Access kind, const void* pc) override {
    if (state.os_thread) shadow::access(reinterpret_cast<uintptr_t>(address), bytes, kind, pc, *local.thread);
  }
  void fence() override;
  void landed(const Block& block, const void* to, size_t bytes, uint32_t barrier, uint32_t phase) override {
    if (!state.races) return;
    Cell* cells = shared_cells(block.cluster_rank).dynamic.data();
    const uintptr_t address = reinterpret_cast<uintptr_t>(to), begin = reinterpret_cast<uintptr_t>(block.dynamic);
    for (size_t i = 0; i < bytes / 4; ++i) {  // what came between was reported when it came
      Cell& c = cells[address / 4 - begin / 4 + i];
      c.write_kind = Access::kLanded;
      c.barrier = static_cast<uint16_t>(barrier);
      c.phase = phase;
    }
  }
  void phases_seen(uint32_t barrier, uint32_t count) override;
  const char* counters(const void* kernel) override { return tally_json(kernel); }
  void clear_counters() override { clear_tally(); }

 private:
  static void runs(Block& block) {
    state.local = &local;
    state.block = &block;
    state.dynamic = reinterpret_cast<uintptr_t>(block.dynamic);
    state.dynamic_size = block.dynamic_size;
    state.statics = reinterpret_cast<uintptr_t>(block.statics);
    state.statics_size = block.statics_size;
    state.os_thread = __builtin_thread_pointer();
  }
  static void forget_up_to(uint32_t epoch) {
    if (epoch > 0xf0000000u) __builtin_trap();  // epochs are used up: a process of days
    state.block_base = state.cluster_base = epoch;
  }

  const void* kernel_ = nullptr;
};

inline Stamp stamp(const Thread& thread, const void* pc) {
  if (state.span && state.block->epoch > state.span) fail("more than %u barriers in a cluster", state.span);
  Stamp now;
  now.epoch = state.block_base + state.block->epoch;
  now.who = thread.linear | order.fences(thread.linear) << 10 | (thread.warp_epoch & 0xffff) << 16;
  now.pc = static_cast<uint32_t>(reinterpret_cast<uintptr_t>(pc) - state.module);
  return now;
}

void Shadow::fence() {
  if (state.os_thread && state.races) order.fence(stamp(*local.thread, nullptr));
}

void Shadow::phases_seen(uint32_t barrier, uint32_t count) {
  if (!state.os_thread || !state.races) return;
  phases.seen(state.block->cluster_rank, barrier, count, stamp(*local.thread, nullptr));
}

const bool installed = [] {
  static Shadow shadow;
  observer = &shadow;
  dl_iterate_phdr([](dl_phdr_info* info, size_t, void*) {
    for (int i = 0; i < info->dlpi_phnum; ++i) {
      const uintptr_t begin = info->dlpi_addr + info->dlpi_phdr[i].p_vaddr;
      const uintptr_t offset = reinterpret_cast<uintptr_t>(&state) - begin;
      if (info->dlpi_phdr[i].p_type == PT_LOAD && offset < info->dlpi_phdr[i].p_memsz)
        state.module = info->dlpi_addr;
    }
    return 0;
  }, nullptr);
  return true;
}();

}  // namespace

void access(uintptr_t address, size_t bytes, Access kind, const void* pc, const Thread& thread) {
  const Stamp now = stamp(thread, pc);
  Space space = Space::kDynamic;
  uintptr_t begin = state.dynamic;
  const uint32_t rank = state.block->cluster_rank;
  std::vector<Cell>* cells = &shared_cells(rank).dynamic;
  state.rank = rank;
  if (address - begin >= state.dynamic_size) {
    const Worker* worker = local.worker;
    if (worker->cluster)
      for (const Worker* other : worker->cluster->blocks) {  // not counted: it comes from another multiprocessor
        begin = reinterpret_cast<uintptr_t>(other->block.dynamic);
        if (address - begin >= state.dynamic_size) continue;
        state.rank = other->block.cluster_rank;
        cells = &shared_cells(state.rank).dynamic;
        if (state.races) check_range(&(*cells)[address / 4 - begin / 4], space, address, bytes, kind, now);
        return;
      }
    begin = state.statics;
    if (address - begin >= state.statics_size) {
      if (worker->in_dynamic_guard(reinterpret_cast<const void*>(address))) return;  // the canaries tell
      const auto in = [&](const void* p, size_t n) { return address - reinterpret_cast<uintptr_t>(p) < n; };
      if (in(worker->threads.data(), kMaxThreads * sizeof(Thread)) || in(worker, sizeof(Worker))) return;
      return access_global(address, bytes, kind, now, thread);
    }
    if (address - reinterpret_cast<uintptr_t>(&local) < sizeof(Local)) return;
    space = Space::kStatic;
    cells = &shared_cells(rank).statics;
  }
  if (state.count && kind < Access::kArrived) tally(space, address, bytes, kind, now.pc, thread);
  if (state.races) check_range(&(*cells)[address / 4 - begin / 4], space, address, bytes, kind, now);
}

}  // namespace cuda_emu::shadow
