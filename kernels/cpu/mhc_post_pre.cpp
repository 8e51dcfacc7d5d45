// SPDX-License-Identifier: Apache-2.0
// mhc_post_pre: every piece of a row is mixed (mhc_mix.h), written, and projected while it is in the cache; then
// coefficients, stream sum and norm as in mhc_pre. The bits are those of mhc_post followed by mhc_pre.
#include "mhc_mix.h"
#include "mhc_sinkhorn.h"

namespace dsv4::cpu {
namespace {

uint64_t workspace_size(const MhcPostPreParams& p) {
  return mhc_workspace(p.T, p.hc, p.d, static_cast<int>((2 + p.hc) * p.hc));
}

int32_t launch(const MhcPostPreParams& p, const Launch& l) {
  const MhcRows rows = mhc_rows(p, p.residual_out, p.y_out);
  mhc_dispatch(p.residual, [&](auto zero, auto hc) {
    using T = decltype(zero);
    constexpr int HC = decltype(hc)::value;
    mhc_project_and_join<T, HC, (2 + HC) * HC, true>(
        rows, static_cast<float*>(l.workspace),
        [&](int64_t t, int64_t c0, int64_t n) {
          mix_channels<T, HC>(p.y, p.residual, p.residual_out, MixCoefficients<HC>(p.post, p.comb, t), t, c0, n);
        },
        [&](int64_t t, int count, const vf* m, vf* weights) {
          pre_coefficients<HC>(rows, p.post_out, p.comb_out, p.sinkhorn_iters, t, count, m, weights);
        });
  });
  return DSV4_OK;
}

}  // namespace
DSV4_CPU_KERNEL_WITH_WORKSPACE(mhc_post_pre, MhcPostPreParams, launch, workspace_size)
}  // namespace dsv4::cpu
