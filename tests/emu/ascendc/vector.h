// SPDX-License-Identifier: Apache-2.0
// The vector unit: instructions with a count of elements, or with masks and repeats.
#pragma once
#include "system.h"

namespace AscendC {
namespace emu_detail {

using ascend_emu::Math;
using ascend_emu::one_of;
using ascend_emu::Shape;
using ascend_emu::type_of;

template <class T>
inline uint64_t bits_of(T value) {
  uint64_t bits = 0;
  __builtin_memcpy(&bits, &value, sizeof value);
  return bits;
}
inline Shape counted(int64_t count) {
  Shape s;
  s.counted = true;
  s.count = static_cast<uint32_t>(count);
  if (count < 0 || count > INT32_MAX)
    ascend_emu::violate(6, "count", "expected 0 to 2^31 - 1, got %lld", static_cast<long long>(count));
  return s;
}
template <bool isSetMask>
inline Shape masked(const uint64_t* mask, uint32_t element, uint32_t repeat) {
  if (!isSetMask) return ascend_emu::shape_of_register(element, repeat);
  Shape s;
  s.repeat = repeat;
  s.mask[0] = mask[0], s.mask[1] = element == 2 ? mask[1] : 0;
  return s;
}
template <bool isSetMask>
inline Shape masked(uint64_t mask, uint32_t element, uint32_t repeat) {
  return isSetMask ? ascend_emu::shape_of_mask(mask, element, repeat)
                   : ascend_emu::shape_of_register(element, repeat);
}
inline Shape& with(Shape& s, const BinaryRepeatParams& p) {
  s.dst_block = p.dstBlkStride, s.src0_block = p.src0BlkStride, s.src1_block = p.src1BlkStride;
  s.dst_repeat = p.dstRepStride, s.src0_repeat = p.src0RepStride, s.src1_repeat = p.src1RepStride;
  return s;
}
inline Shape& with(Shape& s, const UnaryRepeatParams& p) {
  s.dst_block = p.dstBlkStride, s.src0_block = p.srcBlkStride;
  s.dst_repeat = p.dstRepStride, s.src0_repeat = p.srcRepStride;
  return s;
}
template <class T>
ASCEND_EMU_API void two(const char* api, Math op, const LocalTensor<T>& d, const LocalTensor<T>& a,
                        const LocalTensor<T>& b, const Shape& s) {
  ascend_emu::elementwise(api, op, type_of<T>, type_of<T>, d.emu_slice(), &a.emu_slice(), &b.emu_slice(), 0, s);
}
template <class T, class U>
ASCEND_EMU_API void one(const char* api, Math op, const LocalTensor<T>& d, const LocalTensor<U>& a, uint64_t scalar,
                        const Shape& s) {
  ascend_emu::elementwise(api, op, type_of<T>, type_of<U>, d.emu_slice(), &a.emu_slice(), nullptr, scalar, s);
}

}  // namespace emu_detail

constexpr uint64_t MASK_PLACEHOLDER = 0;

#define ASCEND_EMU_TYPES(name, ...) \
  static_assert(ascend_emu::one_of<T, __VA_ARGS__>, "rule 7: " #name " of dav-2201 takes " #__VA_ARGS__)

// ---- of two tensors
#define ASCEND_EMU_BINARY(name, ...)                                                                               \
  template <class T>                                                                                               \
  ASCEND_EMU_API void name(const LocalTensor<T>& dst, const LocalTensor<T>& src0, const LocalTensor<T>& src1,      \
                           const int32_t& count) {                                                                 \
    ASCEND_EMU_TYPES(name, __VA_ARGS__);                                                                           \
    emu_detail::two(#name, emu_detail::Math::name, dst, src0, src1, emu_detail::counted(count));                   \
  }                                                                                                                \
  template <class T, bool isSetMask = true>                                                                        \
  ASCEND_EMU_API void name(const LocalTensor<T>& dst, const LocalTensor<T>& src0, const LocalTensor<T>& src1,      \
                           uint64_t mask[], const uint8_t repeatTime, const BinaryRepeatParams& params) {          \
    ASCEND_EMU_TYPES(name, __VA_ARGS__);                                                                           \
    auto s = emu_detail::masked<isSetMask>(mask, sizeof(T), repeatTime);                                           \
    emu_detail::two(#name, emu_detail::Math::name, dst, src0, src1, emu_detail::with(s, params));                  \
  }                                                                                                                \
  template <class T, bool isSetMask = true>                                                                        \
  ASCEND_EMU_API void name(const LocalTensor<T>& dst, const LocalTensor<T>& src0, const LocalTensor<T>& src1,      \
                           uint64_t mask, const uint8_t repeatTime, const BinaryRepeatParams& params) {            \
    ASCEND_EMU_TYPES(name, __VA_ARGS__);                                                                           \
    auto s = emu_detail::masked<isSetMask>(mask, sizeof(T), repeatTime);                                           \
    emu_detail::two(#name, emu_detail::Math::name, dst, src0, src1, emu_detail::with(s, params));                  \
  }
ASCEND_EMU_BINARY(Add, half, float, int16_t, int32_t)
ASCEND_EMU_BINARY(Sub, half, float, int16_t, int32_t)
ASCEND_EMU_BINARY(Mul, half, float, int16_t, int32_t)
ASCEND_EMU_BINARY(Div, half, float)
ASCEND_EMU_BINARY(Max, half, float, int16_t, int32_t)
ASCEND_EMU_BINARY(Min, half, float, int16_t, int32_t)
ASCEND_EMU_BINARY(And, int16_t, uint16_t)
ASCEND_EMU_BINARY(Or, int16_t, uint16_t)
ASCEND_EMU_BINARY(MulAddDst, half, float)
#undef ASCEND_EMU_BINARY

// ---- of one tensor
#define ASCEND_EMU_UNARY(name, ...)                                                                                \
  template <class T>                                                                                               \
  ASCEND_EMU_API void name(const LocalTensor<T>& dst, const LocalTensor<T>& src, const int32_t& count) {           \
    ASCEND_EMU_TYPES(name, __VA_ARGS__);                                                                           \
    emu_detail::one(#name, emu_detail::Math::name, dst, src, 0, emu_detail::counted(count));                       \
  }                                                                                                                \
  template <class T, bool isSetMask = true>                                                                        \
  ASCEND_EMU_API void name(const LocalTensor<T>& dst, const LocalTensor<T>& src, uint64_t mask[],                  \
                           const uint8_t repeatTime, const UnaryRepeatParams& params) {                            \
    ASCEND_EMU_TYPES(name, __VA_ARGS__);                                                                           \
    auto s = emu_detail::masked<isSetMask>(mask, sizeof(T), repeatTime);                                           \
    emu_detail::one(#name, emu_detail::Math::name, dst, src, 0, emu_detail::with(s, params));                      \
  }                                                                                                                \
  template <class T, bool isSetMask = true>                                                                        \
  ASCEND_EMU_API void name(const LocalTensor<T>& dst, const LocalTensor<T>& src, uint64_t mask,                    \
                           const uint8_t repeatTime, const UnaryRepeatParams& params) {                            \
    ASCEND_EMU_TYPES(name, __VA_ARGS__);                                                                           \
    auto s = emu_detail::masked<isSetMask>(mask, sizeof(T), repeatTime);                                           \
    emu_detail::one(#name, emu_detail::Math::name, dst, src, 0, emu_detail::with(s, params));                      \
  }
ASCEND_EMU_UNARY(Abs, half, float)
ASCEND_EMU_UNARY(Exp, half, float)
ASCEND_EMU_UNARY(Ln, half, float)
ASCEND_EMU_UNARY(Sqrt, half, float)
ASCEND_EMU_UNARY(Rsqrt, half, float)       // not exact to 1e-4: the emulator drops low bits
ASCEND_EMU_UNARY(Reciprocal, half, float)  // likewise
ASCEND_EMU_UNARY(Relu, half, float, int32_t)
ASCEND_EMU_UNARY(Not, int16_t, uint16_t)
#undef ASCEND_EMU_UNARY

// ---- with a scalar
#define ASCEND_EMU_SCALAR(name, ...)                                                                               \
  template <class T, bool isSetMask = true>                                                                        \
  ASCEND_EMU_API void name(const LocalTensor<T>& dst, const LocalTensor<T>& src, const T& scalarValue,             \
                           const int32_t& count) {                                                                 \
    ASCEND_EMU_TYPES(name, __VA_ARGS__);                                                                           \
    emu_detail::one(#name, emu_detail::Math::name, dst, src, emu_detail::bits_of(scalarValue),                     \
                    emu_detail::counted(count));                                                                   \
  }                                                                                                                \
  template <class T, bool isSetMask = true>                                                                        \
  ASCEND_EMU_API void name(const LocalTensor<T>& dst, const LocalTensor<T>& src, const T& scalarValue,             \
                           uint64_t mask[], const uint8_t repeatTime, const UnaryRepeatParams& params) {           \
    ASCEND_EMU_TYPES(name, __VA_ARGS__);                                                                           \
    auto s = emu_detail::masked<isSetMask>(mask, sizeof(T), repeatTime);                                           \
    emu_detail::one(#name, emu_detail::Math::name, dst, src, emu_detail::bits_of(scalarValue),                     \
                    emu_detail::with(s, params));                                                                  \
  }                                                                                                                \
  template <class T, bool isSetMask = true>                                                                        \
  ASCEND_EMU_API void name(const LocalTensor<T>& dst, const LocalTensor<T>& src, const T& scalarValue,             \
                           uint64_t mask, const uint8_t repeatTime, const UnaryRepeatParams& params) {             \
    ASCEND_EMU_TYPES(name, __VA_ARGS__);                                                                           \
    auto s = emu_detail::masked<isSetMask>(mask, sizeof(T), repeatTime);                                           \
    emu_detail::one(#name, emu_detail::Math::name, dst, src, emu_detail::bits_of(scalarValue),                     \
                    emu_detail::with(s, params));                                                                  \
  }
ASCEND_EMU_SCALAR(Adds, half, float, int16_t, int32_t)
ASCEND_EMU_SCALAR(Muls, half, float, int16_t, int32_t)
ASCEND_EMU_SCALAR(Maxs, half, float, int16_t, int32_t)
ASCEND_EMU_SCALAR(Mins, half, float, int16_t, int32_t)
ASCEND_EMU_SCALAR(LeakyRelu, half, float)
ASCEND_EMU_SCALAR(ShiftLeft, int16_t, uint16_t, int32_t, uint32_t)
ASCEND_EMU_SCALAR(ShiftRight, int16_t, uint16_t, int32_t, uint32_t)
#undef ASCEND_EMU_SCALAR
template <class T, bool isSetMask = true>
ASCEND_EMU_API void ShiftRight(const LocalTensor<T>& dst, const LocalTensor<T>& src, const T& scalarValue,
                               uint64_t mask, const uint8_t repeatTime, const UnaryRepeatParams& params,
                               bool roundEn) {
  if (roundEn) ascend_emu::violate(6, "ShiftRight", "roundEn is not emulated");
  ShiftRight<T, isSetMask>(dst, src, scalarValue, mask, repeatTime, params);
}

// dst = src * scalar + dst
template <class T, class U>
ASCEND_EMU_API void Axpy(const LocalTensor<T>& dst, const LocalTensor<U>& src, const U& scalarValue,
                         const int32_t& count) {
  static_assert(
      (__is_same(T, U) && ascend_emu::one_of<T, half, float>) || (__is_same(T, float) && __is_same(U, half)),
      "rule 7: Axpy of dav-2201 takes half, float, or half into float");
  emu_detail::one("Axpy", emu_detail::Math::Axpy, dst, src, emu_detail::bits_of(scalarValue),
                  emu_detail::counted(count));
}
template <class T, class U, bool isSetMask = true>
ASCEND_EMU_API void Axpy(const LocalTensor<T>& dst, const LocalTensor<U>& src, const U& scalarValue, uint64_t mask,
                         const uint8_t repeatTime, const UnaryRepeatParams& params) {
  static_assert(
      (__is_same(T, U) && ascend_emu::one_of<T, half, float>) || (__is_same(T, float) && __is_same(U, half)),
      "rule 7: Axpy of dav-2201 takes half, float, or half into float");
  auto s = emu_detail::masked<isSetMask>(mask, sizeof(T), repeatTime);
  emu_detail::one("Axpy", emu_detail::Math::Axpy, dst, src, emu_detail::bits_of(scalarValue),
                  emu_detail::with(s, params));
}

// ---- filling
template <class T>
ASCEND_EMU_API void Duplicate(const LocalTensor<T>& dst, const T& scalarValue, const int32_t& count) {
  ASCEND_EMU_TYPES(Duplicate, half, bfloat16_t, int16_t, uint16_t, int32_t, uint32_t, float);
  ascend_emu::elementwise("Duplicate", emu_detail::Math::Duplicate, ascend_emu::type_of<T>, ascend_emu::type_of<T>,
                          dst.emu_slice(), nullptr, nullptr, emu_detail::bits_of(scalarValue),
                          emu_detail::counted(count));
}
template <class T, bool isSetMask = true>
ASCEND_EMU_API void Duplicate(const LocalTensor<T>& dst, const T& scalarValue, uint64_t mask,
                              const uint8_t repeatTime, const uint16_t dstBlockStride,
                              const uint8_t dstRepeatStride) {
  ASCEND_EMU_TYPES(Duplicate, half, bfloat16_t, int16_t, uint16_t, int32_t, uint32_t, float);
  auto s = emu_detail::masked<isSetMask>(mask, sizeof(T), repeatTime);
  s.dst_block = dstBlockStride, s.dst_repeat = dstRepeatStride;
  ascend_emu::elementwise("Duplicate", emu_detail::Math::Duplicate, ascend_emu::type_of<T>, ascend_emu::type_of<T>,
                          dst.emu_slice(), nullptr, nullptr, emu_detail::bits_of(scalarValue), s);
}
template <class T, bool isSetMask = true>
ASCEND_EMU_API void Duplicate(const LocalTensor<T>& dst, const T& scalarValue, uint64_t mask[],
                              const uint8_t repeatTime, const uint16_t dstBlockStride,
                              const uint8_t dstRepeatStride) {
  ASCEND_EMU_TYPES(Duplicate, half, bfloat16_t, int16_t, uint16_t, int32_t, uint32_t, float);
  auto s = emu_detail::masked<isSetMask>(mask, sizeof(T), repeatTime);
  s.dst_block = dstBlockStride, s.dst_repeat = dstRepeatStride;
  ascend_emu::elementwise("Duplicate", emu_detail::Math::Duplicate, ascend_emu::type_of<T>, ascend_emu::type_of<T>,
                          dst.emu_slice(), nullptr, nullptr, emu_detail::bits_of(scalarValue), s);
}
template <class T>
ASCEND_EMU_API void CreateVecIndex(LocalTensor<T> dst, const T& firstValue, uint32_t count) {
  ASCEND_EMU_TYPES(CreateVecIndex, half, float, int16_t, int32_t);
  ascend_emu::create_index(ascend_emu::type_of<T>, dst.emu_slice(), emu_detail::bits_of(firstValue),
                           emu_detail::counted(count));
}
template <class T>
ASCEND_EMU_API void CreateVecIndex(LocalTensor<T>& dst, const T& firstValue, uint64_t mask, uint8_t repeatTime,
                                   uint16_t dstBlkStride, uint8_t dstRepStride) {
  ASCEND_EMU_TYPES(CreateVecIndex, half, float, int16_t, int32_t);
  auto s = emu_detail::masked<true>(mask, sizeof(T), repeatTime);
  s.dst_block = dstBlkStride, s.dst_repeat = dstRepStride;
  ascend_emu::create_index(ascend_emu::type_of<T>, dst.emu_slice(), emu_detail::bits_of(firstValue), s);
}
template <class T>
ASCEND_EMU_API void Brcb(const LocalTensor<T>& dst, const LocalTensor<T>& src, const uint8_t repeatTime,
                         const BrcbRepeatParams& params) {
  ASCEND_EMU_TYPES(Brcb, half, bfloat16_t, int16_t, uint16_t, int32_t, uint32_t, float);
  ascend_emu::broadcast_blocks(ascend_emu::type_of<T>, dst.emu_slice(), src.emu_slice(), repeatTime,
                               params.dstBlkStride, params.dstRepStride);
}

// ---- Cast
namespace emu_detail {
template <class D, class S>
inline constexpr bool castable =
    (__is_same(S, half) && one_of<D, float, int32_t, int16_t, int8_t, uint8_t>) ||
    (__is_same(S, bfloat16_t) && one_of<D, float, int32_t>) ||
    (__is_same(S, float) && one_of<D, float, half, bfloat16_t, int16_t, int32_t, int64_t>) ||
    (one_of<S, int8_t, uint8_t> && __is_same(D, half)) || (__is_same(S, int16_t) && one_of<D, half, float>) ||
    (__is_same(S, int32_t) && one_of<D, float, int16_t, int64_t>) ||
    (__is_same(S, int64_t) && one_of<D, int32_t, float>);
}
template <class T, class U>
ASCEND_EMU_API void Cast(const LocalTensor<T>& dst, const LocalTensor<U>& src, const RoundMode& roundMode,
                         const uint32_t count) {
  static_assert(emu_detail::castable<T, U>, "rule 9: dav-2201 has no Cast between these types");
  ascend_emu::cast(dst.emu_slice(), ascend_emu::type_of<T>, src.emu_slice(), ascend_emu::type_of<U>,
                   static_cast<int>(roundMode), emu_detail::counted(count));
}
template <class T, class U, bool isSetMask = true>
ASCEND_EMU_API void Cast(const LocalTensor<T>& dst, const LocalTensor<U>& src, const RoundMode& roundMode,
                         const uint64_t mask, const uint8_t repeatTime, const UnaryRepeatParams& params) {
  static_assert(emu_detail::castable<T, U>, "rule 9: dav-2201 has no Cast between these types");
  auto s = emu_detail::masked<isSetMask>(mask, sizeof(T) > sizeof(U) ? sizeof(T) : sizeof(U), repeatTime);
  ascend_emu::cast(dst.emu_slice(), ascend_emu::type_of<T>, src.emu_slice(), ascend_emu::type_of<U>,
                   static_cast<int>(roundMode), emu_detail::with(s, params));
}
template <class T, class U, bool isSetMask = true>
ASCEND_EMU_API void Cast(const LocalTensor<T>& dst, const LocalTensor<U>& src, const RoundMode& roundMode,
                         const uint64_t mask[], const uint8_t repeatTime, const UnaryRepeatParams& params) {
  static_assert(emu_detail::castable<T, U>, "rule 9: dav-2201 has no Cast between these types");
  auto s = emu_detail::masked<isSetMask>(mask, sizeof(T) > sizeof(U) ? sizeof(T) : sizeof(U), repeatTime);
  ascend_emu::cast(dst.emu_slice(), ascend_emu::type_of<T>, src.emu_slice(), ascend_emu::type_of<U>,
                   static_cast<int>(roundMode), emu_detail::with(s, params));
}

// ---- masks kept between instructions
template <class T, MaskMode mode = MaskMode::NORMAL>
ASCEND_EMU_API void SetVectorMask(const uint64_t maskHigh, const uint64_t maskLow) {
  ascend_emu::set_mask(maskHigh, maskLow);
}
template <class T, MaskMode mode = MaskMode::NORMAL>
ASCEND_EMU_API void SetVectorMask(int32_t len) {
  if (mode == MaskMode::COUNTER) return ascend_emu::set_mask(0, static_cast<uint64_t>(len));
  const auto low = len >= 64 ? ~0ull : (1ull << len) - 1;
  const auto high = len >= 128 ? ~0ull : len > 64 ? (1ull << (len - 64)) - 1 : 0;
  ascend_emu::set_mask(high, low);
}
ASCEND_EMU_API void ResetMask() { ascend_emu::set_mask(~0ull, ~0ull); }

}  // namespace AscendC
