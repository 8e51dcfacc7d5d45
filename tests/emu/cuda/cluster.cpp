// SPDX-License-Identifier: Apache-2.0
// Clusters: the blocks of one take turns on one OS thread, meet at cluster_barrier, and read each other's dynamic
// shared memory through cluster_read. Static shared memory is kept aside while another block has its turn.
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
    w->epoch_of_cluster = w->block.epoch++;
    w->ready_threads.new_priorities();
  }
  arrived = 0;
  ++passed;
}

__attribute__((noinline)) void cluster_barrier(Site site) {
  Worker& worker = *local.worker;
  Thread& thread = *local.thread;
  if (!worker.cluster) fail("cluster_sync (%s:%d): the kernel was not launched in clusters", site.name(), site.line);
  Cluster& cluster = *worker.cluster;
  if (cluster.arrived && !(cluster.site == site))
    fail("divergent barrier: cluster_sync (%s:%d) meets cluster_sync (%s:%d)", site.name(), site.line,
         cluster.site.name(), cluster.site.line);
  cluster.site = site;
  worker.at_cluster_barrier.push_back(static_cast<uint16_t>(thread.linear));
  if (++cluster.arrived == cluster.alive) cluster.release();
  thread.waits_for = "cluster_sync";
  thread.waits_at = site;
  thread.waits_pc = __builtin_return_address(0);
  worker.suspend();
  thread.waits_for = nullptr;
}

// Threads that have returned are not waited for.
void Worker::thread_leaves_cluster() {
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
  if (!cluster.passed) refuse("no cluster_sync has made sure that the other block runs");
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
  Worker* running = nullptr;
  if (observer) observer->cluster_begins(static_cast<uint32_t>(turns.size()));
  for (uint32_t rank = 0; rank < cluster.blocks.size(); ++rank) {
    Worker& w = *cluster.blocks[rank];
    w.take_turn(running);
    w.cluster = &cluster;
    w.at_cluster_barrier.clear();
    w.epoch_of_cluster = 0;
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
    }
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
