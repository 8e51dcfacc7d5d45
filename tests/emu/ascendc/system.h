// SPDX-License-Identifier: Apache-2.0
// Where a kernel runs, and what all cores do together.
#pragma once
#include "queue.h"

namespace AscendC {

ASCEND_EMU_API int64_t GetBlockIdx() { return ascend_emu::block_index(); }
ASCEND_EMU_API int64_t GetBlockNum() { return ascend_emu::block_count(); }
ASCEND_EMU_API int64_t GetSubBlockIdx() { return ascend_emu::sub_block_index(); }
ASCEND_EMU_API int64_t GetSubBlockNum() { return ascend_emu::sub_block_count(); }
ASCEND_EMU_API int64_t GetTaskRatio() { return ascend_emu::sub_block_count(); }
ASCEND_EMU_API uint8_t* GetUserWorkspace(uint8_t* workspace) { return workspace; }

template <class T, CacheLine lines, DcciDst to = DcciDst::CACHELINE_OUT>
ASCEND_EMU_API void DataCacheCleanAndInvalid(const GlobalTensor<T>& tensor) {
  ascend_emu::clean_cache(tensor.emu_address(), lines == CacheLine::ENTIRE_DATA_CACHE);
}

ASCEND_EMU_API void SetMaskCount() { ascend_emu::set_mask_mode(true); }
ASCEND_EMU_API void SetMaskNorm() { ascend_emu::set_mask_mode(false); }

// ---- conversions of the scalar unit
ASCEND_EMU_API bfloat16_t ToBfloat16(const float& value) { return ascend_emu::scalar_bf16(value); }
ASCEND_EMU_API float ToFloat(const bfloat16_t& value) { return ascend_emu::scalar_float(value); }
ASCEND_EMU_API bfloat16_t Cast(const float& value) { return ascend_emu::scalar_bf16(value); }
ASCEND_EMU_API float Cast(const bfloat16_t& value) { return ascend_emu::scalar_float(value); }

}  // namespace AscendC
