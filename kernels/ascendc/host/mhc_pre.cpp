// SPDX-License-Identifier: Apache-2.0
// mhc_pre on vector cores: one launch for few tokens, else two for every turn of tokens.
#include "mhc_common.h"

#define DECLARE(suffix)                                                                                      \
  DSV4_ASCEND_DECLARE(dsv4_mhc_pre_project_##suffix, GM_ADDR, GM_ADDR, GM_ADDR, MhcProjectTiling);           \
  DSV4_ASCEND_DECLARE(dsv4_mhc_pre_finish_##suffix, GM_ADDR, GM_ADDR, GM_ADDR, GM_ADDR, GM_ADDR, GM_ADDR,    \
                      GM_ADDR, GM_ADDR, MhcFinishTiling);                                                    \
  DSV4_ASCEND_DECLARE(dsv4_mhc_pre_once_##suffix, GM_ADDR, GM_ADDR, GM_ADDR, GM_ADDR, GM_ADDR, GM_ADDR,      \
                      GM_ADDR, GM_ADDR, GM_ADDR, MhcOnceTiling)
DSV4_ASCEND_STREAMS(DECLARE);

namespace dsv4::ascend {
namespace {

int64_t columns_of(const MhcPreParams& p) { return (2 + p.hc) * p.hc; }
uint64_t workspace_size(const MhcPreParams& p) { return mhc::workspace_bytes(p, columns_of(p)); }

int32_t launch(const MhcPreParams& p, const Launch& l) {
  MhcOnceTiling once{};
  once.project = mhc::project_tiling(p, p.residual, columns_of(p), false);
  once.finish = mhc::finish_tiling(p, p.residual, p.y, columns_of(p));
  once.finish.post_t = p.post.stride[0];
  once.finish.comb_t = p.comb.stride[0], once.finish.comb_i = p.comb.stride[1];
  once.finish.iters = static_cast<int32_t>(p.sinkhorn_iters);
  MhcOnceTiling two = once;
  if (const int64_t blocks = mhc::once_blocks(once, p.T, mhc::element_bytes(p.residual.dtype), false, true)) {
#define ONCE(suffix)                                                                                         \
  DSV4_ASCEND_LAUNCH(dsv4_mhc_pre_once_##suffix, blocks, l, address(p.residual), address(p.fn),              \
                     address(p.base), address(p.scale), address(p.norm_weight), address(p.y),                \
                     address(p.post), address(p.comb), workspace_of(l), once)
    return DSV4_ASCEND_STREAM_LAUNCH(p.residual.dtype, ONCE);
#undef ONCE
  }
  int32_t status = DSV4_OK;
  for (mhc::Turn turn = mhc::turn_at(p, 0); turn.tokens && !status; turn = mhc::turn_at(p, turn.first + turn.tokens)) {
    const int64_t t = turn.first, first = mhc::set_tokens(two.project, turn.tokens),
                  second = mhc::set_tokens(two.finish, turn.tokens, true);
    uint8_t* const residual = mhc::from_token(p.residual, t);
#define PROJECT(suffix)                                                                                      \
  DSV4_ASCEND_LAUNCH(dsv4_mhc_pre_project_##suffix, first, l, residual, address(p.fn), workspace_of(l), two.project)
#define FINISH(suffix)                                                                                       \
  DSV4_ASCEND_LAUNCH(dsv4_mhc_pre_finish_##suffix, second, l, residual, address(p.base), address(p.scale),   \
                     address(p.norm_weight), mhc::from_token(p.y, t), mhc::from_token(p.post, t),            \
                     mhc::from_token(p.comb, t), workspace_of(l), two.finish)
    status = DSV4_ASCEND_STREAM_LAUNCH(p.residual.dtype, PROJECT);
    if (!status) status = DSV4_ASCEND_STREAM_LAUNCH(p.residual.dtype, FINISH);
#undef PROJECT
#undef FINISH
  }
  return status;
}

}  // namespace
DSV4_ASCEND_KERNEL_WITH_WORKSPACE(mhc_pre, MhcPreParams, launch, workspace_size)
DSV4_ASCEND_FLOAT16(mhc_pre)
}  // namespace dsv4::ascend
