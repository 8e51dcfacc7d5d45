// SPDX-License-Identifier: Apache-2.0
// swa_store_kv: kv_pages[slot] = rope(kv[t,:] / sqrt(mean(kv[t,:]^2) + eps) * weight, positions[t])
// One token a work item. Bound by memory: 2 * D elements a token. Contract: include/dsv4spec/attention.h.
#include "kernel.h"
#include "rope.h"

namespace dsv4::cpu {
namespace {

template <class T>
void run(const SwaStoreKvParams& p) {
  parallel(p.T, grain_for(2 * p.D * sizeof(T)), [&](int64_t begin, int64_t end) {
    alignas(64) float weight[kMaxHeadSize];
    const TensorView& w = p.kv_norm_weight;
    for (int64_t d = 0; d < p.D; d += W)
      store(weight + d, w.dtype == kF32 ? load(w.at<float>() + d) : load(w.at<bf16>() + d));
    Turn turn;
    for (int64_t t = begin; t < end; ++t) {
      const int64_t slot = *p.slots.at<int64_t>(t);
      if (slot < 0) continue;
      turn.set(p.cos_sin.at<float>(*p.positions.at<int64_t>(t)), p.D, p.R);
      const T* kv = p.kv.at<T>(t);
      T* out = p.kv_pages.at<T>(slot / p.page, slot % p.page);
      const float factor = rms_factor(kv, p.D, p.eps);
      int64_t d = 0;
      for (; d < turn.begin; d += W) store(out + d, load(kv + d) * factor * load(weight + d));
      for (; d < p.D; d += W) store(out + d, turn(load(kv + d) * factor * load(weight + d), d));
    }
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
  p.kv.dtype == kF32 ? run<float>(p) : run<bf16>(p);
  return DSV4_OK;
}

}  // namespace
DSV4_CPU_KERNEL(swa_store_kv, SwaStoreKvParams, launch)
}  // namespace dsv4::cpu
