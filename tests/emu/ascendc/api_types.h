// SPDX-License-Identifier: Apache-2.0
// Names and parameter structs of the API.
#pragma once
#include "runtime.h"

#define __global__
#define __aicore__
#define __gm__
#define __ubuf__
#ifndef GM_ADDR
#define GM_ADDR uint8_t*
#endif

enum pipe_t : uint8_t {
  PIPE_S = ascend_emu::kS, PIPE_V = ascend_emu::kV, PIPE_M = ascend_emu::kM, PIPE_MTE1 = ascend_emu::kMTE1,
  PIPE_MTE2 = ascend_emu::kMTE2, PIPE_MTE3 = ascend_emu::kMTE3, PIPE_FIX = ascend_emu::kFix,
  PIPE_ALL = ascend_emu::kAllPipes
};
enum event_t : uint8_t { EVENT_ID0, EVENT_ID1, EVENT_ID2, EVENT_ID3, EVENT_ID4, EVENT_ID5, EVENT_ID6, EVENT_ID7 };

enum KernelMetaType {
  KERNEL_TYPE_AIV_ONLY, KERNEL_TYPE_AIC_ONLY, KERNEL_TYPE_MIX_AIV_1_0, KERNEL_TYPE_MIX_AIC_1_0,
  KERNEL_TYPE_MIX_AIC_1_1, KERNEL_TYPE_MIX_AIC_1_2
};
#define KERNEL_TASK_TYPE_DEFAULT(type) \
  ::ascend_emu::set_kernel_type(static_cast<::ascend_emu::KernelType>(static_cast<int>(type) + 1))

// Written without parentheses, `if ASCEND_IS_AIV { }`: the toolkit's hold the constexpr of an if.
#define ASCEND_IS_AIV (const bool emu_vector_core = ::ascend_emu::on_vector_core(); emu_vector_core)
#define ASCEND_IS_AIC (const bool emu_cube_core = !::ascend_emu::on_vector_core(); emu_cube_core)

namespace AscendC {

using TEventID = int8_t;

enum class TPosition : uint8_t {
  GM, A1, A2, B1, B2, C1, C2, CO1, CO2, VECIN, VECOUT, VECCALC, LCM, SPM, SHM, TSCM, C2PIPE2GM, C2PIPE2LOCAL, MAX
};
using QuePosition = TPosition;

namespace emu_detail {
constexpr uint8_t pair(ascend_emu::Pipe from, ascend_emu::Pipe to) { return static_cast<uint8_t>(from * 8 + to); }
constexpr ascend_emu::Pipe from_of(uint8_t event) { return static_cast<ascend_emu::Pipe>(event / 8); }
constexpr ascend_emu::Pipe to_of(uint8_t event) { return static_cast<ascend_emu::Pipe>(event % 8); }
}  // namespace emu_detail

enum class HardEvent : uint8_t {
#define ASCEND_EMU_EVENT(a, b, from, to) a##_##b = emu_detail::pair(ascend_emu::from, ascend_emu::to)
  ASCEND_EMU_EVENT(MTE2, MTE1, kMTE2, kMTE1), ASCEND_EMU_EVENT(MTE1, MTE2, kMTE1, kMTE2),
  ASCEND_EMU_EVENT(MTE1, M, kMTE1, kM), ASCEND_EMU_EVENT(M, MTE1, kM, kMTE1),
  ASCEND_EMU_EVENT(MTE2, V, kMTE2, kV), ASCEND_EMU_EVENT(V, MTE2, kV, kMTE2),
  ASCEND_EMU_EVENT(MTE3, V, kMTE3, kV), ASCEND_EMU_EVENT(V, MTE3, kV, kMTE3),
  ASCEND_EMU_EVENT(M, V, kM, kV), ASCEND_EMU_EVENT(V, M, kV, kM),
  ASCEND_EMU_EVENT(V, V, kV, kV), ASCEND_EMU_EVENT(MTE3, MTE1, kMTE3, kMTE1),
  ASCEND_EMU_EVENT(MTE1, V, kMTE1, kV), ASCEND_EMU_EVENT(MTE2, M, kMTE2, kM),
  ASCEND_EMU_EVENT(M, MTE2, kM, kMTE2), ASCEND_EMU_EVENT(V, MTE1, kV, kMTE1),
  ASCEND_EMU_EVENT(M, FIX, kM, kFix), ASCEND_EMU_EVENT(FIX, M, kFix, kM),
  ASCEND_EMU_EVENT(MTE3, MTE2, kMTE3, kMTE2), ASCEND_EMU_EVENT(MTE2, MTE3, kMTE2, kMTE3),
  ASCEND_EMU_EVENT(S, V, kS, kV), ASCEND_EMU_EVENT(V, S, kV, kS),
  ASCEND_EMU_EVENT(S, MTE2, kS, kMTE2), ASCEND_EMU_EVENT(MTE2, S, kMTE2, kS),
  ASCEND_EMU_EVENT(S, MTE3, kS, kMTE3), ASCEND_EMU_EVENT(MTE3, S, kMTE3, kS),
  ASCEND_EMU_EVENT(S, MTE1, kS, kMTE1), ASCEND_EMU_EVENT(MTE1, S, kMTE1, kS),
  ASCEND_EMU_EVENT(S, M, kS, kM), ASCEND_EMU_EVENT(M, S, kM, kS),
  ASCEND_EMU_EVENT(S, FIX, kS, kFix), ASCEND_EMU_EVENT(FIX, S, kFix, kS),
  ASCEND_EMU_EVENT(FIX, MTE2, kFix, kMTE2), ASCEND_EMU_EVENT(MTE2, FIX, kMTE2, kFix),
  ASCEND_EMU_EVENT(FIX, MTE1, kFix, kMTE1), ASCEND_EMU_EVENT(MTE1, FIX, kMTE1, kFix),
  ASCEND_EMU_EVENT(FIX, MTE3, kFix, kMTE3), ASCEND_EMU_EVENT(MTE3, FIX, kMTE3, kFix),
  ASCEND_EMU_EVENT(FIX, V, kFix, kV), ASCEND_EMU_EVENT(V, FIX, kV, kFix)
#undef ASCEND_EMU_EVENT
};

enum class RoundMode : uint8_t {
  CAST_NONE, CAST_RINT, CAST_FLOOR, CAST_CEIL, CAST_ROUND, CAST_TRUNC, CAST_ODD, CAST_HYBRID
};
enum class CMPMODE : uint8_t { LT, GT, EQ, LE, GE, NE };
enum class SELMODE : uint8_t { VSEL_CMPMASK_SPR, VSEL_TENSOR_SCALAR_MODE, VSEL_TENSOR_TENSOR_MODE };
enum class MaskMode : uint8_t { NORMAL, COUNTER };
enum class ReduceOrder : uint8_t { ORDER_VALUE_INDEX, ORDER_INDEX_VALUE, ORDER_ONLY_VALUE, ORDER_ONLY_INDEX };
enum class CacheLine : uint64_t { SINGLE_CACHE_LINE, ENTIRE_DATA_CACHE };
enum class DcciDst : uint64_t { CACHELINE_ALL, CACHELINE_UB, CACHELINE_OUT, CACHELINE_ATOMIC };

struct UnaryRepeatParams {
  uint16_t dstBlkStride = 1, srcBlkStride = 1;
  uint8_t dstRepStride = 8, srcRepStride = 8;
  UnaryRepeatParams() = default;
  UnaryRepeatParams(uint16_t dst_block, uint16_t src_block, uint8_t dst_repeat, uint8_t src_repeat)
      : dstBlkStride(dst_block), srcBlkStride(src_block), dstRepStride(dst_repeat), srcRepStride(src_repeat) {}
};
struct BinaryRepeatParams {
  uint8_t dstBlkStride = 1, src0BlkStride = 1, src1BlkStride = 1;
  uint8_t dstRepStride = 8, src0RepStride = 8, src1RepStride = 8;
  BinaryRepeatParams() = default;
  BinaryRepeatParams(uint8_t dst_block, uint8_t src0_block, uint8_t src1_block, uint8_t dst_repeat,
                     uint8_t src0_repeat, uint8_t src1_repeat)
      : dstBlkStride(dst_block), src0BlkStride(src0_block), src1BlkStride(src1_block), dstRepStride(dst_repeat),
        src0RepStride(src0_repeat), src1RepStride(src1_repeat) {}
};
struct BrcbRepeatParams {
  uint16_t dstBlkStride = 1, dstRepStride = 8;
  BrcbRepeatParams() = default;
  BrcbRepeatParams(uint16_t block, uint16_t repeat) : dstBlkStride(block), dstRepStride(repeat) {}
};
struct CopyRepeatParams {
  uint16_t dstStride = 1, srcStride = 1;
  uint16_t dstRepeatSize = 8, srcRepeatSize = 8;
  CopyRepeatParams() = default;
  CopyRepeatParams(uint16_t dst, uint16_t src, uint16_t dst_repeat, uint16_t src_repeat)
      : dstStride(dst), srcStride(src), dstRepeatSize(dst_repeat), srcRepeatSize(src_repeat) {}
};

struct DataCopyParams {  // lengths and gaps in 32-byte blocks
  uint16_t blockCount = 1, blockLen = 0;
  union {
    uint16_t srcStride = 0, srcGap;
  };
  union {
    uint16_t dstStride = 0, dstGap;
  };
  DataCopyParams() {}
  DataCopyParams(uint16_t count, uint16_t length, uint16_t src_gap, uint16_t dst_gap)
      : blockCount(count), blockLen(length), srcStride(src_gap), dstStride(dst_gap) {}
};
struct DataCopyExtParams {
  uint16_t blockCount = 1;
  uint32_t blockLen = 0, srcStride = 0, dstStride = 0, rsv = 0;
  DataCopyExtParams() = default;
  DataCopyExtParams(uint16_t count, uint32_t length, uint32_t src_gap, uint32_t dst_gap, uint32_t reserved)
      : blockCount(count), blockLen(length), srcStride(src_gap), dstStride(dst_gap), rsv(reserved) {}
};
struct DataCopyPadParams {
  bool isPad = false;
  uint8_t leftPadding = 0, rightPadding = 0;
  uint64_t paddingValue = 0;
  DataCopyPadParams() = default;
  DataCopyPadParams(bool pad, uint8_t left, uint8_t right, uint64_t value)
      : isPad(pad), leftPadding(left), rightPadding(right), paddingValue(value) {}
};
template <class T>
struct DataCopyPadExtParams {
  bool isPad = false;
  uint8_t leftPadding = 0, rightPadding = 0;
  T paddingValue{};
  DataCopyPadExtParams() = default;
  DataCopyPadExtParams(bool pad, uint8_t left, uint8_t right, T value)
      : isPad(pad), leftPadding(left), rightPadding(right), paddingValue(value) {}
};

}  // namespace AscendC
