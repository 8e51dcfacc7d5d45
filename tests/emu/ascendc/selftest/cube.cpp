// SPDX-License-Identifier: Apache-2.0
// The cube core: the worked examples of the documentation's pages, and whole products of every type. Memories
// that no instruction copies to global memory are looked at from outside the API.
#include "../core.h"
#include "selftest.h"

using selftest::global;

namespace {

constexpr uint32_t up(uint32_t a, uint32_t b) { return (a + b - 1) / b * b; }

struct Cube {
  explicit Cube(const selftest::Args& args) : g(args) {
    pipe.InitBuffer(a1_, 128 * 1024);
    pipe.InitBuffer(b1_, 128 * 1024);
    pipe.InitBuffer(a2_, 64 * 1024);
    pipe.InitBuffer(b2_, 64 * 1024);
    pipe.InitBuffer(c_, 128 * 1024);
  }
  template <class T>
  LocalTensor<T> a1() { return a1_.Get<T>(); }
  template <class T>
  LocalTensor<T> b1() { return b1_.Get<T>(); }
  template <class T>
  LocalTensor<T> a2() { return a2_.Get<T>(); }
  template <class T>
  LocalTensor<T> b2() { return b2_.Get<T>(); }
  LocalTensor<float> c() { return c_.Get<float>(); }
  template <class T>
  void raw(uint32_t count) {  // a's bytes into L1 as they are
    DataCopy(a1<T>(), global<T>(g.a), count);
    PipeBarrier<PIPE_ALL>();
  }
  template <class T>
  void show(const LocalTensor<T>& t, uint32_t bytes) {
    PipeBarrier<PIPE_ALL>();
    __builtin_memcpy(g.out, ascend_emu::local(t.emu_slice()), bytes);
  }

  const selftest::Args& g;
  TPipe pipe;

 private:
  TBuf<TPosition::A1> a1_;
  TBuf<TPosition::B1> b1_;
  TBuf<TPosition::A2> a2_;
  TBuf<TPosition::B2> b2_;
  TBuf<TPosition::CO1> c_;
};

// n: 0 and 1 the page's two figures, 2 its call (40 x 56).
SELFTEST(nd2nz, AIC_ONLY, g) {
  Cube x(g);
  const Nd2NzParams params[] = {
      {1, 16, 23, 0, 32, 16, 1, 0}, {2, 8, 23, 384, 32, 37, 2, 320}, {1, 40, 56, 0, 56, 48, 1, 0}};
  DataCopy(x.a1<half>(), global<half>(g.a), params[g.n]);
  x.show(x.a1<half>(), 8192);
}
SELFTEST(gm_to_l1_blocks, AIC_ONLY, g) {  // 2 blocks of 96 bytes, gaps of 1 and 2
  Cube x(g);
  DataCopy(x.a1<half>(), global<half>(g.a), DataCopyParams(2, 3, 1, 2));
  x.show(x.a1<half>(), 256);
}

// LoadData_2D. n: 0 A of 40 x 56 half, 1 A given as [56, 40] with fractals transposed, 2 four fractals of
// floats with gaps, 3 the same from the second fractal on.
SELFTEST(load_2d, AIC_ONLY, g) {
  Cube x(g);
  if (g.n == 0) {
    DataCopy(x.a1<half>(), global<half>(g.a), Nd2NzParams(1, 40, 56, 0, 56, 48, 1, 0));
    PipeBarrier<PIPE_ALL>();
    for (uint32_t i = 0; i < 3; ++i)
      LoadData(x.a2<half>()[i * 4 * 256], x.a1<half>()[i * 256], LoadData2DParams(0, 4, 3, 0, 0, false, 0));
  } else if (g.n == 1) {
    DataCopy(x.a1<half>(), global<half>(g.a), Nd2NzParams(1, 56, 40, 0, 40, 64, 1, 0));
    PipeBarrier<PIPE_ALL>();
    for (uint32_t i = 0; i < 3; ++i)
      LoadData(x.a2<half>()[i * 4 * 256], x.a1<half>()[i * 4 * 256], LoadData2DParams(0, 4, 1, 0, 0, true, 0));
  } else {
    x.raw<float>(8 * 128);
    LoadData(x.a2<float>(), x.a1<float>(), LoadData2DParams(g.n == 3 ? 1 : 0, 4, 2, 0, 2, false, 0));
  }
  x.show(g.n < 2 ? x.a2<half>().ReinterpretCast<float>() : x.a2<float>(), 12 * 512);
}

// LoadDataWithTranspose, three squares: dstGap and dstFracGap of the page's figures. n: bytes of an element +
// 16 where the second figure is meant.
template <class T>
void squares(const selftest::Args& g) {
  Cube x(g);
  x.raw<T>(6 * 512 / static_cast<uint32_t>(sizeof(T)));
  const bool second = g.n >= 16;
  const uint16_t gap = sizeof(T) == 2 || second ? 0 : 1, fractal_gap = second ? 2 : 0;
  LoadDataWithTranspose(x.b2<T>(), x.a1<T>(), LoadData2dTransposeParams(0, 3, 1, gap, fractal_gap));
  x.show(x.b2<T>(), (sizeof(T) == 2 ? 3 : 6) * 512);
}
SELFTEST(load_squares, AIC_ONLY, g) {
  switch (g.n % 16) {
    case 1: return squares<int8_t>(g);
    case 2: return squares<half>(g);
    default: return squares<float>(g);
  }
}

// out[m, n] = a[m, k] . b: b as [n, k] or as [k, n]; n packs m, n, k and the second of them.
struct Sizes {
  uint32_t m, n, k;
  bool b_by_k;
};
Sizes sizes(int64_t packed) {
  return {static_cast<uint32_t>(packed & 0xfff), static_cast<uint32_t>(packed >> 12 & 0xfff),
          static_cast<uint32_t>(packed >> 24 & 0xfff), (packed >> 36 & 1) != 0};
}

template <class T>
void load_left(Cube& x, const Sizes& s) {
  constexpr uint32_t c0 = 32 / sizeof(T);
  const uint16_t m = static_cast<uint16_t>(s.m), k = static_cast<uint16_t>(s.k);
  DataCopy(x.a1<T>(), global<T>(x.g.a), Nd2NzParams(1, m, k, 0, k, static_cast<uint16_t>(up(m, 16)), 1, 0));
  PipeBarrier<PIPE_ALL>();
  const uint32_t deep = (s.k + c0 - 1) / c0, tall = (s.m + 15) / 16;
  for (uint32_t i = 0; i < tall; ++i)
    LoadData(x.a2<T>()[i * deep * 16 * c0], x.a1<T>()[i * 16 * c0],
             LoadData2DParams(0, static_cast<uint8_t>(deep), static_cast<uint16_t>(tall), 0, 0, false, 0));
}

template <class T>
void load_right(Cube& x, const Sizes& s) {
  constexpr uint32_t c0 = 32 / sizeof(T);
  const uint16_t n = static_cast<uint16_t>(s.n), k = static_cast<uint16_t>(s.k);
  const uint32_t deep = (s.k + c0 - 1) / c0, wide = (s.n + 15) / 16;
  if (s.b_by_k) {  // [n, k]: as NZ it is ZN
    DataCopy(x.b1<T>(), global<T>(x.g.b), Nd2NzParams(1, n, k, 0, k, static_cast<uint16_t>(wide * 16), 1, 0));
    PipeBarrier<PIPE_ALL>();
    LoadData(x.b2<T>(), x.b1<T>(), LoadData2DParams(0, static_cast<uint8_t>(deep * wide), 1, 0, 0, false, 0));
    return;
  }
  if constexpr (sizeof(T) == 2) {
    DataCopy(x.b1<T>(), global<T>(x.g.b), Nd2NzParams(1, k, n, 0, n, static_cast<uint16_t>(deep * 16), 1, 0));
    PipeBarrier<PIPE_ALL>();
    for (uint32_t i = 0; i < deep; ++i)
      LoadData(x.b2<T>()[i * wide * 256], x.b1<T>()[i * 256],
               LoadData2DParams(0, static_cast<uint8_t>(wide), static_cast<uint16_t>(deep), 0, 0, true, 0));
  } else if constexpr (sizeof(T) == 1) {  // the page's example of int8
    const uint32_t tall = up(s.k, 32);
    DataCopy(x.b1<T>(), global<T>(x.g.b), Nd2NzParams(1, k, n, 0, n, static_cast<uint16_t>(tall), 1, 0));
    PipeBarrier<PIPE_ALL>();
    for (uint32_t i = 0; i < tall / 32; ++i)
      LoadDataWithTranspose(x.b2<T>()[i * up(s.n, 32) * 32], x.b1<T>()[i * 1024],
                            LoadData2dTransposeParams(0, static_cast<uint8_t>((s.n + 31) / 32),
                                                      static_cast<uint16_t>(tall / 32), 1, 0));
  } else {  // bands of 16 rows, each with its fractals side by side (ZZ), then squares
    const uint32_t row = wide * 16, bands = (s.k + 15) / 16;
    for (uint32_t i = 0; i < bands; ++i)
      DataCopy(x.b1<T>()[i * 16 * row], global<T>(x.g.b)[i * 16 * s.n],
               Nd2NzParams(1, static_cast<uint16_t>(s.k - i * 16 < 16 ? s.k - i * 16 : 16), n, 0, n, 16, 1, 0));
    PipeBarrier<PIPE_ALL>();
    for (uint32_t i = 0; i < bands; ++i)
      LoadDataWithTranspose(x.b2<T>()[i * 16 * row], x.b1<T>()[i * 16 * row],
                            LoadData2dTransposeParams(0, static_cast<uint8_t>(wide), 1, 0,
                                                      static_cast<uint16_t>(wide - 1)));
  }
}

template <class T, class Sum, class Out>
void product(const selftest::Args& g, QuantMode_t quant) {
  Cube x(g);
  const Sizes s = sizes(g.n);
  load_left<T>(x, s);
  load_right<T>(x, s);
  PipeBarrier<PIPE_ALL>();
  MmadParams p;
  p.m = static_cast<uint16_t>(s.m), p.k = static_cast<uint16_t>(s.k);
  // int8: the fractals of n lie in pairs, so n is rounded up to 32 as on the page
  p.n = static_cast<uint16_t>(sizeof(T) == 1 && !s.b_by_k ? up(s.n, 32) : s.n);
  Mmad(x.c().template ReinterpretCast<Sum>(), x.a2<T>(), x.b2<T>(), p);
  PipeBarrier<PIPE_ALL>();
  FixpipeParamsV220 f(static_cast<uint16_t>(up(s.n, 16)), p.m, static_cast<uint16_t>(up(s.m, 16)), up(s.n, 16), false);
  f.quantPre = quant;
  Fixpipe<Out, Sum>(global<Out>(g.out), x.c().template ReinterpretCast<Sum>(), f);
}
SELFTEST(product_f16, AIC_ONLY, g) { product<half, float, float>(g, NoQuant); }
SELFTEST(product_bf16, AIC_ONLY, g) { product<bfloat16_t, float, float>(g, NoQuant); }
SELFTEST(product_bf16_to_bf16, AIC_ONLY, g) { product<bfloat16_t, float, bfloat16_t>(g, F322BF16); }
SELFTEST(product_f16_to_f16, AIC_ONLY, g) { product<half, float, half>(g, F322F16); }
SELFTEST(product_f32, AIC_ONLY, g) { product<float, float, float>(g, NoQuant); }
SELFTEST(product_i8, AIC_ONLY, g) { product<int8_t, int32_t, int32_t>(g, NoQuant); }

// A given as [k, m], floats: k is rounded up to 16 in L0A, kDirectionAlign skips the fractal that is none.
SELFTEST(product_k_align, AIC_ONLY, g) {
  Cube x(g);
  const Sizes s = sizes(g.n);
  const uint32_t bands = (s.k + 15) / 16, tall = (s.m + 15) / 16;
  for (uint32_t i = 0; i < bands; ++i)
    DataCopy(x.a1<float>()[i * 16 * tall * 16], global<float>(g.a)[i * 16 * s.m],
             Nd2NzParams(1, static_cast<uint16_t>(s.k - i * 16 < 16 ? s.k - i * 16 : 16), static_cast<uint16_t>(s.m), 0,
                         static_cast<uint16_t>(s.m), 16, 1, 0));
  PipeBarrier<PIPE_ALL>();
  for (uint32_t i = 0; i < tall; ++i)
    LoadDataWithTranspose(x.a2<float>()[i * bands * 256], x.a1<float>()[i * 256],
                          LoadData2dTransposeParams(0, static_cast<uint8_t>(bands), static_cast<uint16_t>(tall), 1, 0));
  load_right<float>(x, s);
  PipeBarrier<PIPE_ALL>();
  MmadParams p;
  p.m = static_cast<uint16_t>(s.m), p.n = static_cast<uint16_t>(s.n), p.k = static_cast<uint16_t>(s.k);
  p.kDirectionAlign = true;
  Mmad(x.c(), x.a2<float>(), x.b2<float>(), p);
  PipeBarrier<PIPE_ALL>();
  Fixpipe<float, float>(global<float>(g.out), x.c(),
                        FixpipeParamsV220(static_cast<uint16_t>(up(s.n, 16)), p.m, static_cast<uint16_t>(up(s.m, 16)),
                                          up(s.n, 16), false));
}

SELFTEST(gemv, AIC_ONLY, g) {  // 1 x 256 by 256 x 32, half: the row is loaded as one square
  Cube x(g);
  DataCopy(x.a1<half>(), global<half>(g.a), 256);
  Sizes s{1, 32, 256, true};
  load_right<half>(x, s);
  LoadData(x.a2<half>(), x.a1<half>(), LoadData2DParams(0, 1, 1, 0, 0, false, 0));
  PipeBarrier<PIPE_ALL>();
  MmadParams p;
  p.m = 1, p.n = 32, p.k = 256;
  Mmad(x.c(), x.a2<half>(), x.b2<half>(), p);
  PipeBarrier<PIPE_ALL>();
  Fixpipe<float, float>(global<float>(g.out), x.c(), FixpipeParamsV220(32, 1, 16, 32, false));
}

SELFTEST(fixpipe_rows, AIC_ONLY, g) {  // 48 x 32 of a matrix of 64 rows, to rows of 64 (the figure's first matrix)
  Cube x(g);
  __builtin_memcpy(ascend_emu::local(x.c().emu_slice()), g.a, 8192);
  for (uint32_t b = 0; b < 256; ++b) ascend_emu::core->shadow[ascend_emu::kL0C][b].written = ~0u;
  Fixpipe<float, float>(global<float>(g.out), x.c(), FixpipeParamsV220(32, 48, 64, 64, false));
}

}  // namespace
