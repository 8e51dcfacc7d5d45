// SPDX-License-Identifier: Apache-2.0
// Comparisons, selection, gathering.
#pragma once
#include "reduce.h"

namespace AscendC {

// ---- comparisons: a bit an element. dav-2201 ignores their masks.
#define ASCEND_EMU_COMPARE(name)                                                              \
  ASCEND_EMU_TYPES(name, half, float, int32_t);                                               \
  static_assert(ascend_emu::one_of<U, uint8_t, int8_t>, "rule 7: " #name " writes int8_t or uint8_t")
template <class T, class U>
ASCEND_EMU_API void Compare(const LocalTensor<U>& dst, const LocalTensor<T>& src0, const LocalTensor<T>& src1,
                            CMPMODE mode, uint32_t count) {
  ASCEND_EMU_COMPARE(Compare);
  ascend_emu::compare("Compare", ascend_emu::type_of<T>, dst.emu_slice(), src0.emu_slice(), &src1.emu_slice(), 0,
                      static_cast<int>(mode), emu_detail::counted(count));
}
template <class T, class U, bool isSetMask = true>
ASCEND_EMU_API void Compare(const LocalTensor<U>& dst, const LocalTensor<T>& src0, const LocalTensor<T>& src1,
                            CMPMODE mode, const uint64_t, uint8_t repeatTime, const BinaryRepeatParams& params) {
  ASCEND_EMU_COMPARE(Compare);
  emu_detail::Shape s;
  s.repeat = repeatTime;
  ascend_emu::compare("Compare", ascend_emu::type_of<T>, dst.emu_slice(), src0.emu_slice(), &src1.emu_slice(), 0,
                      static_cast<int>(mode), emu_detail::with(s, params));
}
template <class T, class U>
ASCEND_EMU_API void Compares(const LocalTensor<U>& dst, const LocalTensor<T>& src0, const T scalar, CMPMODE mode,
                             uint32_t count) {
  ASCEND_EMU_COMPARE(Compares);
  ascend_emu::compare("Compares", ascend_emu::type_of<T>, dst.emu_slice(), src0.emu_slice(), nullptr,
                      emu_detail::bits_of(scalar), static_cast<int>(mode), emu_detail::counted(count));
}
template <class T, class U, bool isSetMask = true>
ASCEND_EMU_API void Compares(const LocalTensor<U>& dst, const LocalTensor<T>& src0, const T scalar, CMPMODE mode,
                             const uint64_t, uint8_t repeatTime, const UnaryRepeatParams& params) {
  ASCEND_EMU_COMPARE(Compares);
  emu_detail::Shape s;
  s.repeat = repeatTime;
  ascend_emu::compare("Compares", ascend_emu::type_of<T>, dst.emu_slice(), src0.emu_slice(), nullptr,
                      emu_detail::bits_of(scalar), static_cast<int>(mode), emu_detail::with(s, params));
}
template <class T, class U>
ASCEND_EMU_API void CompareScalar(const LocalTensor<U>& dst, const LocalTensor<T>& src0, const T scalar, CMPMODE mode,
                                  uint32_t count) {
  Compares(dst, src0, scalar, mode, count);
}
#undef ASCEND_EMU_COMPARE

// ---- selection: src0 where a bit of selMask is 1, else src1
#define ASCEND_EMU_SELECT(second, tensor, bits, shape)                                                            \
  ASCEND_EMU_TYPES(Select, half, float);                                                                           \
  static_assert(ascend_emu::one_of<U, uint8_t, uint16_t, uint32_t, uint64_t>, "rule 7: selMask is unsigned");      \
  ascend_emu::select(ascend_emu::type_of<T>, dst.emu_slice(), selMask.emu_slice(), src0.emu_slice(), tensor, bits, \
                     static_cast<int>(mode), shape)
template <class T, class U>
ASCEND_EMU_API void Select(const LocalTensor<T>& dst, const LocalTensor<U>& selMask, const LocalTensor<T>& src0,
                           const LocalTensor<T>& src1, SELMODE mode, uint32_t count) {
  ASCEND_EMU_SELECT(src1, &src1.emu_slice(), 0, emu_detail::counted(count));
}
template <class T, class U>
ASCEND_EMU_API void Select(const LocalTensor<T>& dst, const LocalTensor<U>& selMask, const LocalTensor<T>& src0,
                           T src1, SELMODE mode, uint32_t count) {
  ASCEND_EMU_SELECT(src1, nullptr, emu_detail::bits_of(src1), emu_detail::counted(count));
}
template <class T, class U, bool isSetMask = true>
ASCEND_EMU_API void Select(const LocalTensor<T>& dst, const LocalTensor<U>& selMask, const LocalTensor<T>& src0,
                           const LocalTensor<T>& src1, SELMODE mode, uint64_t mask, uint8_t repeatTime,
                           const BinaryRepeatParams& params) {
  auto s = emu_detail::masked<isSetMask>(mask, sizeof(T), repeatTime);
  ASCEND_EMU_SELECT(src1, &src1.emu_slice(), 0, emu_detail::with(s, params));
}
template <class T, class U, bool isSetMask = true>
ASCEND_EMU_API void Select(const LocalTensor<T>& dst, const LocalTensor<U>& selMask, const LocalTensor<T>& src0,
                           const LocalTensor<T>& src1, SELMODE mode, uint64_t mask[], uint8_t repeatTime,
                           const BinaryRepeatParams& params) {
  auto s = emu_detail::masked<isSetMask>(mask, sizeof(T), repeatTime);
  ASCEND_EMU_SELECT(src1, &src1.emu_slice(), 0, emu_detail::with(s, params));
}
template <class T, class U, bool isSetMask = true>
ASCEND_EMU_API void Select(const LocalTensor<T>& dst, const LocalTensor<U>& selMask, const LocalTensor<T>& src0,
                           T src1, SELMODE mode, uint64_t mask, uint8_t repeatTime,
                           const BinaryRepeatParams& params) {
  auto s = emu_detail::masked<isSetMask>(mask, sizeof(T), repeatTime);
  ASCEND_EMU_SELECT(src1, nullptr, emu_detail::bits_of(src1), emu_detail::with(s, params));
}
#undef ASCEND_EMU_SELECT

// ---- dst[i] = bytes of src at base + offsets[i]
#define ASCEND_EMU_GATHER(shape)                                                                                   \
  ASCEND_EMU_TYPES(Gather, int16_t, uint16_t, half, bfloat16_t, int32_t, uint32_t, float);                         \
  ascend_emu::gather(ascend_emu::type_of<T>, dst.emu_slice(), src.emu_slice(), srcOffset.emu_slice(), srcBaseAddr, \
                     shape)
template <class T>
ASCEND_EMU_API void Gather(const LocalTensor<T>& dst, const LocalTensor<T>& src,
                           const LocalTensor<uint32_t>& srcOffset, const uint32_t srcBaseAddr, const uint32_t count) {
  ASCEND_EMU_GATHER(emu_detail::counted(count));
}
template <class T>
ASCEND_EMU_API void Gather(const LocalTensor<T>& dst, const LocalTensor<T>& src,
                           const LocalTensor<uint32_t>& srcOffset, const uint32_t srcBaseAddr, const uint64_t mask,
                           const uint8_t repeatTime, const uint16_t dstRepStride) {
  auto s = emu_detail::masked<true>(mask, sizeof(T), repeatTime);
  s.dst_repeat = dstRepStride;
  ASCEND_EMU_GATHER(s);
}
template <class T>
ASCEND_EMU_API void Gather(const LocalTensor<T>& dst, const LocalTensor<T>& src,
                           const LocalTensor<uint32_t>& srcOffset, const uint32_t srcBaseAddr, const uint64_t mask[],
                           const uint8_t repeatTime, const uint16_t dstRepStride) {
  auto s = emu_detail::masked<true>(mask, sizeof(T), repeatTime);
  s.dst_repeat = dstRepStride;
  ASCEND_EMU_GATHER(s);
}
#undef ASCEND_EMU_GATHER

struct GatherMaskParams {
  uint8_t src0BlockStride = 1;
  uint16_t repeatTimes = 0, src0RepeatStride = 8;
  uint8_t src1RepeatStride = 0;
  GatherMaskParams() = default;
  GatherMaskParams(uint8_t block, uint16_t repeats, uint16_t src0_repeat, uint8_t src1_repeat)
      : src0BlockStride(block), repeatTimes(repeats), src0RepeatStride(src0_repeat), src1RepeatStride(src1_repeat) {}
};
template <class T, class U>
ASCEND_EMU_API void GatherMask(const LocalTensor<T>& dst, const LocalTensor<T>& src0,
                               const LocalTensor<U>& src1Pattern, const bool reduceMode, const uint32_t mask,
                               const GatherMaskParams& p, uint64_t& rsvdCnt) {
  ASCEND_EMU_TYPES(GatherMask, int16_t, uint16_t, half, bfloat16_t, int32_t, uint32_t, float);
  static_assert(sizeof(T) == sizeof(U) && ascend_emu::one_of<U, uint16_t, uint32_t>,
                "rule 7: src1Pattern is uint16_t or uint32_t, as wide as the data");
  rsvdCnt = ascend_emu::gather_mask(ascend_emu::type_of<T>, dst.emu_slice(), src0.emu_slice(),
                                    &src1Pattern.emu_slice(), 0, reduceMode, mask, p.repeatTimes, p.src0BlockStride,
                                    p.src0RepeatStride, p.src1RepeatStride);
}
template <class T>
ASCEND_EMU_API void GatherMask(const LocalTensor<T>& dst, const LocalTensor<T>& src0, const uint8_t src1Pattern,
                               const bool reduceMode, const uint32_t mask, const GatherMaskParams& p,
                               uint64_t& rsvdCnt) {
  ASCEND_EMU_TYPES(GatherMask, int16_t, uint16_t, half, bfloat16_t, int32_t, uint32_t, float);
  rsvdCnt = ascend_emu::gather_mask(ascend_emu::type_of<T>, dst.emu_slice(), src0.emu_slice(), nullptr, src1Pattern,
                                    reduceMode, mask, p.repeatTimes, p.src0BlockStride, p.src0RepeatStride, 0);
}

// 16 x 16 elements of 16 bits.
template <class T>
ASCEND_EMU_API void Transpose(const LocalTensor<T>& dst, const LocalTensor<T>& src) {
  ASCEND_EMU_TYPES(Transpose, int16_t, uint16_t, half);
  ascend_emu::transpose16(dst.emu_slice(), src.emu_slice());
}

}  // namespace AscendC
