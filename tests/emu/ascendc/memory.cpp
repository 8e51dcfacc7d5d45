// SPDX-License-Identifier: Apache-2.0
// "Device" memory for tests: NaN bytes between guard zones that no kernel may reach.
#include <cstring>
#include <map>
#include <mutex>
#include <new>

#include "config.h"

namespace ascend_emu {
namespace {

constexpr size_t kGuard = 64 * 1024;  // bytes before and behind; never given to anybody

struct Allocation {
  char* map;
  size_t bytes;
};
struct Heap {
  std::mutex mutex;
  std::map<uintptr_t, Allocation> live;  // by begin
};
Heap& heap() {
  static Heap h;
  return h;
}

}  // namespace

void* allocate(size_t bytes) {
  const size_t body = (bytes + 511) / 512 * 512;
  char* map = static_cast<char*>(::operator new(body + 2 * kGuard, std::align_val_t{512}, std::nothrow));
  if (!map) return nullptr;
  char* begin = map + kGuard;
  std::memset(map, 0xff, body + 2 * kGuard);
  const std::lock_guard<std::mutex> lock(heap().mutex);
  heap().live[reinterpret_cast<uintptr_t>(begin)] = Allocation{map, bytes};
  return begin;
}

bool release(void* p) {
  const std::lock_guard<std::mutex> lock(heap().mutex);
  const auto it = heap().live.find(reinterpret_cast<uintptr_t>(p));
  if (it == heap().live.end()) return false;
  ::operator delete(it->second.map, std::align_val_t{512});
  heap().live.erase(it);
  return true;
}

std::string describe_outside(const void* address, uint64_t bytes) {
  if (reinterpret_cast<uintptr_t>(address) < 4096) return "a null pointer";
  Heap& h = heap();
  if (h.live.empty()) return "";
  const std::lock_guard<std::mutex> lock(h.mutex);
  const uintptr_t first = reinterpret_cast<uintptr_t>(address), end = first + bytes;
  auto it = h.live.upper_bound(first + kGuard);
  if (it == h.live.begin()) return "";
  --it;
  const uintptr_t begin = it->first, stop = begin + it->second.bytes;
  if (first >= stop + kGuard || end <= begin - kGuard) return "";
  if (first >= begin && end <= stop) return "";
  return "bytes " + std::to_string(static_cast<int64_t>(first - begin)) + " to " +
         std::to_string(static_cast<int64_t>(end - begin)) + " of an allocation of " +
         std::to_string(it->second.bytes);
}

}  // namespace ascend_emu
