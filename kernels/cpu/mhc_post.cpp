// SPDX-License-Identifier: Apache-2.0
// mhc_post: out[t,i,:] = post[t,i] * y[t,:] + sum_j comb[t,j,i] * residual[t,j,:]
// One token row a work item. Bound by memory: (2*hc + 1) * d elements a token, 2*hc*(hc + 1) flops per channel.
// Contract: include/dsv4spec/mhc.h.
#include "mhc.h"
#include "mhc_mix.h"

namespace dsv4::cpu {
namespace {

int32_t launch(const MhcPostParams& p, const Launch&) {
  mhc_dispatch(p.residual, [&](auto zero, auto hc) {
    using T = decltype(zero);
    constexpr int HC = decltype(hc)::value;
    auto run = [&](auto streams) {
      parallel(p.T, grain_for((2 * HC + 1) * p.d * sizeof(T)), [&](int64_t begin, int64_t end) {
        for (int64_t t = begin; t < end; ++t)
          mix_channels<T, HC, decltype(streams)::value>(p.y, p.residual, p.out, MixCoefficients<HC>(p.post, p.comb, t), t, 0,
                                                        p.d);
        if (streams) end_of_stream();
      });
    };
    if (streamable<T>(p.out, 2 * W)) run(std::true_type{});
    else run(std::false_type{});
  });
  return DSV4_OK;
}

}  // namespace
DSV4_CPU_KERNEL(mhc_post, MhcPostParams, launch)
}  // namespace dsv4::cpu
