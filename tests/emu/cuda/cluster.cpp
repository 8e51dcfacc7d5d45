// SPDX-License-Identifier: Apache-2.0
// Clusters: the blocks of one take turns on one OS thread, meet at the cluster's barrier, and read each other's dynamic
// shared memory through cluster_read; copies into it land between turns (mbarrier.cpp). Static shared memory is kept
// aside while another block has its turn.
#include <algorithm>
#include <cstring>
#include <string>

#include "worker.h"

namespace cuda_emu {
namespace {

// Calls fn(begin, bytes, offset) for the two parts of the static shared memory, those around `local`.
template <class Fn>
void each_part_of_statics(Fn&& fn) {
  char* hole = reinterpret_cast<char*>(&local);
  char* rest = hole + sizeof(Local);
  const size_t before = static_cast<size_t>(hole - local.statics);
  fn(local.statics, before, size_t{0});
  fn(rest, static_cast<size_t>(local.statics + local.statics_size - rest), before);
}

}  // namespace

void Cluster::release() {
  for (Worker* w : blocks) {
    for (const uint16_t thread : w->at_cluster_barrier) w->ready(thread);
    w->at_cluster_barrier.clear();
    ++w->block.events.cluster_barriers;
    w->ready_threads.new_priorities();
  }
  arrived = 0;
  ++passed;
}

__attribute__((noinline)) void cluster_arrive(const char* what, Site site) {
  Worker& worker = *local.worker;
  Thread& thread = *local.thread;
  if (!worker.cluster) fail("%s (%s:%d): the kernel was not launched in clusters", what, site.name(), site.line);
  Cluster& cluster = *worker.cluster;
  if (thread.cluster_arrivals != thread.cluster_waits)
    fail("%s (%s:%d): the thread has not waited since it arrived at the cluster's barrier", what, site.name(),
         site.line);
  if (cluster.arrived && !(cluster.site == site))
    fail("divergent barrier: %s (%s:%d) meets %s (%s:%d)", what, site.name(), site.line, what, cluster.site.name(),
         cluster.site.line);
  cluster.site = site;
  thread.arrivals[++thread.cluster_arrivals % 4] = {worker.block.epoch, thread.warp_epoch++};
  if (++cluster.arrived == cluster.alive) cluster.release();
}

__attribute__((noinline)) void cluster_wait(const char* what, Site site) {
  Worker& worker = *local.worker;
  Thread& thread = *local.thread;
  if (thread.cluster_arrivals == thread.cluster_waits)
    fail("%s (%s:%d): the thread has not arrived at the cluster's barrier", what, site.name(), site.line);
  if (worker.cluster->passed == thread.cluster_waits) {
    worker.at_cluster_barrier.push_back(static_cast<uint16_t>(thread.linear));
    thread.waits_for = what;
    thread.waits_at = site;
    thread.waits_pc = __builtin_return_address(0);
    worker.suspend();
    thread.waits_for = nullptr;
  }
  ++thread.cluster_waits;
}

// Threads that have returned are not waited for.
void Worker::thread_leaves_cluster() {
  const Thread& thread = *local.thread;
  if (thread.cluster_arrivals != thread.cluster_waits)
    fail("the thread returned between its arrival at the cluster's barrier and its wait");
  if (!block.alive)
    for (const BulkCopy& c : cluster->in_flight)
      if (c.target == this)
        fail("the block returned while the cp.async.bulk (%s:%d) of block %lu into its shared memory is still in "
             "flight", c.site.name(), c.site.line, static_cast<unsigned long>(c.issuer->block.linear));
  --cluster->alive;
  if (cluster->arrived && cluster->arrived == cluster->alive) cluster->release();
}

__attribute__((noinline)) void cluster_read(void* to, const void* shared, size_t bytes, uint32_t rank, Site site) {
  const Worker& worker = *local.worker;
  const auto refuse = [&](const std::string& why) {
    fail("cluster_load (%s:%d): %s", site.name(), site.line, why.c_str());
  };
  if (!worker.cluster) refuse("the kernel was not launched in clusters");
  const Cluster& cluster = *worker.cluster;
  if (rank >= cluster.blocks.size())
    refuse("block " + std::to_string(rank) + " of a cluster of " + std::to_string(cluster.blocks.size()));
  const Block& mine = worker.block;
  const size_t offset = static_cast<size_t>(static_cast<const char*>(shared) - mine.dynamic);
  if (offset >= mine.dynamic_size || mine.dynamic_size - offset < bytes)
    refuse("offset " + std::to_string(static_cast<ptrdiff_t>(offset)) + " of " + std::to_string(mine.dynamic_size) +
           " bytes of dynamic shared memory");
  if (offset % bytes) refuse("offset " + std::to_string(offset) + ", expected a multiple of " + std::to_string(bytes));
  if (!local.thread->cluster_waits) refuse("no cluster_sync has made sure that the other block runs");
  const Block& other = cluster.blocks[rank]->block;
  if (!other.alive) refuse("block " + std::to_string(rank) + " of the cluster has returned");
  const char* there = other.dynamic + offset;
  note_access(there, bytes, Access::kRead, __builtin_return_address(0));
  std::memcpy(to, there, bytes);
}

// Gives the OS thread to this block.
void Worker::take_turn(Worker*& before) {
  if (before == this) return;
  if (before) {
    if (observer) observer->block_pauses(before->block);
    before->statics_.resize(local.statics_size - sizeof(Local));
    each_part_of_statics([&](char* p, size_t n, size_t at) { std::memcpy(&before->statics_[at], p, n); });
  }
  local.worker = this;
  local.block = &block;
  if (!statics_.empty())
    each_part_of_statics([&](char* p, size_t n, size_t at) { std::memcpy(p, &statics_[at], n); });
  before = this;
}

void Worker::run_cluster(Cluster& cluster, uint64_t first) {
  std::vector<Worker*> turns = cluster.blocks;
  if (config.order == kLifo) std::reverse(turns.begin(), turns.end());
  cluster.arrived = cluster.passed = cluster.alive = 0;
  cluster.in_flight.clear();
  Worker* running = nullptr;
  if (observer) observer->cluster_begins(static_cast<uint32_t>(turns.size()));
  for (uint32_t rank = 0; rank < cluster.blocks.size(); ++rank) {
    Worker& w = *cluster.blocks[rank];
    w.take_turn(running);
    w.cluster = &cluster;
    w.at_cluster_barrier.clear();
    w.block.cluster_rank = rank;
    w.block.cluster_size = static_cast<uint32_t>(cluster.blocks.size());
    cluster.alive += w.block.threads;
    w.start_block(first + rank);
  }
  for (bool any = true; any && !failed;) {
    any = false;
    if (config.order >= kRandom) std::shuffle(turns.begin(), turns.end(), cluster.blocks[0]->random);
    for (Worker* w : turns) {
      if (failed || w->ready_threads.empty()) continue;
      w->take_turn(running);
      if (observer) observer->block_resumes(w->block);
      w->advance();
      any = true;
      while (config.order >= kRandom && w->random() % 2 && cluster.land_one(w->random)) {}
    }
    if (!any && !failed) any = cluster.land_one(cluster.blocks[0]->random);
  }
  for (Worker* w : cluster.blocks) {
    w->take_turn(running);
    if (observer) observer->block_resumes(w->block);
    w->end_block();
    w->statics_.clear();
    w->cluster = nullptr;
    w->block.cluster_rank = 0;
    w->block.cluster_size = 1;
  }
  if (observer) observer->cluster_ends();
}

}  // namespace cuda_emu
