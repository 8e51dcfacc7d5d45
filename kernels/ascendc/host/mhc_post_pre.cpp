// SPDX-License-Identifier: Apache-2.0
// mhc_post_pre on vector cores: one launch for few tokens, else two for every turn of tokens.
#include "mhc_common.h"

#define DECLARE(suffix)                                                                                      \
  DSV4_ASCEND_DECLARE(dsv4_mhc_post_pre_project_##suffix, GM_ADDR, GM_ADDR, GM_ADDR, GM_ADDR, GM_ADDR,       \
                      GM_ADDR, GM_ADDR, MhcProjectTiling);                                                   \
  DSV4_ASCEND_DECLARE(dsv4_mhc_post_pre_finish_##suffix, GM_ADDR, GM_ADDR, GM_ADDR, GM_ADDR, GM_ADDR,        \
                      GM_ADDR, GM_ADDR, GM_ADDR, MhcFinishTiling);                                           \
  DSV4_ASCEND_DECLARE(dsv4_mhc_post_pre_once_##suffix, GM_ADDR, GM_ADDR, GM_ADDR, GM_ADDR, GM_ADDR,          \
                      GM_ADDR, GM_ADDR, GM_ADDR, GM_ADDR, GM_ADDR, GM_ADDR, GM_ADDR, GM_ADDR, MhcOnceTiling)
DSV4_ASCEND_STREAMS(DECLARE);

namespace dsv4::ascend {
namespace {

int64_t columns_of(const MhcPostPreParams& p) { return (2 + p.hc) * p.hc; }
uint64_t workspace_size(const MhcPostPreParams& p) { return mhc::workspace_bytes(p, columns_of(p)); }

int32_t launch(const MhcPostPreParams& p, const Launch& l) {
  MhcOnceTiling once{};
  once.project = mhc::project_tiling(p, p.residual, columns_of(p), true);
  once.finish = mhc::finish_tiling(p, p.residual_out, p.y_out, columns_of(p));
  MhcProjectTiling& project = once.project;
  project.y_t = p.y.stride[0], project.post_t = p.post.stride[0];
  project.comb_t = p.comb.stride[0], project.comb_i = p.comb.stride[1];
  project.out_t = p.residual_out.stride[0], project.out_i = p.residual_out.stride[1];
  MhcFinishTiling& finish = once.finish;
  finish.post_t = p.post_out.stride[0], finish.comb_t = p.comb_out.stride[0],
  finish.comb_i = p.comb_out.stride[1];
  finish.iters = static_cast<int32_t>(p.sinkhorn_iters);
  MhcOnceTiling two = once;
  if (const int64_t blocks = mhc::once_blocks(once, p.T, mhc::element_bytes(p.residual.dtype), true, true)) {
#define ONCE(suffix)                                                                                         \
  DSV4_ASCEND_LAUNCH(dsv4_mhc_post_pre_once_##suffix, blocks, l, address(p.y), address(p.residual),          \
                     address(p.post), address(p.comb), address(p.fn), address(p.base), address(p.scale),     \
                     address(p.norm_weight), address(p.residual_out), address(p.y_out),                      \
                     address(p.post_out), address(p.comb_out), workspace_of(l), once)
    return DSV4_ASCEND_STREAM_LAUNCH(p.residual.dtype, ONCE);
#undef ONCE
  }
  int32_t status = DSV4_OK;
  for (mhc::Turn turn = mhc::turn_at(p, 0); turn.tokens && !status; turn = mhc::turn_at(p, turn.first + turn.tokens)) {
    const int64_t t = turn.first, first = mhc::set_tokens(two.project, turn.tokens),
                  second = mhc::set_tokens(two.finish, turn.tokens, true);
    uint8_t* const residual = mhc::from_token(p.residual_out, t);
#define PROJECT(suffix)                                                                                      \
  DSV4_ASCEND_LAUNCH(dsv4_mhc_post_pre_project_##suffix, first, l, mhc::from_token(p.y, t),                  \
                     mhc::from_token(p.residual, t), mhc::from_token(p.post, t), mhc::from_token(p.comb, t), \
                     address(p.fn), residual, workspace_of(l), two.project)
#define FINISH(suffix)                                                                                       \
  DSV4_ASCEND_LAUNCH(dsv4_mhc_post_pre_finish_##suffix, second, l, residual, address(p.base),                \
                     address(p.scale), address(p.norm_weight), mhc::from_token(p.y_out, t),                  \
                     mhc::from_token(p.post_out, t), mhc::from_token(p.comb_out, t), workspace_of(l),        \
                     two.finish)
    status = DSV4_ASCEND_STREAM_LAUNCH(p.residual.dtype, PROJECT);
    if (!status) status = DSV4_ASCEND_STREAM_LAUNCH(p.residual.dtype, FINISH);
#undef PROJECT
#undef FINISH
  }
  return status;
}

}  // namespace
DSV4_ASCEND_KERNEL_WITH_WORKSPACE(mhc_post_pre, MhcPostPreParams, launch, workspace_size)
DSV4_ASCEND_FLOAT16(mhc_post_pre)
}  // namespace dsv4::ascend
