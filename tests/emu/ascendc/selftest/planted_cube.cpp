// SPDX-License-Identifier: Apache-2.0
// One mistake each at the cube core. `plant` 0 is the correct kernel: out[16, 32] = a[16, 64] . b[32, 64],
// half.
#include "selftest.h"

using selftest::global;

namespace {

constexpr uint16_t kM = 16, kN = 32, kK = 64;

struct Product {
  explicit Product(const selftest::Args& args) : g(args) {
    pipe.InitBuffer(a1_, kM * kK * 2 + 512);
    pipe.InitBuffer(b1_, kN * kK * 2);
    pipe.InitBuffer(a2_, kM * kK * 2 + 512);
    pipe.InitBuffer(b2_, kN * kK * 2);
    pipe.InitBuffer(c_, kM * kN * 4 + 1024);
    a1 = a1_.Get<half>(), b1 = b1_.Get<half>(), a2 = a2_.Get<half>(), b2 = b2_.Get<half>(), c = c_.Get<float>();
    a_rows = Nd2NzParams(1, kM, kK, 0, kK, kM, 1, 0);
    load = LoadData2DParams(0, 4, 1, 0, 0, false, 0);
    mmad.m = kM, mmad.n = kN, mmad.k = kK;
    result = FixpipeParamsV220(kN, kM, kM, kN, false);
  }
  void load_l1() {
    DataCopy(a1, global<half>(g.a), a_rows);
    DataCopy(b1, global<half>(g.b), Nd2NzParams(1, kN, kK, 0, kK, kN, 1, 0));
  }
  void load_l0() {
    LoadData(a2, a1, load);
    LoadData(b2, b1, LoadData2DParams(0, 8, 1, 0, 0, false, 0));
  }
  template <HardEvent event>
  void order(bool leave_out = false) {
    if (leave_out) return;
    SetFlag<event>(EVENT_ID0);
    WaitFlag<event>(EVENT_ID0);
  }
  void run() {
    load_l1();
    order<HardEvent::MTE2_MTE1>(skip == 1);
    load_l0();
    order<HardEvent::MTE1_M>(skip == 2);
    Mmad(c, a2, b2, mmad);
    order<HardEvent::M_FIX>(skip == 3);
    Fixpipe<float, float>(global<float>(g.out), c, result);
  }

  const selftest::Args& g;
  TPipe pipe;
  TBuf<TPosition::A1> a1_;
  TBuf<TPosition::B1> b1_;
  TBuf<TPosition::A2> a2_;
  TBuf<TPosition::B2> b2_;
  TBuf<TPosition::CO1> c_;
  LocalTensor<half> a1, b1, a2, b2;
  LocalTensor<float> c;
  Nd2NzParams a_rows;
  LoadData2DParams load;
  MmadParams mmad;
  FixpipeParamsV220 result;
  int skip = 0;
};

#define CASE(name, mistake)           \
  SELFTEST(name, AIC_ONLY, g) {       \
    Product x(g);                     \
    if (g.plant) { mistake; }         \
    x.run();                          \
  }

CASE(cube_mte1_before_mte2, x.skip = 1)
CASE(cube_m_before_mte1, x.skip = 2)
CASE(cube_fix_before_m, x.skip = 3)
CASE(cube_rows_overlap, x.result.dstStride = 16)
CASE(cube_n_of_fixpipe, x.result.nSize = 24)
CASE(cube_src_stride, x.result.srcStride = 24)
CASE(cube_quant_mode, x.result.quantPre = F322BF16)
CASE(cube_several_matrices, x.result.ndNum = 2)
CASE(cube_unit_flag, x.mmad.unitFlag = 2)
CASE(cube_bias, x.mmad.cmatrixSource = true)
CASE(cube_big_m, x.mmad.m = 4096)
CASE(cube_address_mode, x.load.addrMode = 1)
CASE(cube_start_outside, x.load.startIndex = 3)
CASE(cube_l0_outside, x.load.dstGap = 1)
CASE(cube_l0_alignment, x.a2 = x.a2[16])
CASE(cube_l0c_alignment, x.c = x.c[64])
CASE(cube_nd2nz_stride, x.a_rows.srcDValue = kK / 2)
CASE(cube_nd2nz_rows, x.a_rows.nValue = 16385)
CASE(cube_nd2nz_no_stride, x.a_rows.dstNzC0Stride = 0)
CASE(cube_l1_outside, x.a_rows.nValue = 32; x.a_rows.dstNzC0Stride = 32)
CASE(cube_l1_never_written, x.a_rows.nValue = 15)
CASE(cube_k_never_written, x.a_rows.dValue = 48)
CASE(cube_accumulate_on_nothing, x.mmad.cmatrixInitVal = false)
CASE(cube_wrong_side, x.a2 = x.b2)

SELFTEST(cube_second_product, AIC_ONLY, g) {  // small products into one L0C need a barrier
  Product x(g);
  x.load_l1();
  x.order<HardEvent::MTE2_MTE1>();
  x.load_l0();
  x.order<HardEvent::MTE1_M>();
  x.mmad.k = 32;
  Mmad(x.c, x.a2, x.b2, x.mmad);
  if (!g.plant) PipeBarrier<PIPE_M>();
  x.mmad.cmatrixInitVal = false;
  Mmad(x.c, x.a2[512], x.b2[1024], x.mmad);
  x.order<HardEvent::M_FIX>();
  Fixpipe<float, float>(global<float>(g.out), x.c, x.result);
}

SELFTEST(cube_l0_reused, AIC_ONLY, g) {  // the next load of L0A must wait for the product that reads it
  Product x(g);
  x.load_l1();
  x.order<HardEvent::MTE2_MTE1>();
  x.load_l0();
  x.order<HardEvent::MTE1_M>();
  Mmad(x.c, x.a2, x.b2, x.mmad);
  x.order<HardEvent::M_MTE1>(g.plant);
  LoadData(x.a2, x.a1, x.load);
  x.order<HardEvent::M_FIX>();
  Fixpipe<float, float>(global<float>(g.out), x.c, x.result);
}

SELFTEST(cube_on_a_vector_core, AIV_ONLY, g) {
  TPipe pipe;
  TBuf<TPosition::A1> l1;
  TBuf<TPosition::VECCALC> ub;
  pipe.InitBuffer(l1, 4096);
  pipe.InitBuffer(ub, 4096);
  if (g.plant) DataCopy(l1.Get<half>(), global<half>(g.a), Nd2NzParams(1, 16, 64, 0, 64, 16, 1, 0));
  else DataCopy(ub.Get<half>(), global<half>(g.a), 1024);
}

}  // namespace
