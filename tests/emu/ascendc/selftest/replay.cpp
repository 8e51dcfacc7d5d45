// SPDX-License-Identifier: Apache-2.0
// One instruction each: the calls of the worked examples of its documentation page, between a load and a store.
// tests/test_emu_ascendc_api.py holds the numbers and names the pages.
#include "selftest.h"

using selftest::Bench;
using selftest::global;

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

SELFTEST(do_ReduceSum, AIV_ONLY, g) {
  Bench k(g);
  auto a = k.a<half>(), d = k.d<half>(), w = k.w<half>();
  if (g.n == 0) ReduceSum(d, a, w, 288);
  if (g.n == 1) ReduceSum(d, a, w, 128, 65, 8);
  k.store(d);
}
SELFTEST(do_ReduceSum_order, AIV_ONLY, g) {  // floats whose sum depends on the order
  Bench k(g);
  auto a = k.a<float>(), d = k.d<float>(), w = k.w<float>();
  if (g.n == 0) ReduceSum(d, a, w, 192);
  if (g.n == 1) ReduceSum(d, a, w, 64, 3, 8);
  k.store(d);
}
SELFTEST(do_ReduceMax, AIV_ONLY, g) {
  Bench k(g);
  auto a = k.a<half>(), d = k.d<half>(), w = k.w<half>();
  if (g.n == 0) ReduceMax(d, a, w, 8320, true);
  if (g.n == 1) ReduceMax(d, a, w, 128, 65, 8, true);
  if (g.n == 2) ReduceMin(d, a, w, 8320, true);
  k.store(d);
}
SELFTEST(do_ReduceRepeat, AIV_ONLY, g) {
  Bench k(g);
  auto a = k.a<half>(), d = k.d<half>();
  uint64_t bits[2] = {UINT64_MAX, UINT64_MAX};
  switch (g.n) {
    case 0: ReduceRepeat<ReduceType::MAX, half>(d, a, 128, 4, 1, 1, 8); break;
    case 1: ReduceRepeat<ReduceType::MAX, half>(d, a, 128, 4, 1, 1, 8, ReduceOrder::ORDER_INDEX_VALUE); break;
    case 2: ReduceRepeat<ReduceType::MAX, half>(d, a, 128, 4, 1, 1, 8, ReduceOrder::ORDER_ONLY_VALUE); break;
    case 3: ReduceRepeat<ReduceType::MAX, half>(d, a, 128, 4, 1, 1, 8, ReduceOrder::ORDER_ONLY_INDEX); break;
    case 4: ReduceRepeat<ReduceType::MIN, half>(d, a, bits, 4, 1, 1, 8); break;
    case 5: ReduceRepeat<ReduceType::SUM, half>(d, a, 128, 4, 1, 1, 8); break;
    default: WholeReduceSum(d, a, 128, 4, 1, 1, 8);
  }
  k.store(d);
}
SELFTEST(do_ReduceDataBlock, AIV_ONLY, g) {
  Bench k(g);
  auto a = k.a<half>(), d = k.d<half>();
  switch (g.n) {
    case 0: ReduceDataBlock<ReduceType::MAX, half>(d, a, 128, 1, 1, 1, 8); break;
    case 1: ReduceDataBlock<ReduceType::MIN, half>(d, a, 128, 1, 1, 1, 8); break;
    case 2: ReduceDataBlock<ReduceType::SUM, half>(d, a, 128, 1, 1, 1, 8); break;
    case 3: ReduceDataBlock<ReduceType::SUM, half>(d, a, 32, 1, 1, 1, 8); break;  // six blocks keep what they had
    default: BlockReduceSum(d, a, 1, 128, 1, 1, 8);
  }
  k.store(d);
}

SELFTEST(do_Compare, AIV_ONLY, g) {
  Bench k(g);
  auto a = k.a<float>(), b = k.b<float>();
  auto d = k.d<uint8_t>();
  const auto mode = static_cast<CMPMODE>(g.n % 8);
  if (g.n < 8) Compare(d, a, b, mode, 256u);
  else if (g.n < 16) Compare(d, a, b, mode, uint64_t{64}, 4, kBinary);
  else Compares(d, a, 7.f, mode, 256u);
  k.store(d);
}
SELFTEST(do_Select, AIV_ONLY, g) {
  Bench k(g);
  auto a = k.a<float>(), b = k.b<float>(), d = k.d<float>();
  auto bits = k.w<uint8_t>();
  DataCopy(bits, global<uint8_t>(g.work), 64u);
  PipeBarrier<PIPE_ALL>();
  switch (g.n) {
    case 0: Select(d, bits, a, b, SELMODE::VSEL_TENSOR_TENSOR_MODE, 256u); break;
    case 1: Select(d, bits, a, b, SELMODE::VSEL_TENSOR_TENSOR_MODE, uint64_t{64}, 4, kBinary); break;
    case 2: Select(d, bits, a, 0.f, SELMODE::VSEL_TENSOR_SCALAR_MODE, 256u); break;
    case 3: Select(d, bits, a, b, SELMODE::VSEL_CMPMASK_SPR, 256u); break;
    default: Select(d, bits, a, b, SELMODE::VSEL_CMPMASK_SPR, uint64_t{64}, 4, kBinary);
  }
  k.store(d);
}
SELFTEST(do_Gather, AIV_ONLY, g) {
  Bench k(g);
  auto a = k.a<half>(), d = k.d<half>();
  auto offsets = k.b<uint32_t>();
  uint64_t bits[2] = {UINT64_MAX, UINT64_MAX};
  if (g.n == 0) Gather(d, a, offsets, 0u, 128u);
  if (g.n == 1) Gather(d, a, offsets, 0u, uint64_t{128}, 1, 8);
  if (g.n == 2) Gather(d, a, offsets, 0u, bits, 1, 8);
  k.store(d);
}
SELFTEST(do_GatherMask, AIV_ONLY, g) {
  Bench k(g);
  uint64_t kept = 0;
  if (g.n == 0) {  // the built-in pattern 2, in place
    auto a = k.a<uint32_t>();
    GatherMask(a, a, uint8_t{2}, false, 0u, GatherMaskParams(1, 4, 8, 0), kept);
    k.store(a);
  } else {         // a pattern of one's own, 70 elements a repeat
    auto a = k.a<uint32_t>(), b = k.b<uint32_t>(), d = k.d<uint32_t>();
    GatherMask(d, a, b, true, 70u, GatherMaskParams(1, 2, 4, 0), kept);
    k.store(d);
  }
  auto count = k.w<int32_t>();
  Duplicate(count, static_cast<int32_t>(kept), 8);
  PipeBarrier<PIPE_ALL>();
  DataCopy(global<int32_t>(g.work), count, 8u);
}

SELFTEST(do_DataCopy, AIV_ONLY, g) {
  Bench k(g);
  auto d = k.d<half>();
  if (g.n == 0) DataCopy(d, global<half>(g.a), 512u);
  DataCopyParams p;
  p.blockCount = 1, p.blockLen = 512 * sizeof(half) / 32, p.srcGap = 0, p.dstGap = 0;
  if (g.n == 1) DataCopy(d, global<half>(g.a), p);
  if (g.n == 2) DataCopy(d, global<half>(g.a), DataCopyParams(3, 2, 1, 2));  // gaps: end to start, in blocks
  PipeBarrier<PIPE_ALL>();
  if (g.n == 3) {
    auto a = k.a<half>();
    DataCopy(d, a, DataCopyParams(3, 2, 1, 2));
  }
  if (g.n == 4) return DataCopy(global<half>(g.out), k.a<half>(), DataCopyParams(3, 2, 1, 2));
  k.store(d);
}
SELFTEST(do_DataCopyPad, AIV_ONLY, g) {
  Bench k(g);
  auto d = k.d<float>();
  if (g.n == 0)  // the page's second scenario: 32 rows of 59 floats, padded with zeros to 64
    DataCopyPad(d, global<float>(g.a), DataCopyExtParams(32, 59 * sizeof(float), 0, 0, 0),
                DataCopyPadExtParams<float>(true, 0, 5, 0.f));
  if (g.n == 1)  // without paddings the tail of a block is its first element
    DataCopyPad(d, global<float>(g.a), DataCopyExtParams(4, 59 * sizeof(float), 4, 1, 0), DataCopyPadExtParams<float>());
  if (g.n == 2)
    DataCopyPad(d, global<float>(g.a), DataCopyExtParams(2, 5 * sizeof(float), 0, 0, 0),
                DataCopyPadExtParams<float>(true, 2, 1, 7.f));
  PipeBarrier<PIPE_ALL>();
  if (g.n == 3) {
    auto a = k.a<float>();
    return DataCopyPad(global<float>(g.out), a, DataCopyExtParams(3, 5 * sizeof(float), 1, 8, 0));
  }
  k.store(d);
}
SELFTEST(do_SetAtomicAdd, AIV_ONLY, g) {
  Bench k(g);
  auto a = k.a<float>();
  SetAtomicAdd<float>();
  DataCopy(global<float>(g.out), a, 64u);
  DisableDmaAtomic();
}

SELFTEST(do_mask_register, AIV_ONLY, g) {
  Bench k(g);
  auto a = k.a<float>(), d = k.d<float>();
  if (g.n == 0) {  // lanes 0 to 7 of every repeat
    SetMaskNorm();
    SetVectorMask<float, MaskMode::NORMAL>(0, 0xff);
    Adds<float, false>(d, a, 1.f, MASK_PLACEHOLDER, 2, kUnary);
    ResetMask();
  } else {         // 100 elements, whatever the repeats
    SetMaskCount();
    SetVectorMask<float, MaskMode::COUNTER>(0, 100);
    Adds<float, false>(d, a, 1.f, MASK_PLACEHOLDER, 1, kUnary);
    SetMaskNorm();
    ResetMask();
  }
  k.store(d);
}
SELFTEST(do_blocks, MIX_AIC_1_2, g) {  // who is who
  if ASCEND_IS_AIC return;
  Bench k(g);
  auto w = k.w<int32_t>();
  Duplicate(w, static_cast<int32_t>(GetBlockNum() * 10000 + GetSubBlockIdx() * 100 + GetBlockIdx()), 16);
  PipeBarrier<PIPE_ALL>();
  DataCopy(global<int32_t>(g.out)[GetBlockIdx() * 16], w, 16u);
}

}  // namespace
