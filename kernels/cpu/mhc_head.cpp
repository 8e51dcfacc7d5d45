// SPDX-License-Identifier: Apache-2.0
// mhc_head: the projection of every row on hc columns, then the weighted stream sum and norm (mhc.h).
// Bound by memory: hc*d residual values a token, and fn once.
#include "mhc.h"

namespace dsv4::cpu {
namespace {

uint64_t workspace_size(const MhcHeadParams& p) {
  return mhc_workspace(p.T, p.hc, p.d, static_cast<int>(p.hc));
}

int32_t launch(const MhcHeadParams& p, const Launch& l) {
  const MhcRows rows = mhc_rows(p, p.residual, p.y);
  const float scale = *p.scale.at<const float>(), eps = static_cast<float>(p.hc_eps);
  mhc_dispatch(p.residual, [&](auto zero, auto hc) {
    constexpr int HC = decltype(hc)::value;
    mhc_project_and_join<decltype(zero), HC, HC, false>(
        rows, static_cast<float*>(l.workspace), [](int64_t, int64_t, int64_t) {},
        [&](int64_t, int, const vf* m, vf* weights) {
          for (int i = 0; i < HC; ++i) weights[i] = sigmoid(m[i] * scale + *p.base.at<const float>(i)) + eps;
        });
  });
  return DSV4_OK;
}

}  // namespace
DSV4_CPU_KERNEL_WITH_WORKSPACE(mhc_head, MhcHeadParams, launch, workspace_size)
}  // namespace dsv4::cpu
