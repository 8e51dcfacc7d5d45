// SPDX-License-Identifier: Apache-2.0
// move_accepted_kv: source rows that are some pair's destination too are gathered into scratch; then every row is copied to
// its destination, from scratch or, if nothing overwrites it, from where it lies. Threads share the copies by a hash of the
// destination, so of equal destinations the last wins whatever their number. 2 bytes moved a byte of KV, 4 of a gathered row.
// Contract: include/dsv4spec/paging.h.
#include <algorithm>

#include "kernel.h"

namespace dsv4::cpu {
namespace {

constexpr int64_t kAhead = 8;  // rows that are fetched early

int64_t value_bytes(const MoveAcceptedKvParams& p) { return p.kv_pages.dtype == kF32 ? 4 : 2; }
int64_t row_bytes(const MoveAcceptedKvParams& p) { return p.D * value_bytes(p); }

char* row(const MoveAcceptedKvParams& p, int64_t slot) {
  const int64_t page = slot / p.page, offset = slot % p.page;
  return static_cast<char*>(p.kv_pages.data) + (page * p.kv_pages.stride[0] + offset * p.kv_pages.stride[1]) * value_bytes(p);
}

uint64_t hash_of(int64_t slot) { return static_cast<uint64_t>(slot) * 0x9e3779b97f4a7c15u; }

// Which slots may be destinations: a bit each, of their hash. One too many only costs a row its way through scratch.
class Destinations {
  static constexpr int kMost = 18;  // 32 KB
  uint64_t words[(1 << kMost) / 64];
  int log = 10;
  uint64_t place(int64_t slot) const { return hash_of(slot) >> (64 - log); }

 public:
  Destinations(const int64_t* src, const int64_t* dst, int64_t count) {
    while (log < kMost && (int64_t{1} << log) < 64 * count) ++log;
    std::memset(words, 0, (size_t{1} << log) / 8);
    for (int64_t m = 0; m < count; ++m)
      if (src[m] >= 0 && dst[m] >= 0) words[place(dst[m]) / 64] |= uint64_t{1} << place(dst[m]) % 64;
  }
  bool may_hold(int64_t slot) const { return words[place(slot) / 64] >> place(slot) % 64 & 1; }
};

void stream_lines(char* to, const char* from, int64_t bytes) {
  for (const char* end = from + bytes; from < end; from += W * 4, to += W * 4)
    stream(reinterpret_cast<float*>(to), load(reinterpret_cast<const float*>(from)));
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
  const int64_t line = 64, size = value_bytes(p);
  const bool past_caches = 2 * p.M * bytes >= kStreamedBytes && bytes % line == 0 &&
                           reinterpret_cast<uintptr_t>(p.kv_pages.data) % line == 0 &&
                           p.kv_pages.stride[0] * size % line == 0 && p.kv_pages.stride[1] * size % line == 0;
  const Destinations written(src, dst, p.M);
  auto moves = [&](int64_t m) { return src[m] >= 0 && dst[m] >= 0; };
  auto gathered = [&](int64_t m) { return written.may_hold(src[m]); };
  for (int64_t m = 0; m < p.M; ++m)
    if (moves(m) && gathered(m)) std::memcpy(scratch + m * bytes, row(p, src[m]), bytes);
  const int64_t parts = std::clamp<int64_t>(2 * p.M * bytes / kParallelBytes, 1, g_host->num_threads());
  parallel(parts, 1, [=, &p](int64_t begin, int64_t end) {
    auto next = [&](int64_t m) {  // from m on, of these parts
      auto mine = [&](int64_t part) { return begin <= part && part < end; };
      while (m < p.M && !(moves(m) && mine(static_cast<int64_t>((hash_of(dst[m]) >> 32) * parts >> 32)))) ++m;
      return m;
    };
    auto from = [&](int64_t m) { return gathered(m) ? scratch + m * bytes : row(p, src[m]); };
    // Rows lie anywhere: nothing foresees the next. Inlined, because GCC drops calls of what does nothing but fetch.
    auto fetch = [&](int64_t m) __attribute__((always_inline)) {
      const char *at = from(m), *to = row(p, dst[m]);
      for (int64_t i = 0; i < bytes; i += line) __builtin_prefetch(at + i, 0, 2);
      for (int64_t i = 0; i < (past_caches ? line : bytes); i += line)  // or for its page only
        __builtin_prefetch(to + i, 0, 2);
    };
    int64_t ahead = next(0);
    for (int i = 0; i < kAhead && ahead < p.M; ++i) fetch(ahead), ahead = next(ahead + 1);
    for (int64_t m = next(0); m < p.M; m = next(m + 1)) {
      if (ahead < p.M) fetch(ahead), ahead = next(ahead + 1);
      const char* at = from(m);
      char* to = row(p, dst[m]);
      if (past_caches) stream_lines(to, at, bytes);
      else std::memcpy(to, at, bytes);
    }
    if (past_caches) end_of_stream();
  });
  return DSV4_OK;
}

}  // namespace
DSV4_CPU_KERNEL_WITH_WORKSPACE(move_accepted_kv, MoveAcceptedKvParams, launch, workspace)
}  // namespace dsv4::cpu
