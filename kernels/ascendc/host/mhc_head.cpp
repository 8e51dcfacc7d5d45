// SPDX-License-Identifier: Apache-2.0
// mhc_head on vector cores: one launch for few tokens, else two for every turn of tokens.
#include "mhc_common.h"

#define DECLARE(suffix)                                                                                      \
  DSV4_ASCEND_DECLARE(dsv4_mhc_head_project_##suffix, GM_ADDR, GM_ADDR, GM_ADDR, MhcProjectTiling);          \
  DSV4_ASCEND_DECLARE(dsv4_mhc_head_finish_##suffix, GM_ADDR, GM_ADDR, GM_ADDR, GM_ADDR, GM_ADDR, GM_ADDR,   \
                      MhcFinishTiling);                                                                      \
  DSV4_ASCEND_DECLARE(dsv4_mhc_head_once_##suffix, GM_ADDR, GM_ADDR, GM_ADDR, GM_ADDR, GM_ADDR, GM_ADDR,     \
                      GM_ADDR, MhcOnceTiling)
DSV4_ASCEND_STREAMS(DECLARE);

namespace dsv4::ascend {
namespace {

uint64_t workspace_size(const MhcHeadParams& p) { return mhc::workspace_bytes(p, p.hc); }

int32_t launch(const MhcHeadParams& p, const Launch& l) {
  MhcOnceTiling once{};
  once.project = mhc::project_tiling(p, p.residual, p.hc, false);
  once.finish = mhc::finish_tiling(p, p.residual, p.y, p.hc);
  MhcOnceTiling two = once;
  if (const int64_t blocks = mhc::once_blocks(once, p.T, mhc::element_bytes(p.residual.dtype), false, false)) {
#define ONCE(suffix)                                                                                         \
  DSV4_ASCEND_LAUNCH(dsv4_mhc_head_once_##suffix, blocks, l, address(p.residual), address(p.fn),             \
                     address(p.base), address(p.scale), address(p.norm_weight), address(p.y), workspace_of(l), once)
    return DSV4_ASCEND_STREAM_LAUNCH(p.residual.dtype, ONCE);
#undef ONCE
  }
  int32_t status = DSV4_OK;
  for (mhc::Turn turn = mhc::turn_at(p, 0); turn.tokens && !status; turn = mhc::turn_at(p, turn.first + turn.tokens)) {
    const int64_t t = turn.first, first = mhc::set_tokens(two.project, turn.tokens),
                  second = mhc::set_tokens(two.finish, turn.tokens, false);
    uint8_t* const residual = mhc::from_token(p.residual, t);
#define PROJECT(suffix)                                                                                      \
  DSV4_ASCEND_LAUNCH(dsv4_mhc_head_project_##suffix, first, l, residual, address(p.fn), workspace_of(l), two.project)
#define FINISH(suffix)                                                                                       \
  DSV4_ASCEND_LAUNCH(dsv4_mhc_head_finish_##suffix, second, l, residual, address(p.base), address(p.scale),  \
                     address(p.norm_weight), mhc::from_token(p.y, t), workspace_of(l), two.finish)
    status = DSV4_ASCEND_STREAM_LAUNCH(p.residual.dtype, PROJECT);
    if (!status) status = DSV4_ASCEND_STREAM_LAUNCH(p.residual.dtype, FINISH);
#undef PROJECT
#undef FINISH
  }
  return status;
}

}  // namespace
DSV4_ASCEND_KERNEL_WITH_WORKSPACE(mhc_head, MhcHeadParams, launch, workspace_size)
DSV4_ASCEND_FLOAT16(mhc_head)
}  // namespace dsv4::ascend
