// SPDX-License-Identifier: Apache-2.0
// As replay.cpp: reductions, comparisons, gathering, transfers, masks and cores.
#include "selftest.h"

using selftest::Bench;
using selftest::global;

namespace {

const BinaryRepeatParams kBinary(1, 1, 1, 8, 8, 8);
const UnaryRepeatParams kUnary(1, 1, 8, 8);

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
    DataCopyPad(d, global<float>(g.a), DataCopyExtParams(4, 59 * sizeof(float), 4, 1, 0),
                DataCopyPadExtParams<float>());
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
