// SPDX-License-Identifier: Apache-2.0
// swa_store_kv on vector cores: tiles of up to 16 tokens.
#include "../swa_store_kv_tiling.h"
#include "rope_common.h"

#define DECLARE(suffix)                                                                                      \
  DSV4_ASCEND_DECLARE(dsv4_swa_store_kv_##suffix, GM_ADDR, GM_ADDR, GM_ADDR, GM_ADDR, GM_ADDR, GM_ADDR,       \
                      SwaStoreKvTiling)
DSV4_ASCEND_STREAMS(DECLARE);

namespace dsv4::ascend {
namespace {

// Four rows take a core little longer than one, and every core reads the weight.
constexpr int64_t kFewest = 4;

int32_t launch(const SwaStoreKvParams& p, const Launch& l) {
  const int64_t cores = vector_cores();
  int64_t least = ceil_div<int64_t>(p.T, cores);
  least = least < kFewest ? kFewest : least;
  const int64_t blocks = ceil_div<int64_t>(p.T, least);
  SwaStoreKvTiling v{};
  v.row = rope_rows(p.D, p.R, least < p.T ? least : p.T, p.kv.dtype, true, p.eps);
  v.T = p.T, v.max_pos = p.max_pos, v.slots = p.P * p.page, v.page = p.page;
  v.kv_t = p.kv.stride[0], v.cos_sin_row = p.cos_sin.stride[0];
  v.pages_p = p.kv_pages.stride[0], v.pages_row = p.kv_pages.stride[1];
  v.weight = p.kv_norm_weight.dtype == kF32 ? 1 : 2;
#define LAUNCH(suffix)                                                                                       \
  DSV4_ASCEND_LAUNCH(dsv4_swa_store_kv_##suffix, blocks, l, address(p.kv), address(p.kv_norm_weight),             \
                     address(p.cos_sin), address(p.positions), address(p.slots), address(p.kv_pages), v)
  return DSV4_ASCEND_STREAM_LAUNCH(p.kv.dtype, LAUNCH);
#undef LAUNCH
}

}  // namespace
DSV4_ASCEND_KERNEL(swa_store_kv, SwaStoreKvParams, launch)
DSV4_ASCEND_FLOAT16(swa_store_kv)
}  // namespace dsv4::ascend
