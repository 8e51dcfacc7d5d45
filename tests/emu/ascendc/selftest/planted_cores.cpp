// SPDX-License-Identifier: Apache-2.0
// Mistakes between cores, of the data cache and of launches: rules 11 to 15. `plant` 0 is the correct kernel.
#include "selftest.h"

using selftest::Bench;
using selftest::global;

namespace {

constexpr uint32_t kLine = 16;  // floats

// Every core writes its line of `work`, and then reads that of its neighbour.
template <class Sync>
void exchange(const selftest::Args& g, Sync sync) {
  Bench k(g);
  auto w = k.w<float>();
  Duplicate(w, static_cast<float>(GetBlockIdx()), kLine);
  SetFlag<HardEvent::V_MTE3>(EVENT_ID0);
  WaitFlag<HardEvent::V_MTE3>(EVENT_ID0);
  auto work = global<float>(g.work)[256];
  DataCopy(work[GetBlockIdx() * kLine], w, kLine);
  sync();
  const int64_t next = (GetBlockIdx() + 1) % (GetBlockNum() * GetTaskRatio());
  DataCopy(w[kLine], work[next * kLine], kLine);
  SetFlag<HardEvent::MTE2_MTE3>(EVENT_ID0);
  WaitFlag<HardEvent::MTE2_MTE3>(EVENT_ID0);
  DataCopy(global<float>(g.out)[GetBlockIdx() * kLine], w[kLine], kLine);
}

SELFTEST(sync_hard, MIX_AIV_1_0, g) {
  exchange(g, [&] {
    if (!g.plant) SyncAll();
  });
}
SELFTEST(sync_one_missing, MIX_AIV_1_0, g) {
  exchange(g, [&] {
    if (!g.plant || GetBlockIdx() != 1) SyncAll();
  });
}
SELFTEST(sync_type, AIV_ONLY, g) {
  if (g.plant) SyncAll();
}
SELFTEST(sync_blocks, MIX_AIV_1_0, g) {  // launched with more blocks than there are cores
  if (g.plant) SyncAll();
}
SELFTEST(sync_soft, AIV_ONLY, g) {
  Bench k(g);
  SyncAll(global<int32_t>(g.work), k.w<int32_t>());
  if (g.plant) SyncAll(global<int32_t>(g.a), k.w<int32_t>());  // not zeros
}
SELFTEST(cross_flag, MIX_AIV_1_0, g) {
  exchange(g, [&] {
    if (g.plant) CrossCoreSetFlag<0, PIPE_V>(3);  // says nothing about MTE3
    else CrossCoreSetFlag<0, PIPE_MTE3>(3);
    CrossCoreWaitFlag(3);
  });
}
SELFTEST(cross_id, MIX_AIV_1_0, g) {
  CrossCoreSetFlag<0, PIPE_MTE3>(static_cast<uint16_t>(g.plant ? 16 : 15));
  CrossCoreWaitFlag(15);
}
SELFTEST(cross_reserved, MIX_AIV_1_0, g) {
  const uint16_t id = g.plant ? 12 : 10;
  CrossCoreSetFlag<0, PIPE_MTE3>(id);
  CrossCoreWaitFlag(id);
  SyncAll();
}
SELFTEST(cross_order, MIX_AIV_1_0, g) {  // which of the two is waited for first?
  CrossCoreSetFlag<0, PIPE_MTE3>(5);
  if (!g.plant) CrossCoreWaitFlag(5);
  CrossCoreSetFlag<0, PIPE_V>(5);
  CrossCoreWaitFlag(5);
  if (g.plant) CrossCoreWaitFlag(5);
}
SELFTEST(cross_two_ways, MIX_AIC_1_2, g) {
  if ASCEND_IS_AIC {
    CrossCoreWaitFlag(6);
    return;
  }
  CrossCoreSetFlag<1, PIPE_MTE3>(6);
  if (!g.plant) CrossCoreWaitFlag(6);
  CrossCoreSetFlag<2, PIPE_MTE3>(6);
  if (g.plant) CrossCoreWaitFlag(6);
}
SELFTEST(cross_left, MIX_AIV_1_0, g) {
  CrossCoreSetFlag<0, PIPE_MTE3>(7);
  if (!g.plant) CrossCoreWaitFlag(7);
}
SELFTEST(cross_some, MIX_AIV_1_0, g) {  // one core of two
  if (!g.plant) return;
  if (GetBlockIdx() == 0) CrossCoreSetFlag<0, PIPE_MTE3>(7);
}
SELFTEST(cross_type, AIV_ONLY, g) {
  if (g.plant) CrossCoreSetFlag<0, PIPE_MTE3>(1);
}
SELFTEST(cross_mode, MIX_AIV_1_0, g) {
  if (g.plant) CrossCoreSetFlag<2, PIPE_MTE3>(1);
}
SELFTEST(cross_count, MIX_AIV_1_0, g) {
  for (int i = 0; i < (g.plant ? 16 : 15); ++i) CrossCoreSetFlag<0, PIPE_MTE3>(1);
  for (int i = 0; i < (g.plant ? 16 : 15); ++i) CrossCoreWaitFlag(1);
}
// A cube core between its two vector cores: they hand over to it and wait for it.
SELFTEST(mixed_groups, MIX_AIC_1_2, g) {
  if ASCEND_IS_AIC {
    CrossCoreWaitFlag(1);
    CrossCoreSetFlag<2, PIPE_FIX>(2);
    return;
  }
  exchange(g, [&] {
    CrossCoreSetFlag<2, PIPE_MTE3>(1);
    CrossCoreWaitFlag(2);
    if (!g.plant) {  // the groups know of each other only through this
      CrossCoreSetFlag<0, PIPE_MTE3>(4);
      CrossCoreWaitFlag(4);
    }
  });
}
SELFTEST(vector_on_cube, MIX_AIC_1_1, g) {
  if ASCEND_IS_AIC {
    if (!g.plant) return;
  }
  TPipe pipe;
  TBuf<TPosition::VECCALC> b;
  pipe.InitBuffer(b, 256);
  Duplicate(b.Get<float>(), 1.f, 64);
}
SELFTEST(type_twice, AIV_ONLY, g) {
  if (g.plant) KERNEL_TASK_TYPE_DEFAULT(KERNEL_TYPE_AIC_ONLY);
}
SELFTEST(one_line, AIV_ONLY, g) {  // two cores, two rows of one line
  Bench k(g);
  auto w = k.w<float>();
  Duplicate(w, 1.f, 8);
  PipeBarrier<PIPE_ALL>();
  DataCopy(global<float>(g.out)[GetBlockIdx() * (g.plant ? 4 : 8)], w, 8);  // 16 bytes in common, or none
}

// ---- the data cache
SELFTEST(cache_dirty, AIV_ONLY, g) {
  auto out = global<int32_t>(g.out)[GetBlockIdx() * kLine];
  out.SetValue(0, 5);
  if (!g.plant) DataCacheCleanAndInvalid<int32_t, CacheLine::SINGLE_CACHE_LINE, DcciDst::CACHELINE_OUT>(out);
}
SELFTEST(cache_line, AIV_ONLY, g) {
  auto out = global<int32_t>(g.out)[GetBlockIdx() * (g.plant ? 1 : kLine)];
  out.SetValue(0, 5);
  DataCacheCleanAndInvalid<int32_t, CacheLine::SINGLE_CACHE_LINE>(out);
}
SELFTEST(cache_load, AIV_ONLY, g) {  // SetValue, then a transfer of the same bytes
  Bench k(g);
  auto work = global<int32_t>(g.work)[GetBlockIdx() * kLine];
  for (uint32_t i = 0; i < 8; ++i) work.SetValue(i, 5);
  if (!g.plant) DataCacheCleanAndInvalid<int32_t, CacheLine::ENTIRE_DATA_CACHE>(work);
  SetFlag<HardEvent::S_MTE2>(EVENT_ID0);
  WaitFlag<HardEvent::S_MTE2>(EVENT_ID0);
  DataCopy(k.w<int32_t>(), work, 8);
  PipeBarrier<PIPE_ALL>();
  DataCacheCleanAndInvalid<int32_t, CacheLine::ENTIRE_DATA_CACHE>(work);
}
SELFTEST(cache_stale, AIV_ONLY, g) {  // GetValue, a transfer to the same bytes, GetValue again
  Bench k(g);
  auto w = k.w<int32_t>();
  auto work = global<int32_t>(g.work)[GetBlockIdx() * kLine];
  const int32_t before = work.GetValue(0);
  Duplicate(w, before + 1, 8);
  PipeBarrier<PIPE_ALL>();
  DataCopy(work, w, 8);
  SetFlag<HardEvent::MTE3_S>(EVENT_ID0);
  WaitFlag<HardEvent::MTE3_S>(EVENT_ID0);
  if (!g.plant) DataCacheCleanAndInvalid<int32_t, CacheLine::SINGLE_CACHE_LINE>(work);
  Duplicate(w, work.GetValue(0), 8);
}

}  // namespace

// Without KERNEL_TASK_TYPE_DEFAULT.
static void no_type_kernel(selftest::Args g) {
  if (!g.plant) KERNEL_TASK_TYPE_DEFAULT(KERNEL_TYPE_AIV_ONLY);
  if (g.plant) global<int32_t>(g.out).GetValue(0);
}
static const bool no_type_added = selftest::add("no_type", &no_type_kernel);
