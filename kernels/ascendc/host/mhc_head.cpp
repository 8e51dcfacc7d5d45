// SPDX-License-Identifier: Apache-2.0
// mhc_head on vector cores: two launches, again for every turn of tokens.
#include "mhc_common.h"

#define DECLARE(suffix)                                                                                      \
  DSV4_ASCEND_DECLARE(dsv4_mhc_head_project_##suffix, GM_ADDR, GM_ADDR, GM_ADDR, MhcProjectTiling);          \
  DSV4_ASCEND_DECLARE(dsv4_mhc_head_finish_##suffix, GM_ADDR, GM_ADDR, GM_ADDR, GM_ADDR, GM_ADDR, GM_ADDR,   \
                      MhcFinishTiling);
DECLARE(bf16)
DECLARE(f16)
DECLARE(f32)

namespace dsv4::ascend {
namespace {

uint64_t workspace_size(const MhcHeadParams& p) { return mhc::workspace_bytes(p, p.hc); }

int32_t launch(const MhcHeadParams& p, const Launch& l) {
  MhcProjectTiling project = mhc::project_tiling(p, p.residual, p.hc, false);
  MhcFinishTiling finish = mhc::finish_tiling(p, p.residual, p.y, p.hc);
  const int64_t turn = mhc::turn_of(p);
  int32_t status = DSV4_OK;
  for (int64_t t = 0; t < p.T && status == DSV4_OK; t += turn) {
    const int64_t tokens = p.T - t < turn ? p.T - t : turn, cores = vector_cores();
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
DSV4_ASCEND_KERNEL_WITH_WORKSPACE(mhc_head, MhcHeadParams, launch, workspace_size)
DSV4_ASCEND_FLOAT16(mhc_head)
}  // namespace dsv4::ascend
