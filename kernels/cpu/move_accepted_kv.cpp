// SPDX-License-Identifier: Apache-2.0
// move_accepted_kv: source rows that are some pair's destination too are gathered into scratch; then every row is copied to
// its destination, from scratch or, if nothing overwrites it, from where it lies. Threads split the channels, not the
// pairs: a thread's gather is done before its copies, so no barrier is needed, and of equal destinations the last wins
// whatever the thread count. 2 bytes moved a byte of KV, 4 of a gathered row.
// Contract: include/dsv4spec/paging.h.
#include <algorithm>

#include "kernel.h"

namespace dsv4::cpu {
namespace {

constexpr int64_t kAhead = 4;  // rows that are fetched early

int64_t value_bytes(const MoveAcceptedKvParams& p) { return p.kv_pages.dtype == kF32 ? 4 : 2; }
int64_t row_bytes(const MoveAcceptedKvParams& p) { return p.D * value_bytes(p); }

char* row(const MoveAcceptedKvParams& p, int64_t slot) {
  const int64_t page = slot / p.page, offset = slot % p.page;
  return static_cast<char*>(p.kv_pages.data) + (page * p.kv_pages.stride[0] + offset * p.kv_pages.stride[1]) * value_bytes(p);
}

// Which slots may be destinations: a bit each, of their hash. One too many only costs a row its way through scratch.
class Destinations {
  static constexpr int kMost = 18;  // 32 KB
  uint64_t words[(1 << kMost) / 64];
  int log = 10;
  uint64_t place(int64_t slot) const { return static_cast<uint64_t>(slot) * 0x9e3779b97f4a7c15u >> (64 - log); }

 public:
  Destinations(const int64_t* src, const int64_t* dst, int64_t count) {
    while (log < kMost && (int64_t{1} << log) < 64 * count) ++log;
    std::memset(words, 0, (size_t{1} << log) / 8);
    for (int64_t m = 0; m < count; ++m)
      if (src[m] >= 0 && dst[m] >= 0) words[place(dst[m]) / 64] |= uint64_t{1} << place(dst[m]) % 64;
  }
  bool may_hold(int64_t slot) const { return words[place(slot) / 64] >> place(slot) % 64 & 1; }
};

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
  const int64_t line = 64, size = value_bytes(p);
  const bool past_caches = 2 * p.M * bytes >= kStreamedBytes && bytes % line == 0 &&
                           reinterpret_cast<uintptr_t>(p.kv_pages.data) % line == 0 &&
                           p.kv_pages.stride[0] * size % line == 0 && p.kv_pages.stride[1] * size % line == 0;
  const Destinations written(src, dst, p.M);
  parallel((bytes + slice - 1) / slice, grain_for(4 * p.M * slice), [&](int64_t begin, int64_t end) {
    const int64_t from = begin * slice, count = std::min(end * slice, bytes) - from;
    for (int64_t m = 0; m < p.M; ++m)
      if (src[m] >= 0 && dst[m] >= 0 && written.may_hold(src[m]))
        std::memcpy(scratch + m * bytes + from, row(p, src[m]) + from, count);
    for (int64_t m = 0; m < p.M; ++m) {
      if (m + kAhead < p.M && src[m + kAhead] >= 0 && dst[m + kAhead] >= 0) {  // rows lie anywhere: nothing foresees the next
        const char *next = row(p, src[m + kAhead]) + from, *next_to = row(p, dst[m + kAhead]) + from;
        for (int64_t i = 0; i < count; i += 64) {
          __builtin_prefetch(next + i);
          if (!past_caches) __builtin_prefetch(next_to + i, 1);
        }
      }
      if (src[m] < 0 || dst[m] < 0) continue;
      const char* at = (written.may_hold(src[m]) ? scratch + m * bytes : row(p, src[m])) + from;
      char* to = row(p, dst[m]) + from;
      if (past_caches)
        for (int64_t i = 0; i < count; i += W * 4)
          stream(reinterpret_cast<float*>(to + i), load(reinterpret_cast<const float*>(at + i)));
      else std::memcpy(to, at, count);
    }
    if (past_caches) end_of_stream();
  });
  return DSV4_OK;
}

}  // namespace
DSV4_CPU_KERNEL_WITH_WORKSPACE(move_accepted_kv, MoveAcceptedKvParams, launch, workspace)
}  // namespace dsv4::cpu
