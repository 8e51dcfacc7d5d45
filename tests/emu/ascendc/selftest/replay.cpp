// SPDX-License-Identifier: Apache-2.0
// One instruction each: the calls of the worked examples of its documentation page, between a load and a store.
// tests/test_emu_ascendc_api.py holds the numbers and names the pages.
#include "selftest.h"

using selftest::Bench;

namespace {

const BinaryRepeatParams kBinary(1, 1, 1, 8, 8, 8);
const UnaryRepeatParams kUnary(1, 1, 8, 8);

// The three forms of the examples: with a count, with a number of lanes, with bits. 512 elements of 16 bits.
#define DO_BINARY(name, T)                                                                 \
  SELFTEST(do_##name, AIV_ONLY, g) {                                                       \
    Bench k(g);                                                                            \
    auto a = k.a<T>(), b = k.b<T>(), d = k.d<T>();                                         \
    uint64_t bits[2] = {UINT64_MAX, UINT64_MAX};                                           \
    if (g.n == 0) name(d, a, b, 512);                                                      \
    if (g.n == 1) name(d, a, b, uint64_t{128}, 4, kBinary);                                \
    if (g.n == 2) name(d, a, b, bits, 4, kBinary);                                         \
    k.store(d);                                                                            \
  }
DO_BINARY(Add, int16_t)
DO_BINARY(Sub, int16_t)
DO_BINARY(Mul, int16_t)
DO_BINARY(Div, half)
DO_BINARY(Max, int16_t)
DO_BINARY(Min, int16_t)
DO_BINARY(And, int16_t)
DO_BINARY(Or, int16_t)
DO_BINARY(MulAddDst, half)
#undef DO_BINARY

#define DO_UNARY(name, T)                                                                  \
  SELFTEST(do_##name, AIV_ONLY, g) {                                                       \
    Bench k(g);                                                                            \
    auto a = k.a<T>(), d = k.d<T>();                                                       \
    uint64_t bits[2] = {UINT64_MAX, UINT64_MAX};                                           \
    if (g.n == 0) name(d, a, 512);                                                         \
    if (g.n == 1) name(d, a, uint64_t{128}, 4, kUnary);                                    \
    if (g.n == 2) name(d, a, bits, 4, kUnary);                                             \
    k.store(d);                                                                            \
  }
DO_UNARY(Abs, half)
DO_UNARY(Exp, half)
DO_UNARY(Ln, half)
DO_UNARY(Sqrt, half)
DO_UNARY(Rsqrt, half)
DO_UNARY(Reciprocal, half)
DO_UNARY(Relu, half)
DO_UNARY(Not, int16_t)
#undef DO_UNARY

#define DO_SCALAR(name, T, value)                                                          \
  SELFTEST(do_##name, AIV_ONLY, g) {                                                       \
    Bench k(g);                                                                            \
    auto a = k.a<T>(), d = k.d<T>();                                                       \
    const T scalar = static_cast<T>(value);                                                \
    uint64_t bits[2] = {UINT64_MAX, UINT64_MAX};                                           \
    if (g.n == 0) name(d, a, scalar, 512);                                                 \
    if (g.n == 1) name(d, a, scalar, uint64_t{128}, 4, kUnary);                            \
    if (g.n == 2) name(d, a, scalar, bits, 4, kUnary);                                     \
    k.store(d);                                                                            \
  }
DO_SCALAR(Adds, int16_t, 2)
DO_SCALAR(Muls, int16_t, 2)
DO_SCALAR(Maxs, int16_t, 200)
DO_SCALAR(Mins, int16_t, 200)
DO_SCALAR(ShiftLeft, int16_t, 2)
DO_SCALAR(ShiftRight, int16_t, 2)
DO_SCALAR(LeakyRelu, half, 0.25f)
#undef DO_SCALAR

SELFTEST(do_Axpy, AIV_ONLY, g) {
  Bench k(g);
  auto a = k.a<half>();
  if (g.n == 2) {
    auto d = k.d<float>();
    Axpy(d, a, half(2.f), uint64_t{64}, 8, UnaryRepeatParams(1, 1, 8, 4));
    return k.store(d);
  }
  auto d = k.d<half>();
  if (g.n == 0) Axpy(d, a, half(2.f), 512);
  if (g.n == 1) Axpy(d, a, half(2.f), uint64_t{128}, 4, kUnary);
  k.store(d);
}

SELFTEST(do_Duplicate, AIV_ONLY, g) {
  Bench k(g);
  auto d = k.d<half>();
  uint64_t bits[2] = {UINT64_MAX, UINT64_MAX};
  const half scalar(18.f);
  if (g.n == 0) Duplicate(d, scalar, 256);
  if (g.n == 1) Duplicate(d, scalar, uint64_t{128}, 2, 1, 8);
  if (g.n == 2) Duplicate(d, scalar, bits, 2, 1, 8);
  k.store(d);
}
SELFTEST(do_CreateVecIndex, AIV_ONLY, g) {
  Bench k(g);
  auto d = k.d<int16_t>();
  if (g.n == 0) CreateVecIndex(d, int16_t{0}, 128u);
  if (g.n == 1) CreateVecIndex(d, int16_t{0}, uint64_t{128}, 1, 1, 8);
  k.store(d);
}
SELFTEST(do_Brcb, AIV_ONLY, g) {
  Bench k(g);
  auto a = k.a<half>(), d = k.d<half>();
  Brcb(d, a, 2, BrcbRepeatParams(1, 8));
  k.store(d);
}
SELFTEST(do_Copy, AIV_ONLY, g) {
  Bench k(g);
  auto a = k.a<int16_t>(), d = k.d<int16_t>();
  Copy(d, a, uint64_t{128}, 4, CopyRepeatParams(1, 1, 8, 8));
  k.store(d);
}
SELFTEST(do_Transpose, AIV_ONLY, g) {
  Bench k(g);
  auto a = k.a<half>(), d = k.d<half>();
  Transpose(d, a);
  k.store(d);
}

// n: round mode + 8 * pair of types
SELFTEST(do_Cast, AIV_ONLY, g) {
  Bench k(g);
  const auto mode = static_cast<RoundMode>(g.n % 8);
  const auto run = [&](auto to, auto from) {
    auto a = k.a<decltype(from)>();
    auto d = k.d<decltype(to)>();
    Cast(d, a, mode, 64u);
    k.store(d);
  };
  switch (g.n / 8) {
    case 0: return run(half{}, float{});
    case 1: return run(bfloat16_t{}, float{});
    case 2: return run(int32_t{}, float{});
    case 3: return run(int16_t{}, float{});
    case 4: return run(float{}, float{});
    case 5: return run(float{}, bfloat16_t{});
    case 6: return run(int32_t{}, bfloat16_t{});
    case 7: return run(float{}, half{});
    case 8: return run(int8_t{}, half{});
    case 9: return run(int32_t{}, half{});
    case 10: return run(float{}, int32_t{});
    case 11: return run(int16_t{}, int32_t{});
    case 12: return run(int32_t{}, int64_t{});
    case 13: return run(float{}, int64_t{});
    case 14: return run(half{}, int16_t{});
    case 15: return run(int64_t{}, float{});
    case 16: return run(int64_t{}, int32_t{});
    case 17: return run(half{}, uint8_t{});
    default: return;
  }
}
SELFTEST(do_Cast_repeats, AIV_ONLY, g) {
  Bench k(g);
  auto a = k.a<half>();
  auto d = k.d<int32_t>();
  uint64_t bits[2] = {UINT64_MAX, 0};
  if (g.n == 0) Cast(d, a, RoundMode::CAST_CEIL, 512u);
  if (g.n == 1) Cast(d, a, RoundMode::CAST_CEIL, uint64_t{64}, 8, UnaryRepeatParams(1, 1, 8, 4));
  if (g.n == 2) Cast(d, a, RoundMode::CAST_CEIL, bits, 8, UnaryRepeatParams(1, 1, 8, 4));
  k.store(d);
}

}  // namespace
