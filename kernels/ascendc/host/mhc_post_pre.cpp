// SPDX-License-Identifier: Apache-2.0
// mhc_post_pre on vector cores: two launches, again for every turn of tokens.
#include "mhc_common.h"

#define DECLARE(suffix)                                                                                      \
  DSV4_ASCEND_DECLARE(dsv4_mhc_post_pre_project_##suffix, GM_ADDR, GM_ADDR, GM_ADDR, GM_ADDR, GM_ADDR,       \
                      GM_ADDR, GM_ADDR, MhcProjectTiling);                                                   \
  DSV4_ASCEND_DECLARE(dsv4_mhc_post_pre_finish_##suffix, GM_ADDR, GM_ADDR, GM_ADDR, GM_ADDR, GM_ADDR,        \
                      GM_ADDR, GM_ADDR, GM_ADDR, MhcFinishTiling);
DECLARE(bf16)
DECLARE(f16)
DECLARE(f32)

namespace dsv4::ascend {
namespace {

int64_t columns_of(const MhcPostPreParams& p) { return (2 + p.hc) * p.hc; }
uint64_t workspace_size(const MhcPostPreParams& p) { return mhc::workspace_bytes(p, columns_of(p)); }

int32_t launch(const MhcPostPreParams& p, const Launch& l) {
  MhcProjectTiling project = mhc::project_tiling(p, p.residual, columns_of(p), true);
  project.y_t = p.y.stride[0], project.post_t = p.post.stride[0];
  project.comb_t = p.comb.stride[0], project.comb_i = p.comb.stride[1];
  project.out_t = p.residual_out.stride[0], project.out_i = p.residual_out.stride[1];
  MhcFinishTiling finish = mhc::finish_tiling(p, p.residual_out, p.y_out, columns_of(p));
  finish.post_t = p.post_out.stride[0], finish.comb_t = p.comb_out.stride[0],
  finish.comb_i = p.comb_out.stride[1];
  finish.iters = static_cast<int32_t>(p.sinkhorn_iters);
  const int64_t turn = mhc::turn_of(p);
  int32_t status = DSV4_OK;
  for (int64_t t = 0; t < p.T && status == DSV4_OK; t += turn) {
    const int64_t tokens = p.T - t < turn ? p.T - t : turn, cores = vector_cores();
    mhc::set_tokens(project, tokens);
    const int64_t first = project.items < cores ? project.items : cores,
                  second = mhc::set_tokens(finish, tokens, true);
    uint8_t* const residual = mhc::from_token(p.residual_out, t);
#define LAUNCH(suffix)                                                                                       \
  status =                                                                                                   \
      DSV4_ASCEND_LAUNCH(dsv4_mhc_post_pre_project_##suffix, first, l, mhc::from_token(p.y, t),              \
                         mhc::from_token(p.residual, t), mhc::from_token(p.post, t),                         \
                         mhc::from_token(p.comb, t), address(p.fn), residual, workspace_of(l), project);     \
  if (status == DSV4_OK)                                                                                     \
    status = DSV4_ASCEND_LAUNCH(dsv4_mhc_post_pre_finish_##suffix, second, l, residual, address(p.base),     \
                                address(p.scale), address(p.norm_weight), mhc::from_token(p.y_out, t),       \
                                mhc::from_token(p.post_out, t), mhc::from_token(p.comb_out, t),              \
                                workspace_of(l), finish);
    if (p.residual.dtype == kBF16) {
      LAUNCH(bf16)
    } else if (p.residual.dtype == kF16) {
      LAUNCH(f16)
    } else {
      LAUNCH(f32)
    }
#undef LAUNCH
  }
  return status;
}

}  // namespace
DSV4_ASCEND_KERNEL_WITH_WORKSPACE(mhc_post_pre, MhcPostPreParams, launch, workspace_size)
DSV4_ASCEND_FLOAT16(mhc_post_pre)
}  // namespace dsv4::ascend
