// SPDX-License-Identifier: Apache-2.0
#include "memory.h"

#include <sys/mman.h>

#include <cstdint>
#include <cstring>
#include <deque>
#include <map>
#include <mutex>

#include "config.h"
#include "../common/sanitizer_fiber.h"

namespace cuda_emu {
namespace {

struct Allocation {
  char* begin;
  size_t bytes;
  char* map;
  size_t map_bytes;
};

struct Heap {
  std::mutex mutex;
  std::map<uintptr_t, Allocation> live;  // by begin
  std::deque<Allocation> freed;          // out of reach for a while, so that a use after free faults
};
Heap& heap() {
  static Heap h;
  return h;
}
constexpr size_t kFreedKept = 64;

#if defined(__SANITIZE_ADDRESS__)
void poison_red_zones(const Allocation& a) {
  __asan_poison_memory_region(a.map + kPage, static_cast<size_t>(a.begin - a.map) - kPage);
  __asan_poison_memory_region(a.begin + a.bytes,
                              static_cast<size_t>(a.map + a.map_bytes - kPage - a.begin) - a.bytes);
}
#else
void poison_red_zones(const Allocation&) {}
#endif

}  // namespace

void* allocate(size_t bytes, size_t align) {
  const size_t body = round_up(bytes ? bytes : 1, align);
  const size_t map_bytes = round_up(body, kPage) + 2 * kPage;
  void* map = mmap(nullptr, map_bytes, PROT_NONE, MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE, -1, 0);
  if (map == MAP_FAILED) return nullptr;
  char* first = static_cast<char*>(map) + kPage;
  if (mprotect(first, map_bytes - 2 * kPage, PROT_READ | PROT_WRITE)) {
    munmap(map, map_bytes);
    return nullptr;
  }
  const Allocation a{first + (map_bytes - 2 * kPage - body), bytes, static_cast<char*>(map), map_bytes};
  std::memset(a.begin, 0xff, body);
  poison_red_zones(a);
  Heap& h = heap();
  const std::lock_guard<std::mutex> lock(h.mutex);
  h.live[reinterpret_cast<uintptr_t>(a.begin)] = a;
  return a.begin;
}

bool release(void* p) {
  Heap& h = heap();
  const std::lock_guard<std::mutex> lock(h.mutex);
  const auto it = h.live.find(reinterpret_cast<uintptr_t>(p));
  if (it == h.live.end()) return false;
  const Allocation a = it->second;
  h.live.erase(it);
  emu::unpoison(a.map + kPage, a.map_bytes - 2 * kPage);
  madvise(a.map + kPage, a.map_bytes - 2 * kPage, MADV_DONTNEED);
  mprotect(a.map, a.map_bytes, PROT_NONE);
  h.freed.push_back(a);
  if (h.freed.size() > kFreedKept) {
    munmap(h.freed.front().map, h.freed.front().map_bytes);
    h.freed.pop_front();
  }
  return true;
}

bool find_allocation(const void* address, const void** begin, size_t* bytes) {
  Heap& h = heap();
  const std::lock_guard<std::mutex> lock(h.mutex);
  auto it = h.live.upper_bound(reinterpret_cast<uintptr_t>(address));
  if (it == h.live.begin()) return false;
  const Allocation& a = (--it)->second;
  if (static_cast<const char*>(address) >= a.begin + a.bytes) return false;
  *begin = a.begin;
  *bytes = a.bytes;
  return true;
}

std::string describe_address(const void* address) {
  const char* p = static_cast<const char*>(address);
  Heap& h = heap();
  const std::lock_guard<std::mutex> lock(h.mutex);
  const auto inside = [p](const Allocation& a) { return p >= a.map && p < a.map + a.map_bytes; };
  const auto text = [p](const Allocation& a, const char* kind) {
    return "offset " + std::to_string(p - a.begin) + " of " + kind + std::to_string(a.bytes) + " bytes";
  };
  for (const auto& entry : h.live)
    if (inside(entry.second)) return text(entry.second, "an allocation of ");
  for (const Allocation& a : h.freed)
    if (inside(a)) return text(a, "a freed allocation of ");
  return "";
}

}  // namespace cuda_emu
