// SPDX-License-Identifier: Apache-2.0
// Words that kernels and the run time of the emulator share: pipes, memories, element types, slices of memory.
#pragma once
#include <cstddef>
#include <cstdint>

#define ASCEND_EMU_API inline __attribute__((always_inline))  // the kernel's line is then the caller's

// Opaque: no arithmetic on scalars of these types, as in the rules of the project.
struct half {
  uint16_t bits;
  half() = default;
  explicit half(float value);  // round to nearest even
  explicit operator float() const;
};
struct bfloat16_t {
  uint16_t bits;
};

namespace ascend_emu {

enum Pipe : uint8_t { kS, kV, kM, kMTE1, kMTE2, kMTE3, kFix, kPipes, kAllPipes = 15 };
enum Space : uint8_t { kUB, kL1, kL0A, kL0B, kL0C, kBT, kFB, kSpaces, kGM = 15 };
enum class Type : uint8_t { f32, f16, bf16, i32, i16, i8, u32, u16, u8, i64, u64, none };

template <class T>
struct TypeOf {
  static constexpr Type value = Type::none;
};
#define ASCEND_EMU_TYPE(T, name) \
  template <>                    \
  struct TypeOf<T> {             \
    static constexpr Type value = Type::name; \
  };
ASCEND_EMU_TYPE(float, f32)
ASCEND_EMU_TYPE(half, f16)
ASCEND_EMU_TYPE(bfloat16_t, bf16)
ASCEND_EMU_TYPE(int32_t, i32)
ASCEND_EMU_TYPE(int16_t, i16)
ASCEND_EMU_TYPE(int8_t, i8)
ASCEND_EMU_TYPE(uint32_t, u32)
ASCEND_EMU_TYPE(uint16_t, u16)
ASCEND_EMU_TYPE(uint8_t, u8)
ASCEND_EMU_TYPE(int64_t, i64)
ASCEND_EMU_TYPE(uint64_t, u64)
#undef ASCEND_EMU_TYPE
template <class T>
inline constexpr Type type_of = TypeOf<T>::value;

template <class T, class... Allowed>
inline constexpr bool one_of = (__is_same(T, Allowed) || ...);

// What a LocalTensor is: bytes of one core's local memory, within the buffer that they were taken from.
struct Slice {
  uint32_t address = 0, bytes = 0;  // in its memory; of this view
  uint32_t begin = 0, end = 0;      // of the buffer
  uint16_t slot = 0xffff, life = 0; // which buffer of the core, and which of its lives
  Space space = kUB;
  uint8_t position = 0;
};

// The strides and masks of one vector instruction.
struct Shape {
  bool counted = false;     // the form with a count; else masks and repeats
  uint32_t count = 0;
  uint64_t mask[2] = {0, 0};
  uint32_t repeat = 0;
  uint32_t dst_block = 1, src0_block = 1, src1_block = 1;  // strides in 32-byte blocks
  uint32_t dst_repeat = 8, src0_repeat = 8, src1_repeat = 8;
};

constexpr uint32_t kBlockBytes = 32, kRepeatBytes = 256;

}  // namespace ascend_emu
