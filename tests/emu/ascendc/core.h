// SPDX-License-Identifier: Apache-2.0
// One emulated core: its pipes, its local memories with their shadows, its buffers. Internal to the run time.
//
// Order: the scalar unit issues instructions to pipes. Hazards are judged when an instruction is issued, from what
// its pipe may then know to be complete (vector clocks: flags, barriers and the scalar unit's own waits carry
// knowledge), whatever order they are executed in. Execution is eager, lazy (only when a wait of the scalar unit or
// the end of the kernel forces it) or in a shuffled order that the flags allow.
#pragma once
#include <string>
#include <vector>

#include "config.h"
#include "runtime.h"

namespace ascend_emu {

constexpr uint32_t kSpaceBytes[kSpaces] = {192 * 1024, 512 * 1024, 64 * 1024, 64 * 1024, 128 * 1024, 1024, 2048};
// What buffers may take: the toolkit keeps 8 KB of the unified buffer, and 256 bytes of it and of L1.
constexpr uint32_t kSpaceLimit[kSpaces] = {184 * 1024 - 256, 512 * 1024 - 256, 64 * 1024, 64 * 1024, 128 * 1024,
                                           1024, 2048};
constexpr int kEvents = 8;
constexpr uint32_t kMaxBuffers = 64;

extern const char* const kPipeNames[];
extern const char* const kSpaceNames[];

// What a pipe knows to be complete: of the pipes of its own core, and (rarely) of others.
struct Clock {
  uint32_t own[8] = {};
  int32_t remote = -1;  // an index into Launched::remotes; -1: nothing
};

struct OpInfo {
  const char* name;
  const void* pc;  // return address in the kernel
};

struct Item {                              // of a pipe's queue
  void (*run)(const void* payload);
  bool (*ready)(const void* payload);      // nullptr: always
  bool (*demand)(const void* payload);     // makes progress towards ready; false: another core has to
  OpInfo op;
  alignas(16) unsigned char payload[224];
};

struct PipeState {
  uint32_t seq = 0;                        // of the last instruction issued; the first is 1
  Clock know;
  std::vector<OpInfo> log{OpInfo{"", nullptr}};
  std::vector<Item> queue;
  size_t head = 0;
};

struct Shadow {                            // of 32 bytes of local memory
  uint32_t written;                        // a bit a byte
  uint32_t write_seq;
  uint8_t write_pipe, readers;             // readers: a bit a pipe, since the last write
  uint32_t read_seq[kPipes];
};

struct Flag {
  bool pending = false, reserved = false, of_queue = false;
  uint32_t issued = 0, executed = 0;
  Clock at;
  const void* pc = nullptr;
};

enum class Life : uint8_t { Free, Allocated, Queued, Taken, Plain };
struct Slot {
  uint32_t begin, end;
  Space space;
  uint8_t position;
  Life life;
  uint16_t lives;
  int8_t flag;                             // the event id that its hand-over uses; -1: none
  Pipe freed_by = kS, awaited_by = kS;     // of the flag that FreeTensor set
};

struct Counters {
  uint64_t bytes[kPipes] = {}, scratch[kPipes] = {}, instructions[kPipes] = {};  // scratch: those of bytes to or from it
  uint64_t vector_tenths = 0;              // of cycles of the vector unit, as documented for each instruction
  uint64_t vector_repeats = 0, scalar_local = 0, scalar_global = 0, cube_macs = 0, cube_steps = 0, stalls = 0,
           barriers = 0;
};

struct Core {
  Core();
  void begin(uint32_t index, bool vector, int64_t block, int64_t sub);
  void finish();                           // drains the pipes and checks what is left over

  uint32_t index = 0;
  bool vector = true;
  int64_t block = 0, sub = 0;
  char* memory[kSpaces];
  Shadow* shadow[kSpaces];
  uint32_t used[kSpaces];
  PipeState pipes[kPipes];
  Flag flags[kPipes][kPipes][kEvents];
  Slot slots[kMaxBuffers];
  uint32_t slot_count = 0;
  uint32_t position_buffers[32];
  void* pipe_object = nullptr;
  uint64_t mask[2];
  bool counter_mode = false;
  Type atomic = Type::none;                // of copies to global memory
  uint32_t last_small_product = 0;         // of pipe M: the last Mmad whose results need a PipeBarrier<PIPE_M>
  Counters counters;
  std::vector<uint64_t> dirty_lines;       // of the data cache
  uint32_t cache_emptied = 0;              // when all of it was invalidated
  uint32_t marks_issued[kPipes], marks_done[kPipes];  // cross-core flags that went into a pipe, and out of it

  // ---- instructions: begin, touch what it reads and writes, submit
  void begin_op(Pipe pipe, const char* name, const void* pc);
  void touch(Space space, uint32_t address, uint32_t bytes, bool write, bool must_be_written = true);
  void touch_global(const void* address, uint64_t bytes, bool write, bool atomic = false);
  void count(Pipe pipe, const void* global, uint64_t bytes);  // a transfer between global and local memory
  template <class Payload>
  void submit(void (*run)(const void*), const Payload& payload) {
    static_assert(sizeof(Payload) <= sizeof(Item::payload) && __is_trivially_copyable(Payload));
    if (config.order == kEager) return run(&payload);
    Item item;
    item.run = run, item.ready = nullptr, item.demand = nullptr;
    item.op = {op_name, op_pc};
    __builtin_memcpy(item.payload, &payload, sizeof payload);
    enqueue(op_pipe, item);
  }
  void enqueue(Pipe pipe, const Item& item);
  bool step(Pipe pipe);                    // runs the head of a pipe if it is ready
  void drain(Pipe pipe);
  void drain_all();
  void shuffle();                          // runs some instructions of random pipes

  Pipe op_pipe = kS;
  const char* op_name = "";
  const void* op_pc = nullptr;
  bool hazard_reported = false, nan_reported = false;
  OpInfo running{nullptr, nullptr};        // an instruction that is executed later than issued

  bool knows(Pipe observer, Pipe pipe, uint32_t seq) const { return pipes[observer].know.own[pipe] >= seq; }

 private:
  void report_unwritten(Space space, uint32_t first, uint32_t address, uint32_t bytes);
  void report_hazard(const char* kind, Space space, uint32_t address, Pipe other, uint32_t other_seq);
};

extern Core* core;                          // the one that runs now
void join(Clock& into, const Clock& from);
void wait_for_all_pipes();
std::string where(const void* pc);          // " at file.cpp:12" of a kernel, or ""

// What a kernel has launched: shared by its cores.
struct Launched {
  const char* kernel = "";
  uint32_t blocks = 0;
  KernelType type = KernelType::None;
  const char* scratch = nullptr;
  uint64_t scratch_bytes = 0;
  std::vector<std::vector<uint32_t>> remotes;
  std::vector<Core*> cores;
};
extern Launched launched;

inline char* local(const Slice& s, uint64_t offset = 0) { return core->memory[s.space] + s.address + offset; }
// Checks that [offset, offset + bytes) lies in the buffer of s; rule 19.
void check_inside(const char* api, const char* what, const Slice& s, uint64_t offset, uint64_t bytes);
void check_aligned(const char* api, const char* what, const Slice& s, uint32_t alignment);

}  // namespace ascend_emu
