// SPDX-License-Identifier: Apache-2.0
// Buffers of a core and the queues that hand them over between pipes.
#include <algorithm>
#include <cstring>
#include <exception>

#include "core.h"

namespace ascend_emu {

void set_flag_as(Pipe from, Pipe to, int id, bool of_queue, const void* pc);
void wait_flag_as(Pipe from, Pipe to, int id);

namespace {

constexpr uint32_t whole_blocks(uint32_t bytes) { return (bytes + kBlockBytes - 1) / kBlockBytes * kBlockBytes; }

void claim(const char* api, Space space, uint32_t bytes) {  // of the memory itself
  const uint32_t begin = core->used[space];
  if (begin + bytes > kSpaceLimit[space])
    violate(4, api, "%s: %u bytes are taken; %u more exceed the usable %u", kSpaceNames[space], begin, bytes,
            kSpaceLimit[space]);
  core->used[space] += bytes;
}

uint8_t new_slot(const char* api, Space space, uint8_t position, uint32_t bytes, Life life, Pool* pool) {
  if (!bytes) violate(5, api, "expected a size, got 0");
  if (core->slot_count == kMaxBuffers) violate(5, api, "expected at most %u buffers in a kernel", kMaxBuffers);
  uint32_t begin = core->used[space];
  const uint32_t n = core->slot_count;
  if (pool) {
    if (pool->buffers == pool->most) violate(5, api, "expected at most %u buffers in this pool", pool->most);
    begin = pool->begin + pool->used;
    if (begin + bytes > pool->end)
      violate(4, api, "the pool has %u bytes, of which %u are taken; got %u more", pool->end - pool->begin, pool->used,
              bytes);
    pool->used += bytes, ++pool->buffers;
    pool->slots |= uint64_t{1} << n;
  } else {
    claim(api, space, bytes);
  }
  std::memset(core->memory[space] + begin, 0xff, bytes);
  std::memset(core->shadow[space] + begin / kBlockBytes, 0, bytes / kBlockBytes * sizeof(Shadow));
  ++core->slot_count;
  const uint16_t lives = static_cast<uint16_t>(core->slots[n].lives + 1);
  core->slots[n] = Slot{begin, begin + bytes, space, position, life, lives, -1};
  return static_cast<uint8_t>(n);
}

Slice whole(uint8_t n) {
  const Slot& slot = core->slots[n];
  return Slice{slot.begin, slot.end - slot.begin, slot.begin, slot.end, n, slot.lives, slot.space, slot.position};
}

Slot& slot_of(const char* api, const Queue& q, const Slice& s, Life expected, const char* state) {
  if (s.slot < q.first || s.slot >= q.first + q.count) violate(5, api, "the tensor is none of this queue's");
  Slot& slot = core->slots[s.slot];
  if (slot.lives != s.life || slot.life == Life::Free) violate(5, api, "the tensor was freed before");
  if (slot.life != expected && !(expected == Life::Taken && slot.life == Life::Allocated))
    violate(5, api, "expected a tensor %s", state);
  return slot;
}

void ready(const Queue& q, const char* api) {
  if (!q.count) violate(5, api, "the queue has no buffers: InitBuffer comes first");
}

int queue_event(const char* api, Pipe from, Pipe to) {
  for (int id = 0; id < kEvents; ++id) {
    const Flag& flag = core->flags[from][to][id];
    if (!flag.reserved && !flag.pending) return id;
  }
  violate(5, api, "no event id of %s_%s is left: at most %d buffers a position", kPipeNames[from], kPipeNames[to],
          kEvents);
}

}  // namespace

void set_pipe_object(void* pipe) {
  if (core->pipe_object) violate(5, "TPipe", "another TPipe of this core is alive");
  core->pipe_object = pipe;
}
void end_pipe_object(void* pipe) {
  if (core->pipe_object != pipe || std::uncaught_exceptions()) return;
  reset_buffers();
  core->pipe_object = nullptr;
}
void* pipe_object() { return core->pipe_object; }

namespace {
void init_queue_of(Pool* pool, Queue& q, uint32_t buffers, uint32_t bytes) {
  if (q.count) violate(5, "InitBuffer", "this queue has its buffers already");
  if (buffers < 1 || buffers > kEvents) violate(5, "InitBuffer", "buffers: expected 1 to 8, got %u", buffers);
  core->position_buffers[q.position] += buffers;
  if (core->position_buffers[q.position] > kEvents)
    violate(5, "InitBuffer", "expected at most 8 buffers at a position (each takes an event id), got %u",
            core->position_buffers[q.position]);
  for (uint32_t i = 0; i < buffers; ++i) {
    const uint8_t n = new_slot("InitBuffer", q.space, q.position, whole_blocks(bytes), Life::Free, pool);
    if (i == 0) q.first = n;
  }
  q.count = static_cast<uint8_t>(buffers);
}

void hold(Pool& pool) {
  if (!pool.first) violate(5, "InitBuffer", "the pool has no memory: InitBufPool comes first");
  if (pool.first->holder && pool.first->holder != &pool)
    violate(5, "InitBuffer", "another pool's buffers are in this memory: its Reset comes first");
  pool.first->holder = &pool;
}
}  // namespace

void init_queue(Queue& q, uint32_t buffers, uint32_t bytes) { init_queue_of(nullptr, q, buffers, bytes); }
Slice init_buffer(Space space, uint8_t position, uint32_t bytes) {
  return whole(new_slot("InitBuffer", space, position, whole_blocks(bytes), Life::Plain, nullptr));
}

void init_pool(Pool& pool, uint32_t bytes, Pool* shared) {
  if (pool.first) violate(5, "InitBufPool", "this pool has its memory already");
  bytes = whole_blocks(bytes);
  if (shared) {
    if (!shared->first || shared->space != pool.space)
      violate(5, "InitBufPool", "shareBuf: expected a pool that has memory of the same kind");
    if (bytes > shared->end - shared->begin)
      violate(5, "InitBufPool", "len: expected at most the %u bytes of shareBuf, got %u", shared->end - shared->begin,
              bytes);
    pool.begin = shared->begin, pool.first = shared->first;
  } else {
    pool.begin = core->used[pool.space], pool.first = &pool;
    claim("InitBufPool", pool.space, bytes);
  }
  pool.end = pool.begin + bytes;
}
void init_queue_in(Pool& pool, Queue& q, uint32_t buffers, uint32_t bytes) {
  hold(pool);
  init_queue_of(&pool, q, buffers, bytes);
}
Slice init_buffer_in(Pool& pool, Space space, uint8_t position, uint32_t bytes) {
  hold(pool);
  return whole(new_slot("InitBuffer", space, position, whole_blocks(bytes), Life::Plain, &pool));
}
// Ends the lives of the pool's buffers. Hand-written flags do not order its memory against the next pool's (the page
// says so), hence nothing may be on its way. Coming back to the pool's old buffers is not there.
void reset_pool(Pool& pool) {
  for (int p = 0; p < kPipes; ++p)
    if (core->pipes[kS].know.own[p] < core->pipes[p].seq && p != kS)
      violate(5, "TBufPool::Reset", "instructions of pipe %s may still use the pool: PipeBarrier<PIPE_ALL> comes first",
              kPipeNames[p]);
  for (uint32_t n = 0; n < core->slot_count; ++n) {
    if (!(pool.slots >> n & 1)) continue;
    Slot& slot = core->slots[n];
    if (slot.life != Life::Free && slot.life != Life::Plain)
      violate(5, "TBufPool::Reset", "a tensor of position %u has not been given back", slot.position);
    if (slot.life == Life::Free) --core->position_buffers[slot.position];
    ++slot.lives;
    slot.life = Life::Free;
    if (slot.flag >= 0) wait_flag_as(slot.freed_by, slot.awaited_by, slot.flag);
    slot.flag = -1;
  }
  pool.slots = 0, pool.used = 0, pool.buffers = 0;
  pool.first->holder = nullptr;
}

void reset_buffers() {
  wait_for_all_pipes();
  for (uint32_t i = 0; i < core->slot_count; ++i) {
    Slot& slot = core->slots[i];
    if (slot.life == Life::Queued) violate(5, "TPipe", "a tensor is left in a queue (position %u)", slot.position);
    ++slot.lives;
    slot.life = Life::Free;
  }
  for (auto& row : core->flags)
    for (auto& cell : row)
      for (Flag& flag : cell)
        if (flag.pending && flag.of_queue) flag.pending = false;
  core->slot_count = 0;
  for (uint32_t& u : core->used) u = 0;
  for (uint32_t& n : core->position_buffers) n = 0;
}

Slice queue_alloc(Queue& q) {
  ready(q, "AllocTensor");
  for (uint8_t tries = 0; tries < q.count; ++tries) {
    const uint8_t n = static_cast<uint8_t>(q.first + (q.cursor + tries) % q.count);
    Slot& slot = core->slots[n];
    if (slot.life != Life::Free) continue;
    q.cursor = static_cast<uint8_t>((q.cursor + tries + 1) % q.count);
    if (slot.flag >= 0) wait_flag_as(q.consumer, q.producer, slot.flag);
    slot.flag = -1;
    slot.life = Life::Allocated;
    ++slot.lives;
    // Whoever takes a buffer finds nothing in it that he may rely on.
    for (uint32_t b = slot.begin / kBlockBytes; b < slot.end / kBlockBytes; ++b) core->shadow[q.space][b].written = 0;
    return whole(n);
  }
  violate(5, "AllocTensor", "all %u buffers are in use: FreeTensor comes first (the core would hang)", q.count);
}

void queue_push(Queue& q, const Slice& s) {
  ready(q, "EnQue");
  Slot& slot = slot_of("EnQue", q, s, Life::Allocated, "that AllocTensor gave");
  const uint32_t most = q.depth ? q.depth : q.count;
  if (q.queued >= most) violate(5, "EnQue", "%u tensors are in a queue of depth %u", q.queued, q.depth);
  slot.flag = static_cast<int8_t>(queue_event("EnQue", q.producer, q.consumer));
  set_flag_as(q.producer, q.consumer, slot.flag, true, __builtin_return_address(0));
  slot.life = Life::Queued;
  q.ring[(q.head + q.queued++) % 8] = static_cast<uint8_t>(s.slot);
}

Slice queue_pop(Queue& q) {
  ready(q, "DeQue");
  if (!q.queued) violate(5, "DeQue", "the queue is empty: EnQue comes first");
  const uint8_t n = q.ring[q.head];
  q.head = static_cast<uint8_t>((q.head + 1) % 8);
  --q.queued;
  Slot& slot = core->slots[n];
  wait_flag_as(q.producer, q.consumer, slot.flag);
  slot.flag = -1;
  slot.life = Life::Taken;
  return whole(n);
}

void queue_free(Queue& q, const Slice& s) {
  ready(q, "FreeTensor");
  Slot& slot = slot_of("FreeTensor", q, s, Life::Taken, "that DeQue or AllocTensor gave");
  slot.flag = static_cast<int8_t>(queue_event("FreeTensor", q.consumer, q.producer));
  set_flag_as(q.consumer, q.producer, slot.flag, true, __builtin_return_address(0));
  slot.freed_by = q.consumer, slot.awaited_by = q.producer;
  slot.life = Life::Free;
  ++slot.lives;
}

}  // namespace ascend_emu
