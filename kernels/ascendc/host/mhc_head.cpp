// SPDX-License-Identifier: Apache-2.0
// mhc_head on vector cores: two launches for every 4096 tokens.
#include "mhc_common.h"

#define DECLARE(suffix)                                                                                      \
  DSV4_ASCEND_DECLARE(dsv4_mhc_head_project_##suffix, GM_ADDR, GM_ADDR, GM_ADDR, MhcProjectTiling);          \
  DSV4_ASCEND_DECLARE(dsv4_mhc_head_finish_##suffix, GM_ADDR, GM_ADDR, GM_ADDR, GM_ADDR, GM_ADDR, GM_ADDR,   \
                      MhcFinishTiling);
DECLARE(bf16)
DECLARE(f32)

namespace dsv4::ascend {
namespace {

uint64_t workspace_size(const MhcHeadParams& p) { return mhc::workspace_bytes(p, p.hc); }

int32_t launch(const MhcHeadParams& p, const Launch& l) {
  MhcProjectTiling project = mhc::project_tiling(p, p.residual, p.hc, false);
  MhcFinishTiling finish = mhc::finish_tiling(p, p.residual, p.y, p.hc);
  int32_t status = DSV4_OK;
  for (int64_t t = 0; t < p.T && status == DSV4_OK; t += mhc::kTurn) {
    const int64_t tokens = p.T - t < mhc::kTurn ? p.T - t : mhc::kTurn, cores = vector_cores();
    mhc::set_tokens(project, tokens);
    const int64_t first = project.items < cores ? project.items : cores,
                  second = mhc::set_tokens(finish, tokens, false);
    uint8_t* const residual = mhc::from_token(p.residual, t);
#define LAUNCH(suffix)                                                                                       \
  status = DSV4_ASCEND_LAUNCH(dsv4_mhc_head_project_##suffix, first, l, residual, address(p.fn),             \
                              workspace_of(l), project);                                                     \
  if (status == DSV4_OK)                                                                                     \
    status = DSV4_ASCEND_LAUNCH(dsv4_mhc_head_finish_##suffix, second, l, residual, address(p.base),         \
                                address(p.scale), address(p.norm_weight), mhc::from_token(p.y, t),           \
                                workspace_of(l), finish);
    if (p.residual.dtype == kBF16) {
      LAUNCH(bf16)
    } else {
      LAUNCH(f32)
    }
#undef LAUNCH
  }
  return status;
}

}  // namespace
DSV4_ASCEND_KERNEL_WITH_WORKSPACE(mhc_head, MhcHeadParams, launch, workspace_size)
}  // namespace dsv4::ascend
