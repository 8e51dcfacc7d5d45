// SPDX-License-Identifier: Apache-2.0
// Barriers and warp collectives under their CUDA names. There is no __activemask: its value is luck on a device too.
#pragma once
#include <cstring>
#include <type_traits>

#include "core.h"

inline void __syncthreads(cuda_emu::Site site = cuda_emu::Site::here()) {
  cuda_emu::barrier(0, 0, cuda_emu::Vote::kNone, false, site);
}
inline int __syncthreads_count(int predicate, cuda_emu::Site site = cuda_emu::Site::here()) {
  return cuda_emu::barrier(0, 0, cuda_emu::Vote::kCount, predicate != 0, site);
}
inline int __syncthreads_and(int predicate, cuda_emu::Site site = cuda_emu::Site::here()) {
  return cuda_emu::barrier(0, 0, cuda_emu::Vote::kAnd, predicate != 0, site);
}
inline int __syncthreads_or(int predicate, cuda_emu::Site site = cuda_emu::Site::here()) {
  return cuda_emu::barrier(0, 0, cuda_emu::Vote::kOr, predicate != 0, site);
}
inline void __syncwarp(unsigned mask = 0xffffffffu, cuda_emu::Site site = cuda_emu::Site::here()) {
  cuda_emu::rendezvous("__syncwarp", mask, nullptr, [](void* const*, uint32_t) {}, site, cuda_emu::Meet::kAnySite);
}
inline void __threadfence_block() {}
inline void __threadfence() { cuda_emu::note_fence(); }
inline void __threadfence_system() { cuda_emu::note_fence(); }

namespace cuda_emu {

// fn(lane) for every lane of the mask that came.
template <class Fn>
inline void each_lane(uint32_t mask, Fn&& fn) {
  for (; mask; mask &= mask - 1) fn(__builtin_ctz(mask));
}

enum class Shuffle { kIndex, kUp, kDown, kXor };

// The lane that a shuffle reads; its own where the segment of `width` lanes ends.
template <Shuffle kind>
inline int shuffle_source(int lane, int argument, int width) {
  const int first = lane & ~(width - 1), last = first + width - 1;
  if (kind == Shuffle::kIndex) return first + (argument & (width - 1));
  if (kind == Shuffle::kUp) return lane - argument >= first ? lane - argument : lane;
  if (kind == Shuffle::kDown) return lane + argument <= last ? lane + argument : lane;
  return (lane ^ argument) <= last ? lane ^ argument : lane;
}

template <Shuffle kind, class T>
inline T shuffle(const char* what, unsigned mask, T value, int argument, int width, Site site) {
  static_assert(std::is_trivially_copyable<T>::value && sizeof(T) <= 8, "CUDA shuffles values of up to 8 bytes");
  if (width < 1 || width > 32 || (width & (width - 1))) fail("%s: width %d is no power of two up to 32", what, width);
  struct Slot {
    T value, result;
    int argument, width;
  } slot{value, value, argument, width};
  rendezvous(what, mask, &slot, [](void* const* slots, uint32_t lanes) {
    each_lane(lanes, [&](int lane) {
      Slot& mine = *static_cast<Slot*>(slots[lane]);
      const int source = shuffle_source<kind>(lane, mine.argument, mine.width);
      if (lanes >> source & 1) mine.result = static_cast<Slot*>(slots[source])->value;
      else std::memset(static_cast<void*>(&mine.result), 0xff, sizeof(T));  // undefined on a device
    });
  }, site);
  return slot.result;
}

struct VoteSlot {
  uint64_t value, result;
};
inline uint64_t vote(const char* what, unsigned mask, uint64_t value, Combine combine, Site site) {
  VoteSlot slot{value, 0};
  rendezvous(what, mask, &slot, combine, site);
  return slot.result;
}
inline unsigned ballot(const char* what, unsigned mask, bool predicate, Site site) {
  return static_cast<unsigned>(vote(what, mask, predicate, [](void* const* slots, uint32_t lanes) {
    uint64_t bits = 0;
    each_lane(lanes, [&](int l) { bits |= static_cast<VoteSlot*>(slots[l])->value << l; });
    each_lane(lanes, [&](int l) { static_cast<VoteSlot*>(slots[l])->result = bits; });
  }, site));
}

// All lanes get op over the lanes' values.
template <class T, T (*op)(T, T)>
inline T reduce(const char* what, unsigned mask, T value, Site site) {
  struct Slot {
    T value;
  } slot{value};
  rendezvous(what, mask, &slot, [](void* const* slots, uint32_t lanes) {
    T total = static_cast<Slot*>(slots[__builtin_ctz(lanes)])->value;
    each_lane(lanes & (lanes - 1), [&](int l) { total = op(total, static_cast<Slot*>(slots[l])->value); });
    each_lane(lanes, [&](int l) { static_cast<Slot*>(slots[l])->value = total; });
  }, site);
  return slot.value;
}
template <class T>
inline T op_add(T a, T b) {
  return static_cast<T>(static_cast<unsigned>(a) + static_cast<unsigned>(b));
}
template <class T> inline T op_min(T a, T b) { return a < b ? a : b; }
template <class T> inline T op_max(T a, T b) { return a > b ? a : b; }
template <class T> inline T op_and(T a, T b) { return a & b; }
template <class T> inline T op_or(T a, T b) { return a | b; }
template <class T> inline T op_xor(T a, T b) { return a ^ b; }

}  // namespace cuda_emu

#define CUDA_EMU_SHUFFLE(name, kind, Argument)                                                                       \
  template <class T>                                                                                                 \
  inline T name(unsigned mask, T value, Argument argument, int width = 32,                                           \
                cuda_emu::Site site = cuda_emu::Site::here()) {                                                      \
    return cuda_emu::shuffle<cuda_emu::Shuffle::kind>(#name, mask, value, static_cast<int>(argument), width, site);  \
  }
CUDA_EMU_SHUFFLE(__shfl_sync, kIndex, int)
CUDA_EMU_SHUFFLE(__shfl_up_sync, kUp, unsigned)
CUDA_EMU_SHUFFLE(__shfl_down_sync, kDown, unsigned)
CUDA_EMU_SHUFFLE(__shfl_xor_sync, kXor, int)
#undef CUDA_EMU_SHUFFLE

inline unsigned __ballot_sync(unsigned mask, int predicate, cuda_emu::Site site = cuda_emu::Site::here()) {
  return cuda_emu::ballot("__ballot_sync", mask, predicate != 0, site);
}
inline int __any_sync(unsigned mask, int predicate, cuda_emu::Site site = cuda_emu::Site::here()) {
  return cuda_emu::ballot("__any_sync", mask, predicate != 0, site) != 0;
}
inline int __all_sync(unsigned mask, int predicate, cuda_emu::Site site = cuda_emu::Site::here()) {
  return cuda_emu::ballot("__all_sync", mask, predicate == 0, site) == 0;
}
template <class T>
inline unsigned __match_any_sync(unsigned mask, T value, cuda_emu::Site site = cuda_emu::Site::here()) {
  static_assert(sizeof(T) == 4 || sizeof(T) == 8, "CUDA matches values of 4 or 8 bytes");
  uint64_t bits = 0;
  std::memcpy(&bits, &value, sizeof(T));
  return static_cast<unsigned>(cuda_emu::vote("__match_any_sync", mask, bits, [](void* const* slots, uint32_t lanes) {
    using cuda_emu::VoteSlot;
    cuda_emu::each_lane(lanes, [&](int l) {
      uint64_t same = 0;
      cuda_emu::each_lane(lanes, [&](int o) {
        if (static_cast<VoteSlot*>(slots[o])->value == static_cast<VoteSlot*>(slots[l])->value) same |= 1ull << o;
      });
      static_cast<VoteSlot*>(slots[l])->result = same;
    });
  }, site));
}

#define CUDA_EMU_REDUCE(name, T, op)                                                                              \
  inline T name(unsigned mask, T value, cuda_emu::Site site = cuda_emu::Site::here()) {                           \
    return cuda_emu::reduce<T, &cuda_emu::op<T>>(#name, mask, value, site);                                       \
  }
CUDA_EMU_REDUCE(__reduce_add_sync, int, op_add)
CUDA_EMU_REDUCE(__reduce_add_sync, unsigned, op_add)
CUDA_EMU_REDUCE(__reduce_min_sync, int, op_min)
CUDA_EMU_REDUCE(__reduce_min_sync, unsigned, op_min)
CUDA_EMU_REDUCE(__reduce_max_sync, int, op_max)
CUDA_EMU_REDUCE(__reduce_max_sync, unsigned, op_max)
CUDA_EMU_REDUCE(__reduce_and_sync, unsigned, op_and)
CUDA_EMU_REDUCE(__reduce_or_sync, unsigned, op_or)
CUDA_EMU_REDUCE(__reduce_xor_sync, unsigned, op_xor)
#undef CUDA_EMU_REDUCE
