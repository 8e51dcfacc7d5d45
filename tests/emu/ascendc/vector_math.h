// SPDX-License-Identifier: Apache-2.0
// What vector instructions do to neighbouring elements.
#pragma once
#include "runtime.h"

namespace ascend_emu {

using Flat = void (*)(void* dst, const void* a, const void* b, uint64_t scalar, uint32_t n);
Flat math_of(Math op, Type dst, Type src);        // nullptr: there is none
Flat cast_of(Type dst, Type src);                 // scalar: the round mode
bool cast_allows(Type dst, Type src, int mode);

constexpr uint32_t size_of(Type t) {
  switch (t) {
    case Type::i8: case Type::u8: return 1;
    case Type::f16: case Type::bf16: case Type::i16: case Type::u16: return 2;
    case Type::i64: case Type::u64: return 8;
    default: return 4;
  }
}
double value_of(Type t, const void* p);           // of floats and integers up to 32 bits
void store_value(Type t, void* p, double value);  // rounded to nearest even

}  // namespace ascend_emu
