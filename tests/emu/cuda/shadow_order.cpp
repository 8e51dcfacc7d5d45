// SPDX-License-Identifier: Apache-2.0
#include <algorithm>

#include "shadow.h"

namespace cuda_emu::shadow {

void Order::launch_begins() {
  chains_.clear();
  acquires_.clear();
}

void Order::block_begins(uint32_t base, uint32_t threads) {
  base_ = base;
  acquires_.clear();
  for (uint32_t i = 0; i < threads; ++i) {
    threads_[i].fences = 0;
    threads_[i].last_fence = Stamp{};
    threads_[i].atomics.clear();
  }
}

void Order::fence(const Stamp& now) {
  PerThread& t = threads_[now.thread()];
  t.last_fence = now;
  if (t.fences < 63) ++t.fences;
  for (const auto& [chain, length] : t.atomics) acquires_.push_back({chain, length, now});
  t.atomics.clear();
}

void Order::atomic(uintptr_t address, const Stamp& now) {
  PerThread& t = threads_[now.thread()];
  std::vector<Release>& chain = chains_[address];  // references stay good while others are added
  t.atomics.emplace_back(&chain, chain.size());
  if (t.atomics.size() > 16) t.atomics.erase(t.atomics.begin());  // a loop of atomics without a fence
  if (t.last_fence.epoch) chain.push_back({base_, t.last_fence});
}

bool Order::acquired(const Stamp& access, bool is_atomic, const Stamp& now) const {
  for (const Acquire& a : acquires_) {
    if (!ordered_in_block(a.fence, now)) continue;
    // Blocks run one after the other, so a chain is sorted; the access lies in the last block that starts
    // before it.
    const auto end = a.chain->begin() + static_cast<ptrdiff_t>(a.length);
    auto r = std::lower_bound(a.chain->begin(), end, access.epoch,
                              [](const Release& release, uint32_t epoch) { return release.base < epoch; });
    if (r == a.chain->begin()) continue;
    const uint32_t base = (r - 1)->base;
    while (r != a.chain->begin() && (--r)->base == base) {
      // Is it the access's block? Then its epochs reach up to the fence's at least; a later block has another
      // base.
      const Stamp& fence = r->fence;
      if (access.epoch > fence.epoch) continue;
      const bool own = access.epoch == fence.epoch && access.thread() == fence.thread() &&
                       access.fences() <= fence.fences() + is_atomic;
      if (access.epoch < fence.epoch || own ||
          (access.warp() == fence.warp() && access.warp_epoch() < fence.warp_epoch()))
        return true;
    }
  }
  return false;
}

}  // namespace cuda_emu::shadow
