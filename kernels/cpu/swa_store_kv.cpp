// SPDX-License-Identifier: Apache-2.0
// swa_store_kv: kv_pages[slot] = rope(kv[t,:] / sqrt(mean(kv[t,:]^2) + eps) * weight, positions[t])
// One token a work item, whose row is fetched, and its slot looked up, some tokens ahead. Bound by memory: 2 * D elements a
// token. Contract: include/dsv4spec/attention.h.
#include "kernel.h"
#include "rope.h"

namespace dsv4::cpu {
namespace {

constexpr int64_t kAhead = 8;  // rows
constexpr int64_t kLine = 64;

template <class T>
T* row_of_slot(const SwaStoreKvParams& p, int64_t slot) {
  return p.kv_pages.at<T>(slot / p.page, slot % p.page);
}

template <class T, bool Stream>
void run(const SwaStoreKvParams& p) {
  parallel(p.T, grain_for(2 * p.D * sizeof(T)), [&](int64_t begin, int64_t end) {
    alignas(64) float weight[kMaxHeadSize];
    const TensorView& w = p.kv_norm_weight;
    for (int64_t d = 0; d < p.D; d += W)
      store(weight + d, w.dtype == kF32 ? load(w.at<float>() + d) : load(w.at<bf16>() + d));
    Turn turn;
    // Slots lie anywhere: nothing foresees the next. Inlined, because GCC drops calls of what does nothing but fetch.
    auto fetch = [&](int64_t t) __attribute__((always_inline)) {
      if (t >= end || *p.slots.at<int64_t>(t) < 0) return;
      const char *kv = reinterpret_cast<const char*>(p.kv.at<T>(t)), *out = reinterpret_cast<const char*>(row_of_slot<T>(p, *p.slots.at<int64_t>(t)));
      const int64_t bytes = p.D * sizeof(T);
      for (int64_t i = 0; i < bytes; i += kLine) __builtin_prefetch(kv + i, 0, 2);
      for (int64_t i = 0; i < (Stream ? kLine : bytes); i += kLine) __builtin_prefetch(out + i, 1, 2);  // or its page only
    };
    for (int64_t t = begin; t < begin + kAhead; ++t) fetch(t);
    for (int64_t t = begin; t < end; ++t) {
      fetch(t + kAhead);
      const int64_t slot = *p.slots.at<int64_t>(t);
      if (slot < 0) continue;
      turn.set(p.cos_sin.at<float>(*p.positions.at<int64_t>(t)), p.D, p.R);
      const T* kv = p.kv.at<T>(t);
      T* out = row_of_slot<T>(p, slot);
      const float factor = rms_factor(kv, p.D, p.eps);
      int64_t d = 0;
      auto put = [&](vf v) { Stream ? stream(out + d, v) : store(out + d, v); };
      for (; d < turn.begin; d += W) put(load(kv + d) * factor * load(weight + d));
      for (; d < p.D; d += W) put(turn(load(kv + d) * factor * load(weight + d), d));
    }
    if (Stream) end_of_stream();
  });
}

int32_t launch(const SwaStoreKvParams& p, const Launch& launch) {
  const int64_t slots = p.P * p.page;
  for (int64_t t = 0; t < p.T; ++t) {
    const int64_t slot = *p.slots.at<int64_t>(t);
    if (slot == -1) continue;
    if (slot < 0 || slot >= slots)
      return refuse(launch, "slots: expected -1 or a slot in [0, %lld) in row %lld, got %lld", (long long)slots,
                    (long long)t, (long long)slot);
    const int64_t position = *p.positions.at<int64_t>(t);
    if (position < 0 || position >= p.max_pos)
      return refuse(launch, "positions: expected a row of cos_sin [0, %lld) in row %lld, got %lld",
                    (long long)p.max_pos, (long long)t, (long long)position);
  }
  auto pick = [&](auto zero) {
    using T = decltype(zero);
    const bool past_caches = whole_vectors<T>(p.kv_pages) && 2 * p.T * p.D * static_cast<int64_t>(sizeof(T)) >= kStreamedBytes;
    past_caches ? run<T, true>(p) : run<T, false>(p);
  };
  p.kv.dtype == kF32 ? pick(float{}) : pick(bf16{});
  return DSV4_OK;
}

}  // namespace
DSV4_CPU_KERNEL(swa_store_kv, SwaStoreKvParams, launch)
}  // namespace dsv4::cpu
