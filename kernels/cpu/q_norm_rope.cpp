// SPDX-License-Identifier: Apache-2.0
// q_norm_rope: out[t,h,:] = rope(q[t,h,:] / sqrt(mean(q[t,h,:]^2) + eps), positions[t])
// One (token, head) row a work item, read twice from the first-level cache; angles are laid out once a token.
// Bound by memory: 2 * D elements a row. Contract: include/dsv4spec/attention.h.
#include "kernel.h"
#include "rope.h"

namespace dsv4::cpu {
namespace {

template <class T, bool Stream>
void run(const QNormRopeParams& p) {
  parallel(p.T * p.H, grain_for(2 * p.D * sizeof(T)), [&](int64_t begin, int64_t end) {
    Turn turn;
    int64_t turned = -1;  // the token whose angles `turn` holds
    for (int64_t i = begin; i < end; ++i) {
      const int64_t t = i / p.H, h = i % p.H;
      const int64_t position = *p.positions.at<int64_t>(t);
      T* out = p.out.at<T>(t, h);
      if (position < 0) {
        if (p.zero_padding) std::memset(out, 0, p.D * sizeof(T));
        continue;
      }
      if (turned != t) turn.set(p.cos_sin.at<float>(position), p.D, p.R), turned = t;
      const T* q = p.q.at<T>(t, h);
      const float factor = rms_factor(q, p.D, p.eps);
      int64_t d = 0;
      auto put = [&](vf v) { Stream ? stream(out + d, v) : store(out + d, v); };
      for (; d < turn.begin; d += W) put(load(q + d) * factor);
      for (; d < p.D; d += W) put(turn(load(q + d) * factor, d));
    }
    if (Stream) end_of_stream();
  });
}

int32_t launch(const QNormRopeParams& p, const Launch& launch) {
  for (int64_t t = 0; t < p.T; ++t) {
    const int64_t position = *p.positions.at<int64_t>(t);
    if (position < -1 || position >= p.max_pos)
      return refuse(launch, "positions: expected -1 or a row of cos_sin [0, %lld) in row %lld, got %lld",
                    (long long)p.max_pos, (long long)t, (long long)position);
  }
  auto pick = [&](auto zero) {
    using T = decltype(zero);
    streamable<T>(p.out) ? run<T, true>(p) : run<T, false>(p);
  };
  p.q.dtype == kF32 ? pick(float{}) : pick(bf16{});
  return DSV4_OK;
}

}  // namespace
DSV4_CPU_KERNEL(q_norm_rope, QNormRopeParams, launch)
}  // namespace dsv4::cpu
