// SPDX-License-Identifier: Apache-2.0
// mbarriers, and the bulk copies that are told to them. From its issue on a copy may land at any time, in each block
// apart: its target holds NaN bytes until then. In order 0 it lands when no thread can go on, the oldest first; in
// order 1 the youngest; in the random ones any, at any turn, at the issue already and at waits. What a copy may only do
// once others are ready for it is checked at the issue, as if it landed then.
#include "mbarrier.h"

#include <cstdio>
#include <cstring>
#include <string>

#include "worker.h"

namespace cuda_emu {
namespace {

constexpr uint64_t kMark = 0x6d62617272696572;  // "mbarrier"
constexpr int64_t kMostBytes = (1 << 20) - 1;   // of tx-count, to both sides

bool overwritten(const Mbarrier& b) { return std::memcmp(b.at, &kMark, sizeof kMark) != 0; }

Mbarrier* find(Worker& w, const char* at) {
  for (Mbarrier& b : w.mbarriers)
    if (b.at == at) return &b;
  return nullptr;
}

Mbarrier& own(const void* at, const char* what, Site site) {
  Mbarrier* b = find(*local.worker, static_cast<const char*>(at));
  if (!b) fail("%s (%s:%d): no mbarrier has been initialised at %p", what, site.name(), site.line, at);
  if (overwritten(*b)) fail("%s (%s:%d): the mbarrier has been overwritten", what, site.name(), site.line);
  return *b;
}

void check_phase(Worker& w, Mbarrier& b) {
  if (b.pending || b.bytes) return;
  b.pending = b.count;
  ++b.phases;
  for (const uint16_t thread : b.waiting) w.ready(thread);
  b.waiting.clear();
  w.ready_threads.new_priorities();
}

bool chance(unsigned of) { return config.order >= kRandom && local.worker->random() % of == 0; }

void land_now(Cluster& cluster, size_t i) {
  cluster.land(i);
  if (failed) local.worker->abandon_block();
}

}  // namespace

__attribute__((noinline)) void mbarrier_init(const void* barrier, uint32_t count, Site site) {
  Worker& worker = *local.worker;
  const size_t offset = static_cast<size_t>(static_cast<const char*>(barrier) - worker.block.dynamic);
  if (offset % 8 || offset + 8 > worker.block.dynamic_size || count == 0 || count > kMostBytes)
    fail("mbarrier_init (%s:%d): offset %td of %zu bytes of dynamic shared memory, %u arrivals", site.name(), site.line,
         static_cast<ptrdiff_t>(offset), worker.block.dynamic_size, count);
  char* at = worker.block.dynamic + offset;
  if (find(worker, at)) fail("mbarrier_init (%s:%d): there is an mbarrier already", site.name(), site.line);
  note_access(at, sizeof kMark, Access::kWrite, __builtin_return_address(0));
  std::memcpy(at, &kMark, sizeof kMark);
  Mbarrier b{};
  b.at = at, b.count = b.pending = count;
  b.thread = local.thread->linear, b.arrivals = local.thread->cluster_arrivals;
  worker.mbarriers.push_back(b);
}

void mbarrier_fence() {
  for (Mbarrier& b : local.worker->mbarriers) b.fenced |= b.thread == local.thread->linear;
}

__attribute__((noinline)) void mbarrier_arrive(const void* barrier, uint32_t bytes, Site site) {
  Mbarrier& b = own(barrier, "mbarrier_arrive", site);
  note_access(barrier, sizeof kMark, Access::kAtomic, __builtin_return_address(0));
  if (!b.pending) fail("mbarrier_arrive (%s:%d): more than %u arrivals in a phase", site.name(), site.line, b.count);
  b.bytes += bytes;
  if (b.bytes > kMostBytes)
    fail("mbarrier_arrive (%s:%d): more than 2^20 - 1 bytes are expected", site.name(), site.line);
  --b.pending;
  check_phase(*local.worker, b);
}

__attribute__((noinline)) void mbarrier_wait(const void* barrier, uint32_t parity, Site site) {
  Worker& worker = *local.worker;
  Thread& thread = *local.thread;
  own(barrier, "mbarrier_wait", site);
  note_access(barrier, sizeof kMark, Access::kAtomic, __builtin_return_address(0));
  while (worker.cluster && chance(4) && worker.cluster->land_one(worker.random))
    if (failed) worker.abandon_block();
  for (;;) {
    Mbarrier& b = own(barrier, "mbarrier_wait", site);
    if ((b.phases & 1) != (parity & 1)) {
      if (observer) observer->phases_seen(static_cast<uint32_t>(&b - worker.mbarriers.data()), b.phases);
      return;
    }
    b.waiting.push_back(static_cast<uint16_t>(thread.linear));
    thread.waits_for = "mbarrier_wait";
    thread.waits_at = site;
    thread.waits_pc = __builtin_return_address(0);
    worker.suspend();
    thread.waits_for = nullptr;
  }
}

void proxy_fence() {
  Thread& thread = *local.thread;
  thread.proxy_fence = {local.block->epoch, thread.warp_epoch++};
}

__attribute__((noinline)) void copy_bulk(void* shared, const void* global, uint32_t bytes, const void* barrier,
                                         uint32_t mask, Site site) {
  Worker& worker = *local.worker;
  Thread& thread = *local.thread;
  const void* pc = __builtin_return_address(0);
  const auto refuse = [&](const std::string& why) {
    fail("cp.async.bulk (%s:%d): %s", site.name(), site.line, why.c_str());
  };
  if (!worker.cluster) refuse("the kernel was not launched in clusters");
  Cluster& cluster = *worker.cluster;
  if ((reinterpret_cast<uintptr_t>(shared) | reinterpret_cast<uintptr_t>(global) | bytes) % 16 || !bytes) {
    char text[128];
    std::snprintf(text, sizeof text, "to %p from %p, %u bytes: expected multiples of 16", shared, global, bytes);
    refuse(text);
  }
  const size_t offset = static_cast<size_t>(static_cast<char*>(shared) - worker.block.dynamic);
  if (offset >= worker.block.dynamic_size || worker.block.dynamic_size - offset < bytes)
    refuse("offset " + std::to_string(static_cast<ptrdiff_t>(offset)) + " of " +
           std::to_string(worker.block.dynamic_size) + " bytes of dynamic shared memory");
  if (!mask || mask >> cluster.blocks.size())
    refuse("mask " + std::to_string(mask) + " in a cluster of " + std::to_string(cluster.blocks.size()));

  thread.waits_for = "cp.async.bulk";  // named by the report of a fault
  thread.waits_at = site;
  thread.waits_pc = const_cast<void*>(pc);
  volatile char touched = static_cast<const char*>(global)[0];
  touched = static_cast<const char*>(global)[bytes - 1];
  (void)touched;
  thread.waits_for = nullptr;
  note_access(global, bytes, Access::kBulkRead, pc);

  const ptrdiff_t at_barrier = static_cast<const char*>(barrier) - worker.block.dynamic;
  for (uint32_t rank = 0; rank < cluster.blocks.size(); ++rank) {
    if (!(mask >> rank & 1)) continue;
    Worker& target = *cluster.blocks[rank];
    const std::string name = "block " + std::to_string(rank) + " of the cluster";
    if (&target != &worker && !thread.cluster_waits) refuse("no cluster barrier has made sure that " + name + " runs");
    if (!target.block.alive) refuse(name + " has returned");
    const Mbarrier* b = find(target, target.block.dynamic + at_barrier);
    if (!b) refuse("no mbarrier has been initialised in " + name);
    if (overwritten(*b)) refuse("the mbarrier in " + name + " has been overwritten");
    if (!b->fenced) refuse("no fence.mbarrier_init has followed the mbarrier of " + name);
    if (&target != &worker && thread.cluster_waits <= b->arrivals)
      refuse("no cluster barrier lies between the mbarrier's initialisation in " + name + " and the copy");
    char* to = target.block.dynamic + offset;
    note_access(to, bytes, Access::kBulk, pc);
    if (config.defer) std::memset(to, 0xff, bytes);
    cluster.in_flight.push_back({&worker, &target, thread.linear, to, static_cast<const char*>(global), bytes,
                                 static_cast<uint32_t>(b - target.mbarriers.data()), site});
    if (!config.defer || chance(4)) land_now(cluster, cluster.in_flight.size() - 1);
  }
}

void BulkCopy::land() const {
  Mbarrier& b = target->mbarriers[barrier];
  if (overwritten(b) || b.bytes - bytes < -kMostBytes) {
    Block* running = local.block;
    local.block = &issuer->block;
    add_report(describe(issuer->threads[thread]) + ": cp.async.bulk (" + site.name() + ":" +
               std::to_string(site.line) + "): " +
               (overwritten(b) ? "the mbarrier has been overwritten" : "the mbarrier expected 2^20 bytes less"));
    local.block = running;
    failed = true;
    return;
  }
  std::memcpy(to, from, bytes);
  if (observer) observer->landed(target->block, to, bytes, barrier, b.phases);
  b.bytes -= bytes;
  check_phase(*target, b);
}

void Cluster::land(size_t i) {
  const BulkCopy copy = in_flight[i];
  in_flight.erase(in_flight.begin() + static_cast<ptrdiff_t>(i));
  copy.land();
}

bool Cluster::land_one(std::mt19937& random) {
  if (in_flight.empty()) return false;
  land(config.order == kFifo ? 0 : config.order == kLifo ? in_flight.size() - 1 : random() % in_flight.size());
  return true;
}

// What threads of the block wait for at its mbarriers; "" if none does.
std::string Worker::missing_at_mbarriers() const {
  std::string text;
  for (const Mbarrier& b : mbarriers)
    if (!b.waiting.empty())
      text += "; the mbarrier at offset " + std::to_string(b.at - block.dynamic) + " misses " +
              std::to_string(b.pending) + " arrivals and " + std::to_string(b.bytes) + " bytes in phase " +
              std::to_string(b.phases);
  return text;
}

}  // namespace cuda_emu
