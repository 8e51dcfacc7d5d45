// SPDX-License-Identifier: Apache-2.0
// mhc_pre: the projection of every row on (2 + hc)*hc columns, then coefficients, stream sum and norm (mhc.h).
// One token is bound by reading fn, (2 + hc)*hc*hc*d floats; many tokens by 2*(2 + hc)*hc flops per residual value.
#include "mhc_sinkhorn.h"

namespace dsv4::cpu {
namespace {

uint64_t workspace_size(const MhcPreParams& p) {
  return mhc_workspace(p.T, p.hc, p.d, static_cast<int>((2 + p.hc) * p.hc));
}

int32_t launch(const MhcPreParams& p, const Launch& l) {
  const MhcRows rows = mhc_rows(p, p.residual, p.y);
  mhc_dispatch(p.residual, [&](auto zero, auto hc) {
    constexpr int HC = decltype(hc)::value;
    mhc_project_and_join<decltype(zero), HC, (2 + HC) * HC, false>(
        rows, static_cast<float*>(l.workspace), [](int64_t, int64_t, int64_t) {},
        [&](int64_t t, int count, const vf* m, vf* weights) {
          pre_coefficients<HC>(rows, p.post, p.comb, p.sinkhorn_iters, t, count, m, weights);
        });
  });
  return DSV4_OK;
}

}  // namespace
DSV4_CPU_KERNEL_WITH_WORKSPACE(mhc_pre, MhcPreParams, launch, workspace_size)
}  // namespace dsv4::cpu
