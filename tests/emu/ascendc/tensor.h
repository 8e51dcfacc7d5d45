// SPDX-License-Identifier: Apache-2.0
// GlobalTensor and LocalTensor.
#pragma once
#include "api_types.h"

namespace AscendC {

template <class T>
class LocalTensor {
 public:
  using PrimType = T;
  LocalTensor() = default;
  explicit LocalTensor(const ascend_emu::Slice& slice) : slice_(slice) {}

  ASCEND_EMU_API LocalTensor operator[](uint32_t offset) const {
    return LocalTensor(ascend_emu::subslice(slice_, offset, sizeof(T)));
  }
  ASCEND_EMU_API T GetValue(uint32_t index) const {
    T value;
    __builtin_memcpy(&value, ascend_emu::scalar_read(slice_, uint64_t{index} * sizeof(T), sizeof(T)), sizeof(T));
    return value;
  }
  template <class U>
  ASCEND_EMU_API void SetValue(uint32_t index, U value) const {
    const T typed = static_cast<T>(value);
    ascend_emu::scalar_write(slice_, uint64_t{index} * sizeof(T), &typed, sizeof(T));
  }
  template <class U>
  ASCEND_EMU_API LocalTensor<U> ReinterpretCast() const {
    return LocalTensor<U>(slice_);
  }
  uint32_t GetSize() const { return slice_.bytes / sizeof(T); }
  uint32_t GetLength() const { return slice_.bytes; }
  void SetSize(uint32_t elements) { slice_.bytes = elements * sizeof(T); }
  int32_t GetPosition() const { return slice_.position; }
  uint64_t GetPhyAddr() const { return slice_.address; }
  const ascend_emu::Slice& emu_slice() const { return slice_; }

 private:
  ascend_emu::Slice slice_;
};

template <class T>
class GlobalTensor {
 public:
  using PrimType = T;
  ASCEND_EMU_API void SetGlobalBuffer(T* address) { address_ = address; }
  ASCEND_EMU_API void SetGlobalBuffer(T* address, uint64_t elements) { address_ = address, elements_ = elements; }
  ASCEND_EMU_API GlobalTensor operator[](uint64_t offset) const {
    GlobalTensor t = *this;
    t.address_ += offset;
    t.elements_ = elements_ > offset ? elements_ - offset : 0;
    return t;
  }
  ASCEND_EMU_API T GetValue(uint64_t offset) const {
    T value;
    ascend_emu::scalar_read_gm(address_ + offset, &value, sizeof(T));
    return value;
  }
  ASCEND_EMU_API void SetValue(uint64_t offset, T value) const {
    ascend_emu::scalar_write_gm(address_ + offset, &value, sizeof(T));
  }
  template <class U>
  GlobalTensor<U> ReinterpretCast() const {
    GlobalTensor<U> t;
    t.SetGlobalBuffer(reinterpret_cast<U*>(address_), elements_ * sizeof(T) / sizeof(U));
    return t;
  }
  const T* GetPhyAddr() const { return address_; }
  const T* GetPhyAddr(uint64_t offset) const { return address_ + offset; }
  uint64_t GetSize() const { return elements_; }
  T* emu_address() const { return address_; }

 private:
  T* address_ = nullptr;
  uint64_t elements_ = 0;
};

}  // namespace AscendC
