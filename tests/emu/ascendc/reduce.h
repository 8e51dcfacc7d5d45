// SPDX-License-Identifier: Apache-2.0
// Reductions.
#pragma once
#include "vector.h"

namespace AscendC {

// ---- everything into one value
#define ASCEND_EMU_REDUCE(name, op)                                                                                \
  template <class T>                                                                                               \
  ASCEND_EMU_API void name(const LocalTensor<T>& dst, const LocalTensor<T>& src, const LocalTensor<T>& work,       \
                           const int32_t count, bool calIndex = false) {                                           \
    ASCEND_EMU_TYPES(name, half, float);                                                                           \
    ascend_emu::reduce(#name, ascend_emu::Reduction::op, ascend_emu::type_of<T>, dst.emu_slice(), src.emu_slice(), \
                       work.emu_slice(), emu_detail::counted(count), calIndex);                                    \
  }                                                                                                                \
  template <class T>                                                                                               \
  ASCEND_EMU_API void name(const LocalTensor<T>& dst, const LocalTensor<T>& src, const LocalTensor<T>& work,       \
                           const int32_t mask, const int32_t repeatTime, const int32_t srcRepStride,               \
                           bool calIndex = false) {                                                                \
    ASCEND_EMU_TYPES(name, half, float);                                                                           \
    auto s = emu_detail::masked<true>(static_cast<uint64_t>(mask), sizeof(T), repeatTime);                         \
    s.src0_repeat = srcRepStride;                                                                                  \
    ascend_emu::reduce(#name, ascend_emu::Reduction::op, ascend_emu::type_of<T>, dst.emu_slice(), src.emu_slice(), \
                       work.emu_slice(), s, calIndex);                                                             \
  }
ASCEND_EMU_REDUCE(ReduceMax, Max)
ASCEND_EMU_REDUCE(ReduceMin, Min)
#undef ASCEND_EMU_REDUCE
template <class T, bool isSetMask = true>
ASCEND_EMU_API void ReduceSum(const LocalTensor<T>& dst, const LocalTensor<T>& src, const LocalTensor<T>& work,
                              const int32_t count) {
  ASCEND_EMU_TYPES(ReduceSum, half, float);
  ascend_emu::reduce("ReduceSum", ascend_emu::Reduction::Sum, ascend_emu::type_of<T>, dst.emu_slice(),
                     src.emu_slice(), work.emu_slice(), emu_detail::counted(count), false);
}
template <class T>
ASCEND_EMU_API void ReduceSum(const LocalTensor<T>& dst, const LocalTensor<T>& src, const LocalTensor<T>& work,
                              const int32_t mask, const int32_t repeatTime, const int32_t srcRepStride) {
  ASCEND_EMU_TYPES(ReduceSum, half, float);
  auto s = emu_detail::masked<true>(static_cast<uint64_t>(mask), sizeof(T), repeatTime);
  s.src0_repeat = srcRepStride;
  ascend_emu::reduce("ReduceSum", ascend_emu::Reduction::Sum, ascend_emu::type_of<T>, dst.emu_slice(),
                     src.emu_slice(), work.emu_slice(), s, false);
}

// ---- one value a repeat (256 bytes), or a block (32 bytes)
enum class ReduceType : uint8_t { SUM, MAX, MIN };
namespace emu_detail {
constexpr ascend_emu::Reduction reduction_of(ReduceType type) {
  return type == ReduceType::SUM   ? ascend_emu::Reduction::Sum
         : type == ReduceType::MAX ? ascend_emu::Reduction::Max
                                   : ascend_emu::Reduction::Min;
}
template <class T>
ASCEND_EMU_API void groups(const char* api, ReduceType type, const LocalTensor<T>& dst, const LocalTensor<T>& src,
                           Shape s, int32_t dst_repeat, int32_t src_block, int32_t src_repeat, uint32_t group,
                           ReduceOrder order) {
  static_assert(one_of<T, half, float>, "rule 7: reductions of dav-2201 take half, float");
  s.dst_repeat = dst_repeat, s.src0_block = src_block, s.src0_repeat = src_repeat;
  ascend_emu::reduce_groups(api, reduction_of(type), type_of<T>, dst.emu_slice(), src.emu_slice(), s, group,
                            type == ReduceType::SUM ? 2 : static_cast<int>(order));
}
}  // namespace emu_detail

template <ReduceType reduceType, class T, class U = T, bool isSetMask = true>
ASCEND_EMU_API void ReduceRepeat(const LocalTensor<T>& dst, const LocalTensor<U>& src, const int32_t mask,
                                 const int32_t repeatTime, const int32_t dstRepStride, const int32_t srcBlkStride,
                                 const int32_t srcRepStride, ReduceOrder order = ReduceOrder::ORDER_VALUE_INDEX) {
  emu_detail::groups("ReduceRepeat", reduceType, dst, src,
                     emu_detail::masked<isSetMask>(static_cast<uint64_t>(mask), sizeof(T), repeatTime), dstRepStride,
                     srcBlkStride, srcRepStride, 256, order);
}
template <ReduceType reduceType, class T, class U = T, bool isSetMask = true>
ASCEND_EMU_API void ReduceRepeat(const LocalTensor<T>& dst, const LocalTensor<U>& src, const uint64_t mask[],
                                 const int32_t repeatTime, const int32_t dstRepStride, const int32_t srcBlkStride,
                                 const int32_t srcRepStride, ReduceOrder order = ReduceOrder::ORDER_VALUE_INDEX) {
  emu_detail::groups("ReduceRepeat", reduceType, dst, src, emu_detail::masked<isSetMask>(mask, sizeof(T), repeatTime),
                     dstRepStride, srcBlkStride, srcRepStride, 256, order);
}
template <ReduceType reduceType, class T, class U = T, bool isSetMask = true>
ASCEND_EMU_API void ReduceDataBlock(const LocalTensor<T>& dst, const LocalTensor<U>& src, const int32_t mask,
                                    const int32_t repeatTime, const int32_t dstRepStride, const int32_t srcBlkStride,
                                    const int32_t srcRepStride) {
  emu_detail::groups("ReduceDataBlock", reduceType, dst, src,
                     emu_detail::masked<isSetMask>(static_cast<uint64_t>(mask), sizeof(T), repeatTime), dstRepStride,
                     srcBlkStride, srcRepStride, 32, ReduceOrder::ORDER_ONLY_VALUE);
}
template <ReduceType reduceType, class T, class U = T, bool isSetMask = true>
ASCEND_EMU_API void ReduceDataBlock(const LocalTensor<T>& dst, const LocalTensor<U>& src, const uint64_t mask[],
                                    const int32_t repeatTime, const int32_t dstRepStride, const int32_t srcBlkStride,
                                    const int32_t srcRepStride) {
  emu_detail::groups("ReduceDataBlock", reduceType, dst, src,
                     emu_detail::masked<isSetMask>(mask, sizeof(T), repeatTime), dstRepStride, srcBlkStride,
                     srcRepStride, 32, ReduceOrder::ORDER_ONLY_VALUE);
}

// Their names up to CANN 8.5, still there: mind the order of mask and repeatTime for blocks.
template <class T, bool isSetMask = true>
ASCEND_EMU_API void WholeReduceSum(const LocalTensor<T>& dst, const LocalTensor<T>& src, const int32_t mask,
                                   const int32_t repeatTime, const int32_t dstRepStride, const int32_t srcBlkStride,
                                   const int32_t srcRepStride) {
  ReduceRepeat<ReduceType::SUM, T, T, isSetMask>(dst, src, mask, repeatTime, dstRepStride, srcBlkStride,
                                                 srcRepStride);
}
#define ASCEND_EMU_OLD_NAMES(kind, type)                                                                           \
  template <class T, bool isSetMask = true>                                                                        \
  ASCEND_EMU_API void BlockReduce##kind(const LocalTensor<T>& dst, const LocalTensor<T>& src,                      \
                                        const int32_t repeatTime, const int32_t mask, const int32_t dstRepStride,  \
                                        const int32_t srcBlkStride, const int32_t srcRepStride) {                  \
    ReduceDataBlock<ReduceType::type, T, T, isSetMask>(dst, src, mask, repeatTime, dstRepStride, srcBlkStride,     \
                                                       srcRepStride);                                              \
  }
ASCEND_EMU_OLD_NAMES(Sum, SUM)
ASCEND_EMU_OLD_NAMES(Max, MAX)
ASCEND_EMU_OLD_NAMES(Min, MIN)
#undef ASCEND_EMU_OLD_NAMES
#define ASCEND_EMU_OLD_NAMES(kind, type)                                                                           \
  template <class T, bool isSetMask = true>                                                                        \
  ASCEND_EMU_API void WholeReduce##kind(const LocalTensor<T>& dst, const LocalTensor<T>& src, const int32_t mask,  \
                                        const int32_t repeatTime, const int32_t dstRepStride,                      \
                                        const int32_t srcBlkStride, const int32_t srcRepStride,                    \
                                        ReduceOrder order = ReduceOrder::ORDER_VALUE_INDEX) {                      \
    ReduceRepeat<ReduceType::type, T, T, isSetMask>(dst, src, mask, repeatTime, dstRepStride, srcBlkStride,        \
                                                    srcRepStride, order);                                          \
  }
ASCEND_EMU_OLD_NAMES(Max, MAX)
ASCEND_EMU_OLD_NAMES(Min, MIN)
#undef ASCEND_EMU_OLD_NAMES

}  // namespace AscendC
