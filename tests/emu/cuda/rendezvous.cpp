// SPDX-License-Identifier: Apache-2.0
// The meeting points: warp collectives, barriers, and what the end of a thread means to those who wait for it.
#include <string>

#include "worker.h"

namespace cuda_emu {
namespace {

std::string place(const char* what, Site site) {
  return std::string(what) + " (" + site.name() + ":" + std::to_string(site.line) + ")";
}

void wait_at(Worker& worker, Thread& thread, const char* what, Site site, void* pc) {
  thread.waits_for = what;
  thread.waits_at = site;
  thread.waits_pc = pc;
  worker.suspend();
  thread.waits_for = nullptr;
}

}  // namespace

void Worker::settle(Warp& warp, uint32_t warp_index, Meeting& meeting) {
  const uint32_t needed = meeting.mask & ~warp.exited;
  if ((meeting.arrived & needed) != needed) return;
  meeting.combine(meeting.slots, meeting.arrived);
  warp.pending &= ~(1u << (&meeting - warp.meetings));
  for (uint32_t lanes = meeting.arrived; lanes; lanes &= lanes - 1)
    ready_threads.push(warp_index * 32 + static_cast<uint32_t>(__builtin_ctz(lanes)));
}

__attribute__((noinline)) void rendezvous(const char* what, uint32_t mask, void* slot, Combine combine, Site site,
                                          Meet meet) {
  Worker& worker = *local.worker;
  Thread& thread = *local.thread;
  Warp& warp = worker.warps[thread.warp];
  if (!(mask >> thread.lane & 1))
    fail("%s: the calling lane %u is not in the mask %08x", place(what, site).c_str(), thread.lane, mask);
  if (config.strict && ((mask & warp.exited) || (mask != 0xffffffffu && (mask & ~warp.lanes))))
    fail("%s: lanes %08x of the mask %08x have returned or do not exist", place(what, site).c_str(),
         mask & (warp.exited | ~warp.lanes), mask);
  mask &= warp.lanes;

  Meeting* meeting = nullptr;
  for (uint32_t p = warp.pending; p; p &= p - 1) {
    Meeting& m = warp.meetings[__builtin_ctz(p)];
    if (m.mask == mask) {
      meeting = &m;
      break;
    }
    if (m.mask & mask)
      fail("divergent warp: %s with mask %08x while other lanes wait at %s with mask %08x", place(what, site).c_str(),
           mask, place(m.what, m.site).c_str(), m.mask);
  }
  if (!meeting) {
    const uint32_t free = ~warp.pending & 15u;
    if (!free) fail("%s: the warp waits at four other places already", place(what, site).c_str());
    meeting = &warp.meetings[__builtin_ctz(free)];
    warp.pending |= free & -free;
    meeting->mask = mask;
    meeting->arrived = 0;
    meeting->what = what;
    meeting->site = site;
    meeting->combine = combine;
    worker.block.events.collectives += meet == Meet::kSameSite;
  } else if (meeting->combine != combine || (meet == Meet::kSameSite && !(meeting->site == site))) {
    fail("divergent warp: %s meets %s, mask %08x", place(what, site).c_str(),
         place(meeting->what, meeting->site).c_str(), mask);
  }

  meeting->slots[thread.lane] = slot;
  meeting->arrived |= 1u << thread.lane;
  if ((meeting->arrived & ~warp.exited) == (mask & ~warp.exited)) {
    if (meet == Meet::kAnySite)
      for (uint32_t lanes = meeting->arrived; lanes; lanes &= lanes - 1)
        ++worker.threads[thread.warp * 32 + static_cast<uint32_t>(__builtin_ctz(lanes))].warp_epoch;
    if (config.order == kFifo) {  // the last to come need not stop
      combine(meeting->slots, meeting->arrived);
      warp.pending &= ~(1u << (meeting - warp.meetings));
      for (uint32_t lanes = meeting->arrived & ~(1u << thread.lane); lanes; lanes &= lanes - 1)
        worker.ready(thread.warp * 32 + static_cast<uint32_t>(__builtin_ctz(lanes)));
      return;
    }
    worker.settle(warp, thread.warp, *meeting);
  }
  wait_at(worker, thread, what, site, __builtin_return_address(0));
}

void Worker::release(Barrier& barrier) {
  int value = 0;
  if (barrier.vote == Vote::kCount) value = static_cast<int>(barrier.trues);
  if (barrier.vote == Vote::kAnd) value = barrier.trues == barrier.arrived;
  if (barrier.vote == Vote::kOr) value = barrier.trues != 0;
  for (uint32_t i = 0; i < barrier.arrived; ++i) {
    threads[barrier.waiting[i]].barrier_value = value;
    ready_threads.push(barrier.waiting[i]);
  }
  barrier.arrived = 0;
  ++block.epoch;
  ++block.events.barriers;
  ready_threads.new_priorities();
}

__attribute__((noinline)) int barrier(int id, int count, Vote vote, bool predicate, Site site) {
  Worker& worker = *local.worker;
  Thread& thread = *local.thread;
  Block& block = worker.block;
  if (id < 0 || id > 15) fail("barrier %d does not exist (%s:%d)", id, site.name(), site.line);
  if (count % 32 || count < 0)
    fail("barrier %d: %d threads are no whole warps (%s:%d)", id, count, site.name(), site.line);
  Barrier& b = worker.barriers[id];
  const bool whole = count == 0;
  const uint32_t needed = whole ? block.alive : static_cast<uint32_t>(count);
  if (whole && config.strict && block.alive != block.threads)
    fail("%s: %u threads of the block have returned", place("__syncthreads", site).c_str(),
         block.threads - block.alive);
  if (b.arrived == 0) {
    b.count = static_cast<uint32_t>(count);
    b.trues = 0;
    b.vote = vote;
    b.site = site;
  } else if (b.count != static_cast<uint32_t>(count) || b.vote != vote || (whole && !(b.site == site))) {
    fail("divergent barrier: %s meets %s", place("__syncthreads", site).c_str(),
         place("__syncthreads", b.site).c_str());
  }
  b.waiting[b.arrived++] = static_cast<uint16_t>(thread.linear);
  b.trues += predicate;
  if (b.arrived >= needed) worker.release(b);
  wait_at(worker, thread, "__syncthreads", site, __builtin_return_address(0));
  return thread.barrier_value;
}

void Worker::thread_ends() {
  Thread& thread = *local.thread;
  Warp& warp = warps[thread.warp];
  --block.alive;
  if (cluster) thread_leaves_cluster();
  warp.exited |= 1u << thread.lane;
  for (uint32_t p = warp.pending; p; p &= p - 1) {
    Meeting& m = warp.meetings[__builtin_ctz(p)];
    if (config.strict && (m.mask >> thread.lane & 1))
      fail("the thread returned while lanes %08x of its warp wait for it at %s", m.arrived,
           place(m.what, m.site).c_str());
    settle(warp, thread.warp, m);
  }
  for (Barrier& b : barriers) {
    if (!b.arrived || b.count) continue;
    if (config.strict)
      fail("the thread returned while %u others of the block wait at %s", b.arrived,
           place("__syncthreads", b.site).c_str());
    if (b.arrived >= block.alive) release(b);
  }
}

}  // namespace cuda_emu
