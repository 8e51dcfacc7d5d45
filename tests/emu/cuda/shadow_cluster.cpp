// SPDX-License-Identifier: Apache-2.0
// What orders accesses in a cluster: its barrier, whose arrivals and waits may lie apart, the phases of mbarriers, which
// end bulk copies, and the fence between ordinary accesses and bulk copies.
//
// Approximations. A thread knows of the cluster's barrier what it has waited for itself. A phase of an mbarrier that one
// thread waited for is known to others behind a barrier, or a __syncwarp if it was the first to see it. The fence has to
// be of the thread that wrote, anywhere behind the access, and is asked for before an overwriting copy only.
#include "shadow.h"
#include "worker.h"

namespace cuda_emu::shadow {

Phases phases;

namespace {

const Thread& thread_of(const Stamp& stamp, uint32_t& epoch) {
  const uint32_t past = stamp.epoch - state.cluster_base - 1;
  epoch = past % kClusterSpan + 1;
  return local.worker->cluster->blocks[past / kClusterSpan]->threads[stamp.thread()];
}

bool up_to(const Stamp& stamp, uint32_t epoch, const Thread::Mark& mark) {
  return epoch < mark.epoch || (epoch == mark.epoch && stamp.warp_epoch() <= (mark.warp_epoch & 0xffff));
}

}  // namespace

bool ordered_in_cluster(const Stamp& before) {
  const uint32_t barrier = local.thread->cluster_waits;
  if (!barrier) return false;
  uint32_t epoch;
  const Thread& other = thread_of(before, epoch);
  return other.cluster_arrivals < barrier ||  // it has returned
         up_to(before, epoch, other.arrivals[barrier % 4]);
}

bool proxy_fenced(const Stamp& before) {
  uint32_t epoch;
  const Thread& other = thread_of(before, epoch);
  return up_to(before, epoch, other.proxy_fence);
}

void Phases::block_begins(uint32_t rank) { seen_[rank].clear(); }

void Phases::seen(uint32_t rank, uint32_t barrier, uint32_t phases, const Stamp& now) {
  if (seen_[rank].size() <= barrier) seen_[rank].resize(barrier + 1);
  Seen& s = seen_[rank][barrier];
  while (s.first.size() < phases) s.first.push_back(now);
  if (s.by_thread.empty()) s.by_thread.assign(1024, 0);
  s.by_thread[now.thread()] = phases;
}

bool Phases::known(uint32_t barrier, uint32_t phase, const Stamp& now) const {
  const std::vector<Seen>& block = seen_[state.rank];
  if (block.size() <= barrier || block[barrier].first.size() <= phase) return false;
  const Seen& s = block[barrier];
  if (state.rank == state.block->cluster_rank) {
    if (s.by_thread[now.thread()] > phase) return true;
    for (size_t i = phase; i < s.first.size(); ++i)
      if (ordered_in_block(s.first[i], now)) return true;
  }
  for (size_t i = phase; i < s.first.size(); ++i)
    if (ordered_in_cluster(s.first[i])) return true;
  return false;
}

}  // namespace cuda_emu::shadow
