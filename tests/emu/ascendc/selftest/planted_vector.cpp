// SPDX-License-Identifier: Apache-2.0
// Mistakes in vector instructions: rules 6, 8 and 9. `plant` 0 is the correct kernel.
#include "selftest.h"

using selftest::Bench;

namespace {

SELFTEST(block_stride, AIV_ONLY, g) {
  Bench k(g);
  auto a = k.a<float>(), d = k.d<float>();
  Adds(d, a, 1.f, uint64_t{64}, 2, UnaryRepeatParams(static_cast<uint16_t>(!g.plant), 1, 8, 8));
  k.store(d, 512);
}
SELFTEST(brcb_stride, AIV_ONLY, g) {
  Bench k(g);
  auto a = k.a<float>(), d = k.d<float>();
  Brcb(d, a, 1, BrcbRepeatParams(static_cast<uint16_t>(!g.plant), 8));
  k.store(d, 256);
}
SELFTEST(mask_range, AIV_ONLY, g) {
  Bench k(g);
  auto a = k.a<float>(), d = k.d<float>();
  Adds(d, a, 1.f, uint64_t(g.plant ? 65 : 64), 1, UnaryRepeatParams());
  k.store(d, 512);
}
SELFTEST(overlap_part, AIV_ONLY, g) {
  Bench k(g);
  auto a = k.a<float>();
  Adds(a[g.plant ? 8 : 64], a, 1.f, 64);
  k.store(a, 512);
}
SELFTEST(overlap_next, AIV_ONLY, g) {  // what repeat 0 writes, repeat 1 reads
  Bench k(g);
  auto a = k.a<float>();
  Adds(a[g.plant ? 64 : 128], a, 1.f, uint64_t{64}, 2, UnaryRepeatParams());
  k.store(a, 512);
}
SELFTEST(accumulate, AIV_ONLY, g) {  // allowed: dst is src1 and stays where it is; not allowed: dst is src0
  Bench k(g);
  auto a = k.a<float>(), d = k.d<float>();
  const BinaryRepeatParams p = g.plant ? BinaryRepeatParams(1, 1, 1, 0, 0, 8) : BinaryRepeatParams(1, 1, 1, 0, 8, 0);
  Add(d, g.plant ? d : a, g.plant ? a : d, uint64_t{64}, 3, p);
  k.store(d, 256);
}
SELFTEST(brcb_in_place, AIV_ONLY, g) {
  Bench k(g);
  auto a = k.a<float>();
  Brcb(a[g.plant ? 0 : 64], a, 1, BrcbRepeatParams(1, 8));
  k.store(a, 512);
}
SELFTEST(compare_in_place, AIV_ONLY, g) {
  Bench k(g);
  auto a = k.a<float>(), b = k.b<float>();
  Compare(a[g.plant ? 64 : 128].ReinterpretCast<uint8_t>(), a, b, CMPMODE::LT, 128);
  k.store(a, 512);
}
SELFTEST(reduce_in_place, AIV_ONLY, g) {  // the sum of a repeat among what it reads
  Bench k(g);
  auto a = k.a<float>();
  WholeReduceSum(a[g.plant ? 8 : 64], a, 64, 1, 1, 1, 8);
  k.store(a, 512);
}
SELFTEST(reduce_into_next, AIV_ONLY, g) {  // those of repeat 1 and on may lie where repeat 0 has read
  Bench k(g);
  auto a = k.a<float>();
  WholeReduceSum(g.plant ? a[64] : k.w<float>(), a, 64, 2, 1, 1, 8);
  k.store(a, 512);
}
SELFTEST(reduce_work_in_source, AIV_ONLY, g) {
  Bench k(g);
  auto a = k.a<float>(), d = k.d<float>();
  ReduceMax(d, a, g.plant ? a[64] : k.w<float>(), 256);
  k.store(d, 32);
}
SELFTEST(compare_count, AIV_ONLY, g) {
  Bench k(g);
  auto a = k.a<float>(), b = k.b<float>();
  auto d = k.d<uint8_t>();
  Compare(d, a, b, CMPMODE::LT, g.plant ? 96 : 128);
  k.store(d, 32);
}
SELFTEST(compare_integers, AIV_ONLY, g) {
  Bench k(g);
  auto a = k.a<int32_t>(), b = k.b<int32_t>();
  auto d = k.d<uint8_t>();
  Compare(d, a, b, g.plant ? CMPMODE::LT : CMPMODE::EQ, 128);
  k.store(d, 32);
}
SELFTEST(reduce_work, AIV_ONLY, g) {
  Bench k(g);
  auto a = k.a<half>(), d = k.d<half>();
  TBuf<TPosition::VECCALC> work;
  k.pipe.InitBuffer(work, g.plant ? 320 : 352);  // the page's own example: 65 repeats with an index need 352 bytes
  ReduceMax(d, a, work.Get<half>(), 128, 65, 8, true);
  k.store(d, 32);
}
SELFTEST(reduce_align, AIV_ONLY, g) {
  Bench k(g);
  auto a = k.a<float>(), d = k.d<float>();
  WholeReduceMax(d[g.plant ? 1 : 2], a, 64, 2, 1, 1, 8);
  k.store(d, 32);
}
SELFTEST(cast_mode, AIV_ONLY, g) {
  Bench k(g);
  auto a = k.a<float>();
  auto d = k.d<bfloat16_t>();
  Cast(d, a, g.plant ? RoundMode::CAST_NONE : RoundMode::CAST_RINT, 64);
  k.store(d, 128);
}

}  // namespace
