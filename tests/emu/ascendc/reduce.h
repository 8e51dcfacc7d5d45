// SPDX-License-Identifier: Apache-2.0
// Reductions, comparisons, selection, gathering.
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
  ascend_emu::reduce("ReduceSum", ascend_emu::Reduction::Sum, ascend_emu::type_of<T>, dst.emu_slice(), src.emu_slice(),
                     work.emu_slice(), emu_detail::counted(count), false);
}
template <class T>
ASCEND_EMU_API void ReduceSum(const LocalTensor<T>& dst, const LocalTensor<T>& src, const LocalTensor<T>& work,
                              const int32_t mask, const int32_t repeatTime, const int32_t srcRepStride) {
  ASCEND_EMU_TYPES(ReduceSum, half, float);
  auto s = emu_detail::masked<true>(static_cast<uint64_t>(mask), sizeof(T), repeatTime);
  s.src0_repeat = srcRepStride;
  ascend_emu::reduce("ReduceSum", ascend_emu::Reduction::Sum, ascend_emu::type_of<T>, dst.emu_slice(), src.emu_slice(),
                     work.emu_slice(), s, false);
}

// ---- one value a repeat, a block of 32 bytes, or a pair. dstRepStride: in elements of the results for whole repeats
// (in pairs with an index), in units of eight blocks' results otherwise.
#define ASCEND_EMU_GROUPS(name, op, group, ...)                                                                    \
  template <class T, bool isSetMask = true>                                                                        \
  ASCEND_EMU_API void name(const LocalTensor<T>& dst, const LocalTensor<T>& src, const int32_t mask,               \
                           const int32_t repeatTime, const int32_t dstRepStride, const int32_t srcBlkStride,       \
                           const int32_t srcRepStride) {                                                           \
    ASCEND_EMU_TYPES(name, __VA_ARGS__);                                                                           \
    auto s = emu_detail::masked<isSetMask>(static_cast<uint64_t>(mask), sizeof(T), repeatTime);                    \
    s.dst_repeat = dstRepStride, s.src0_block = srcBlkStride, s.src0_repeat = srcRepStride;                        \
    ascend_emu::reduce_groups(#name, ascend_emu::Reduction::op, ascend_emu::type_of<T>, dst.emu_slice(),           \
                              src.emu_slice(), s, group, 2);                                                       \
  }
ASCEND_EMU_GROUPS(WholeReduceSum, Sum, 256, half, float)
#undef ASCEND_EMU_GROUPS
#define ASCEND_EMU_BLOCKS(name, op)                                                                                \
  template <class T, bool isSetMask = true>                                                                        \
  ASCEND_EMU_API void name(const LocalTensor<T>& dst, const LocalTensor<T>& src, const int32_t repeatTime,         \
                           const int32_t mask, const int32_t dstRepStride, const int32_t srcBlkStride,             \
                           const int32_t srcRepStride) {                                                           \
    ASCEND_EMU_TYPES(name, half, float);                                                                           \
    auto s = emu_detail::masked<isSetMask>(static_cast<uint64_t>(mask), sizeof(T), repeatTime);                    \
    s.dst_repeat = dstRepStride, s.src0_block = srcBlkStride, s.src0_repeat = srcRepStride;                        \
    ascend_emu::reduce_groups(#name, ascend_emu::Reduction::op, ascend_emu::type_of<T>, dst.emu_slice(),           \
                              src.emu_slice(), s, 32, 2);                                                          \
  }
ASCEND_EMU_BLOCKS(BlockReduceSum, Sum)
ASCEND_EMU_BLOCKS(BlockReduceMax, Max)
ASCEND_EMU_BLOCKS(BlockReduceMin, Min)
#undef ASCEND_EMU_BLOCKS
#define ASCEND_EMU_WHOLE(name, op)                                                                                 \
  template <class T, bool isSetMask = true>                                                                        \
  ASCEND_EMU_API void name(const LocalTensor<T>& dst, const LocalTensor<T>& src, const int32_t mask,               \
                           const int32_t repeatTime, const int32_t dstRepStride, const int32_t srcBlkStride,       \
                           const int32_t srcRepStride, ReduceOrder order = ReduceOrder::ORDER_VALUE_INDEX) {       \
    ASCEND_EMU_TYPES(name, half, float);                                                                           \
    auto s = emu_detail::masked<isSetMask>(static_cast<uint64_t>(mask), sizeof(T), repeatTime);                    \
    s.dst_repeat = dstRepStride, s.src0_block = srcBlkStride, s.src0_repeat = srcRepStride;                        \
    ascend_emu::reduce_groups(#name, ascend_emu::Reduction::op, ascend_emu::type_of<T>, dst.emu_slice(),           \
                              src.emu_slice(), s, 256, static_cast<int>(order));                                   \
  }
ASCEND_EMU_WHOLE(WholeReduceMax, Max)
ASCEND_EMU_WHOLE(WholeReduceMin, Min)
#undef ASCEND_EMU_WHOLE

// ---- comparisons: a bit an element
template <class T, class U>
ASCEND_EMU_API void Compare(const LocalTensor<U>& dst, const LocalTensor<T>& src0, const LocalTensor<T>& src1,
                            CMPMODE mode, uint32_t count) {
  ASCEND_EMU_TYPES(Compare, half, float, int32_t);
  static_assert(ascend_emu::one_of<U, uint8_t, int8_t>, "rule 7: Compare writes int8_t or uint8_t");
  ascend_emu::compare("Compare", ascend_emu::type_of<T>, dst.emu_slice(), src0.emu_slice(), &src1.emu_slice(), 0,
                      static_cast<int>(mode), emu_detail::counted(count));
}
template <class T, class U>
ASCEND_EMU_API void Compares(const LocalTensor<U>& dst, const LocalTensor<T>& src0, const T scalar, CMPMODE mode,
                             uint32_t count) {
  ASCEND_EMU_TYPES(Compares, half, float, int32_t);
  static_assert(ascend_emu::one_of<U, uint8_t, int8_t>, "rule 7: Compares writes int8_t or uint8_t");
  ascend_emu::compare("Compares", ascend_emu::type_of<T>, dst.emu_slice(), src0.emu_slice(), nullptr,
                      emu_detail::bits_of(scalar), static_cast<int>(mode), emu_detail::counted(count));
}
template <class T, class U>
ASCEND_EMU_API void CompareScalar(const LocalTensor<U>& dst, const LocalTensor<T>& src0, const T scalar, CMPMODE mode,
                                  uint32_t count) {
  Compares(dst, src0, scalar, mode, count);
}
template <class T, class U>
ASCEND_EMU_API void Select(const LocalTensor<T>& dst, const LocalTensor<U>& selMask, const LocalTensor<T>& src0,
                           const LocalTensor<T>& src1, SELMODE mode, uint32_t count) {
  ASCEND_EMU_TYPES(Select, half, float);
  ascend_emu::select(ascend_emu::type_of<T>, dst.emu_slice(), selMask.emu_slice(), src0.emu_slice(), &src1.emu_slice(),
                     0, static_cast<int>(mode), emu_detail::counted(count));
}
template <class T, class U>
ASCEND_EMU_API void Select(const LocalTensor<T>& dst, const LocalTensor<U>& selMask, const LocalTensor<T>& src0, T src1,
                           SELMODE mode, uint32_t count) {
  ASCEND_EMU_TYPES(Select, half, float);
  ascend_emu::select(ascend_emu::type_of<T>, dst.emu_slice(), selMask.emu_slice(), src0.emu_slice(), nullptr,
                     emu_detail::bits_of(src1), static_cast<int>(mode), emu_detail::counted(count));
}

// ---- dst[i] = bytes of src at base + offsets[i]
template <class T>
ASCEND_EMU_API void Gather(const LocalTensor<T>& dst, const LocalTensor<T>& src, const LocalTensor<uint32_t>& srcOffset,
                           const uint32_t srcBaseAddr, const uint32_t count) {
  ASCEND_EMU_TYPES(Gather, int16_t, uint16_t, half, bfloat16_t, int32_t, uint32_t, float);
  ascend_emu::gather(ascend_emu::type_of<T>, dst.emu_slice(), src.emu_slice(), srcOffset.emu_slice(), srcBaseAddr,
                     emu_detail::counted(count));
}

}  // namespace AscendC
