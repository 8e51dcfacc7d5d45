// SPDX-License-Identifier: Apache-2.0
// DataCopy and DataCopyPad between global and local memory, and within the unified buffer.
#pragma once
#include "select.h"

namespace AscendC {

namespace emu_detail {
inline ascend_emu::CopyShape whole(uint64_t count, uint32_t element) {
  return {1, static_cast<uint32_t>(count * element), 0, 0};
}
inline ascend_emu::CopyShape blocks(const DataCopyParams& p) {
  ascend_emu::check_copy_params("DataCopy", p.blockCount, p.blockLen, p.srcStride, p.dstStride);
  return {p.blockCount, p.blockLen * 32u, p.srcStride * 32, p.dstStride * 32};
}
}  // namespace emu_detail

// ---- a count of elements
template <class T>
ASCEND_EMU_API void DataCopy(const LocalTensor<T>& dst, const GlobalTensor<T>& src, const uint32_t count) {
  ascend_emu::count_bytes("DataCopy", count, sizeof(T));
  ascend_emu::copy_in("DataCopy", dst.emu_slice(), src.emu_address(), emu_detail::whole(count, sizeof(T)));
}
template <class T>
ASCEND_EMU_API void DataCopy(const GlobalTensor<T>& dst, const LocalTensor<T>& src, const uint32_t count) {
  ascend_emu::count_bytes("DataCopy", count, sizeof(T));
  ascend_emu::copy_out("DataCopy", dst.emu_address(), src.emu_slice(), emu_detail::whole(count, sizeof(T)));
}
template <class T>
ASCEND_EMU_API void DataCopy(const LocalTensor<T>& dst, const LocalTensor<T>& src, const uint32_t count) {
  ascend_emu::count_bytes("DataCopy", count, sizeof(T));
  ascend_emu::copy_local("DataCopy", dst.emu_slice(), src.emu_slice(), emu_detail::whole(count, sizeof(T)));
}

// ---- blocks with gaps
template <class T>
ASCEND_EMU_API void DataCopy(const LocalTensor<T>& dst, const GlobalTensor<T>& src, const DataCopyParams& params) {
  ascend_emu::copy_in("DataCopy", dst.emu_slice(), src.emu_address(), emu_detail::blocks(params));
}
template <class T>
ASCEND_EMU_API void DataCopy(const GlobalTensor<T>& dst, const LocalTensor<T>& src, const DataCopyParams& params) {
  ascend_emu::copy_out("DataCopy", dst.emu_address(), src.emu_slice(), emu_detail::blocks(params));
}
template <class T>
ASCEND_EMU_API void DataCopy(const LocalTensor<T>& dst, const LocalTensor<T>& src, const DataCopyParams& params) {
  ascend_emu::copy_local("DataCopy", dst.emu_slice(), src.emu_slice(), emu_detail::blocks(params));
}

// ---- any number of bytes
template <class T>
ASCEND_EMU_API void DataCopyPad(const LocalTensor<T>& dst, const GlobalTensor<T>& src,
                                const DataCopyExtParams& params, const DataCopyPadExtParams<T>& padding) {
  ascend_emu::pad_in(
      dst.emu_slice(), src.emu_address(),
      {params.blockCount, params.blockLen, params.srcStride, int64_t{params.dstStride} * 32}, sizeof(T),
      {padding.isPad, padding.leftPadding * static_cast<uint32_t>(sizeof(T)),
       padding.rightPadding * static_cast<uint32_t>(sizeof(T)), emu_detail::bits_of(padding.paddingValue)});
}
template <class T>
ASCEND_EMU_API void DataCopyPad(const LocalTensor<T>& dst, const GlobalTensor<T>& src, const DataCopyParams& params,
                                const DataCopyPadParams& padding) {
  ascend_emu::pad_in(dst.emu_slice(), src.emu_address(),
                     {params.blockCount, params.blockLen, params.srcStride, int64_t{params.dstStride} * 32},
                     sizeof(T),
                     {padding.isPad, padding.leftPadding * static_cast<uint32_t>(sizeof(T)),
                      padding.rightPadding * static_cast<uint32_t>(sizeof(T)), padding.paddingValue});
}
template <class T>
ASCEND_EMU_API void DataCopyPad(const GlobalTensor<T>& dst, const LocalTensor<T>& src,
                                const DataCopyExtParams& params) {
  ascend_emu::pad_out(dst.emu_address(), src.emu_slice(),
                      {params.blockCount, params.blockLen, int64_t{params.srcStride} * 32, params.dstStride},
                      sizeof(T));
}
template <class T>
ASCEND_EMU_API void DataCopyPad(const GlobalTensor<T>& dst, const LocalTensor<T>& src, const DataCopyParams& params) {
  ascend_emu::pad_out(dst.emu_address(), src.emu_slice(),
                      {params.blockCount, params.blockLen, int64_t{params.srcStride} * 32, params.dstStride},
                      sizeof(T));
}

// ---- within the unified buffer, by masks
template <class T, bool isSetMask = true>
ASCEND_EMU_API void Copy(const LocalTensor<T>& dst, const LocalTensor<T>& src, const uint64_t mask,
                         const uint8_t repeatTime, const CopyRepeatParams& params) {
  ASCEND_EMU_TYPES(Copy, int16_t, uint16_t, half, bfloat16_t, int32_t, uint32_t, float);
  auto s = emu_detail::masked<isSetMask>(mask, sizeof(T), repeatTime);
  s.dst_block = params.dstStride, s.src0_block = params.srcStride;
  s.dst_repeat = params.dstRepeatSize, s.src0_repeat = params.srcRepeatSize;
  emu_detail::one("Copy", emu_detail::Math::Copy, dst, src, 0, s);
}

// ---- copies to global memory that add to (or keep the larger, smaller of) what stands there
template <class T>
ASCEND_EMU_API void SetAtomicAdd() {
  ASCEND_EMU_TYPES(SetAtomicAdd, float, half, int16_t, int32_t, int8_t, bfloat16_t);
  ascend_emu::set_atomic(ascend_emu::Atomic::Add, ascend_emu::type_of<T>);
}
ASCEND_EMU_API void DisableDmaAtomic() { ascend_emu::set_atomic(ascend_emu::Atomic::None, ascend_emu::Type::none); }
ASCEND_EMU_API void SetAtomicNone() { DisableDmaAtomic(); }

}  // namespace AscendC
