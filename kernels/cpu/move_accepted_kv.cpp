// SPDX-License-Identifier: Apache-2.0
// move_accepted_kv: gathers all source rows into scratch, then scatters them to their destinations.
// Threads split the channels, not the pairs: a thread's gather is done before its scatter, so no barrier is
// needed, and of equal destinations the last wins whatever the thread count. 4 bytes moved a byte of KV.
// Contract: include/dsv4spec/paging.h.
#include <algorithm>

#include "kernel.h"

namespace dsv4::cpu {
namespace {

constexpr int64_t kAhead = 4;  // rows that are fetched early

int64_t row_bytes(const MoveAcceptedKvParams& p) { return p.D * (p.kv_pages.dtype == kF32 ? 4 : 2); }

char* row(const MoveAcceptedKvParams& p, int64_t slot) {
  const int64_t size = p.kv_pages.dtype == kF32 ? 4 : 2;
  const int64_t page = slot / p.page, offset = slot % p.page;
  return static_cast<char*>(p.kv_pages.data) + (page * p.kv_pages.stride[0] + offset * p.kv_pages.stride[1]) * size;
}

uint64_t workspace(const MoveAcceptedKvParams& p) { return static_cast<uint64_t>(p.M * row_bytes(p)); }

int32_t launch(const MoveAcceptedKvParams& p, const Launch& launch) {
  const int64_t *src = p.src_slots.at<int64_t>(), *dst = p.dst_slots.at<int64_t>(), slots = p.pages * p.page;
  for (int64_t m = 0; m < p.M; ++m) {
    const bool bad_source = src[m] < -1 || src[m] >= slots;
    if (bad_source || dst[m] < -1 || dst[m] >= slots)
      return refuse(launch, "%s: expected -1 to %lld, got %lld", bad_source ? "src_slots" : "dst_slots",
                    static_cast<long long>(slots - 1), static_cast<long long>(bad_source ? src[m] : dst[m]));
  }
  const int64_t bytes = row_bytes(p);
  char* scratch = static_cast<char*>(launch.workspace);
  const int64_t slice = std::max<int64_t>(64, (bytes / g_host->num_threads() + 63) / 64 * 64);
  parallel((bytes + slice - 1) / slice, grain_for(4 * p.M * slice), [&](int64_t begin, int64_t end) {
    const int64_t from = begin * slice, count = std::min(end * slice, bytes) - from;
    for (int64_t m = 0; m < p.M; ++m) {
      if (m + kAhead < p.M && src[m + kAhead] >= 0 && dst[m + kAhead] >= 0)  // rows lie anywhere: nothing foresees the next
        for (int64_t i = 0; i < count; i += 64) {
          __builtin_prefetch(row(p, src[m + kAhead]) + from + i);
          __builtin_prefetch(row(p, dst[m + kAhead]) + from + i, 1, 2);
        }
      if (src[m] >= 0 && dst[m] >= 0) std::memcpy(scratch + m * bytes + from, row(p, src[m]) + from, count);
    }
    for (int64_t m = 0; m < p.M; ++m)
      if (src[m] >= 0 && dst[m] >= 0) std::memcpy(row(p, dst[m]) + from, scratch + m * bytes + from, count);
  });
  return DSV4_OK;
}

}  // namespace
DSV4_CPU_KERNEL_WITH_WORKSPACE(move_accepted_kv, MoveAcceptedKvParams, launch, workspace)
}  // namespace dsv4::cpu
