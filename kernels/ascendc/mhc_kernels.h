// SPDX-License-Identifier: Apache-2.0
// The two kernels of an mHC op, for one stream dtype.
#pragma once
#include "mhc_mix.h"
#include "mhc_project.h"

namespace dsv4_ascend {

template <class T>
__aicore__ inline void mhc_project(GM_ADDR residual, GM_ADDR fn, GM_ADDR partial,
                                   const MhcProjectTiling& tiling) {
  TPipe pipe;
  MhcProject<T, false> op(tiling);
  op.init(&pipe, residual, fn, partial);
  op.run();
}
template <class T>
__aicore__ inline void mhc_mix_project(GM_ADDR y, GM_ADDR residual, GM_ADDR post, GM_ADDR comb, GM_ADDR fn,
                                       GM_ADDR out, GM_ADDR partial, const MhcProjectTiling& tiling) {
  TPipe pipe;
  MhcProject<T, true> op(tiling);
  op.init(&pipe, residual, fn, partial);
  op.init_mix(&pipe, y, post, comb, out);
  op.run();
}
template <class T>
__aicore__ inline void mhc_join(GM_ADDR residual, GM_ADDR partial, GM_ADDR base, GM_ADDR scale, GM_ADDR norm,
                                GM_ADDR y, int32_t scales, const MhcFinishTiling& tiling) {
  TPipe pipe;
  MhcJoin<T> op(tiling);
  op.init(&pipe, residual, partial, base, scale, norm, y, scales);
  op.run(GetBlockIdx() - tiling.mix_blocks, GetBlockNum() - tiling.mix_blocks);
}
template <class T>
__aicore__ inline void mhc_finish(GM_ADDR residual, GM_ADDR partial, GM_ADDR base, GM_ADDR scale,
                                  GM_ADDR norm, GM_ADDR y, GM_ADDR post, GM_ADDR comb,
                                  const MhcFinishTiling& tiling) {
  if (GetBlockIdx() >= tiling.mix_blocks)
    return mhc_join<T>(residual, partial, base, scale, norm, y, 3, tiling);
  TPipe pipe;
  MhcMix op(tiling);
  op.init(&pipe, partial, base, scale, post, comb);
  op.run(GetBlockIdx(), tiling.mix_blocks);
}

}  // namespace dsv4_ascend
