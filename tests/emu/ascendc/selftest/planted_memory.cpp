// SPDX-License-Identifier: Apache-2.0
// Mistakes with memory, transfers and buffers: rules 1 to 5, 18 and 19. `plant` 0 is the correct kernel.
#include "selftest.h"

using selftest::Bench;
using selftest::global;

namespace {

SELFTEST(align_ub, AIV_ONLY, g) {
  Bench k(g);
  auto a = k.a<float>(), d = k.d<float>();
  Adds(d, a[g.plant ? 4 : 8], 1.f, 64);
  k.store(d, 256);
}
SELFTEST(align_gm, AIV_ONLY, g) {
  Bench k(g);
  auto a = k.a<float>();
  DataCopyPad(a, global<float>(g.a + (g.plant ? 2 : 4)), DataCopyExtParams(1, 64, 0, 0, 0),
              DataCopyPadExtParams<float>());
  k.store(a, 64);
}
SELFTEST(copy_count, AIV_ONLY, g) {
  Bench k(g);
  auto a = k.a<float>();
  DataCopy(a, global<float>(g.a), g.plant ? 12u : 16u);
  k.store(a, 48);
}
SELFTEST(copy_blocks, AIV_ONLY, g) {
  Bench k(g);
  auto a = k.a<half>();
  DataCopyParams p;
  p.blockCount = static_cast<uint16_t>(g.plant ? 4096 : 1);
  p.blockLen = 1;
  DataCopy(a, global<half>(g.a), p);
  k.store(a, 32);
}
SELFTEST(pad_elements, AIV_ONLY, g) {
  Bench k(g);
  auto a = k.a<float>();
  DataCopyPad(a, global<float>(g.a), DataCopyExtParams(1, g.plant ? 10 : 40, 0, 0, 0), DataCopyPadExtParams<float>());
  k.store(a, 40);
}
SELFTEST(pad_value, AIV_ONLY, g) {
  Bench k(g);
  auto a = k.a<float>();
  DataCopyPad(a, global<float>(g.a), DataCopyExtParams(1, 40, 0, 0, 0),
              DataCopyPadExtParams<float>(!g.plant, 0, 6, 0.f));
  k.store(a, 64);
}
SELFTEST(pad_wide, AIV_ONLY, g) {
  Bench k(g);
  auto a = k.a<half>();
  DataCopyPad(a, global<half>(g.a), DataCopyExtParams(1, 32, 0, 0, 0),
              DataCopyPadExtParams<half>(true, 0, static_cast<uint8_t>(g.plant ? 17 : 16), half(0.f)));
  k.store(a, 64);
}
SELFTEST(budget, AIV_ONLY, g) {
  TPipe pipe;
  TBuf<TPosition::VECCALC> big;
  pipe.InitBuffer(big, g.plant ? 184 * 1024 : 183 * 1024);
}
SELFTEST(queue_full, AIV_ONLY, g) {
  TPipe pipe;
  TQue<TPosition::VECIN, 2> q;
  pipe.InitBuffer(q, g.plant ? 1 : 2, 256);
  auto one = q.AllocTensor<float>();
  auto two = q.AllocTensor<float>();
  q.FreeTensor(one);
  q.FreeTensor(two);
}
SELFTEST(queue_empty, AIV_ONLY, g) {
  TPipe pipe;
  TQue<TPosition::VECIN, 1> q;
  pipe.InitBuffer(q, 1, 256);
  auto t = q.AllocTensor<float>();
  if (!g.plant) q.EnQue(t);
  t = q.DeQue<float>();
  q.FreeTensor(t);
}
SELFTEST(queue_depth, AIV_ONLY, g) {
  TPipe pipe;
  TQue<TPosition::VECIN, 1> one;
  TQue<TPosition::VECIN, 2> two;
  pipe.InitBuffer(one, 2, 256);
  pipe.InitBuffer(two, 2, 256);
  const auto run = [](auto& q) {
    q.EnQue(q.template AllocTensor<float>());
    q.EnQue(q.template AllocTensor<float>());
    for (int i = 0; i < 2; ++i) {
      auto t = q.template DeQue<float>();
      q.FreeTensor(t);
    }
  };
  g.plant ? run(one) : run(two);
}
// Two pools on one memory, as on the page of InitBufPool: one after the other.
template <class First, class Between>
void two_pools(const selftest::Args& g, First first, Between between) {
  TPipe pipe;
  TBufPool<TPosition::VECCALC> one, two;
  TQue<TPosition::VECIN, 1> in, in_again;
  TQue<TPosition::VECOUT, 1> out;
  pipe.InitBufPool(one, 512);
  pipe.InitBufPool(two, 512, one);
  first(one);
  one.InitBuffer(in, 1, 256);
  auto t = in.AllocTensor<float>();
  DataCopy(t, global<float>(g.a), 64);
  in.EnQue(t);
  t = in.DeQue<float>();
  in.FreeTensor(t);
  between(one);
  two.InitBuffer(out, 1, 256);
  auto d = out.AllocTensor<float>();
  Duplicate(d, 5.f, 64);
  out.EnQue(d);
  d = out.DeQue<float>();
  DataCopy(global<float>(g.out), d, 64);
  out.FreeTensor(d);
}
template <class Pool>
void switch_from(Pool& pool) {
  PipeBarrier<PIPE_ALL>();
  pool.Reset();
}
SELFTEST(pool_held, AIV_ONLY, g) {
  two_pools(g, [](auto&) {}, [&](auto& one) {
    if (!g.plant) switch_from(one);
  });
}
SELFTEST(pool_busy, AIV_ONLY, g) {
  two_pools(g, [](auto&) {}, [&](auto& one) {
    if (g.plant) one.Reset();
    else switch_from(one);
  });
}
SELFTEST(pool_full, AIV_ONLY, g) {
  TBuf<TPosition::VECCALC> more;
  two_pools(g, [&](auto& one) { one.InitBuffer(more, g.plant ? 288 : 256); }, [](auto& one) { switch_from(one); });
}
SELFTEST(pool_length, AIV_ONLY, g) {
  TPipe pipe;
  TBufPool<TPosition::VECCALC> one, two;
  pipe.InitBufPool(one, 512);
  pipe.InitBufPool(two, g.plant ? 544 : 512, one);
}
SELFTEST(pool_buffers, AIV_ONLY, g) {
  TPipe pipe;
  TBufPool<TPosition::VECCALC> one;
  TBuf<TPosition::VECCALC> b[5];
  pipe.InitBufPool(one, 512);
  for (int i = 0; i < (g.plant ? 5 : 4); ++i) one.InitBuffer(b[i], 32);
}
SELFTEST(pool_stale, AIV_ONLY, g) {  // a tensor of the pool that was left
  TPipe pipe;
  TBufPool<TPosition::VECCALC> one, two;
  TBuf<TPosition::VECCALC> b, c;
  pipe.InitBufPool(one, 256);
  pipe.InitBufPool(two, 256, one);
  one.InitBuffer(b, 256);
  const auto old = b.Get<float>();
  Duplicate(old, 1.f, 64);
  switch_from(one);
  two.InitBuffer(c, 256);
  Duplicate(g.plant ? old : c.Get<float>(), 2.f, 64);
}
SELFTEST(queue_freed, AIV_ONLY, g) {
  Bench k(g);
  TQue<TPosition::VECIN, 1> q;
  k.pipe.InitBuffer(q, 1, 256);
  auto d = k.d<float>();
  auto t = q.AllocTensor<float>();
  DataCopy(t, global<float>(g.a), 64);
  q.EnQue(t);
  t = q.DeQue<float>();
  if (g.plant) q.FreeTensor(t);
  Adds(d, t, 1.f, 64);
  if (!g.plant) q.FreeTensor(t);
  k.store(d, 256);
}
SELFTEST(queue_early, AIV_ONLY, g) {  // between EnQue and DeQue a tensor is nobody's
  Bench k(g);
  TQue<TPosition::VECIN, 1> q;
  k.pipe.InitBuffer(q, 1, 256);
  auto d = k.d<float>();
  auto t = q.AllocTensor<float>();
  DataCopy(t, global<float>(g.a), 64);
  q.EnQue(t);
  auto u = g.plant ? t : q.DeQue<float>();
  Adds(d, u, 1.f, 64);
  q.FreeTensor(u);
  k.store(d, 256);
}
SELFTEST(queue_left, AIV_ONLY, g) {
  TPipe pipe;
  TQue<TPosition::VECIN, 1> q;
  pipe.InitBuffer(q, 1, 256);
  q.EnQue(q.AllocTensor<float>());
  if (g.plant) return;
  auto t = q.DeQue<float>();
  q.FreeTensor(t);
}
SELFTEST(queue_buffers, AIV_ONLY, g) {
  TPipe pipe;
  TQue<TPosition::VECIN, 1> q[5];
  for (auto& each : q) pipe.InitBuffer(each, g.plant ? 2 : 1, 256);
}
SELFTEST(many_buffers, AIV_ONLY, g) {
  TPipe pipe;
  TBuf<TPosition::VECCALC> b[65];
  for (int i = 0; i < (g.plant ? 65 : 64); ++i) pipe.InitBuffer(b[i], 32);
}
SELFTEST(never_written, AIV_ONLY, g) {
  Bench k(g);
  auto a = k.a<float>(g.plant ? 252 : 256), d = k.d<float>();
  TBuf<TPosition::VECCALC> fresh;
  k.pipe.InitBuffer(fresh, 256);
  auto f = fresh.Get<float>();
  Duplicate(f, 1.f, g.plant ? 63 : 64);
  PipeBarrier<PIPE_V>();
  Add(d, a, f, 64);
  k.store(d, 256);
}
SELFTEST(stale_buffer, AIV_ONLY, g) {  // AllocTensor gives memory of any content
  Bench k(g);
  TQue<TPosition::VECOUT, 1> q;
  k.pipe.InitBuffer(q, 1, 256);
  for (int round = 0; round < 2; ++round) {
    auto t = q.AllocTensor<float>();
    if (!round || !g.plant) Duplicate(t, 1.f, 64);
    q.EnQue(t);
    t = q.DeQue<float>();
    DataCopy(global<float>(g.out), t, 64);
    q.FreeTensor(t);
    PipeBarrier<PIPE_MTE3>();
  }
}
SELFTEST(bounds_local, AIV_ONLY, g) {
  Bench k(g);
  auto d = k.d<float>();
  TBuf<TPosition::VECCALC> small;
  k.pipe.InitBuffer(small, 256);
  auto s = small.Get<float>();
  Duplicate(s, 1.f, g.plant ? 65 : 64);
  PipeBarrier<PIPE_V>();
  Adds(d, s, 1.f, 64);
  k.store(d, 256);
}
SELFTEST(bounds_gm, AIV_ONLY, g) {
  Bench k(g);
  auto a = k.a<float>();
  k.store(a, 256);
  DataCopyPad(global<float>(g.out)[g.n - 8], a, DataCopyExtParams(1, g.plant ? 36 : 32, 0, 0, 0));
}
SELFTEST(gather_bounds, AIV_ONLY, g) {
  Bench k(g);
  auto a = k.a<float>(), d = k.d<float>();
  auto w = k.w<int32_t>();
  Duplicate(w, static_cast<int32_t>(g.plant ? Bench::kBytes : Bench::kBytes - 4), 64);
  PipeBarrier<PIPE_V>();
  Gather(d, a, w.ReinterpretCast<uint32_t>(), 0u, 64u);
  k.store(d, 256);
}

SELFTEST(no_memory, AIV_ONLY, g) {
  Bench k(g);
  auto a = k.a<float>();
  // Between where programs and where libraries are mapped, and past ASan's shadow; a distance from a real address may
  // end beyond what a pointer can hold, depending on where the system placed that.
  uint8_t* const nowhere = reinterpret_cast<GM_ADDR>(uintptr_t{0x2000} << 32);
  DataCopy(a, global<float>(g.plant ? nowhere : g.a)[64], 64u);
  k.store(a, 256);
}
SELFTEST(tails_of_a_line, AIV_ONLY,
         g) {  // in place: the next tile is loaded before this one is stored; they share a line
  TPipe pipe;
  TQue<TPosition::VECIN, 2> in;
  TQue<TPosition::VECOUT, 1> out;
  pipe.InitBuffer(in, 2, 256);
  pipe.InitBuffer(out, 1, 256);
  constexpr uint32_t kTile = 24;  // 96 bytes
  const auto x = global<float>(g.out);
  const auto load = [&](uint32_t i) {
    auto t = in.AllocTensor<float>();
    DataCopy(t, x[i * (g.plant ? kTile - 8 : kTile)], kTile);
    in.EnQue(t);
  };
  load(0);
  for (uint32_t i = 0; i < 4; ++i) {
    if (i < 3) load(i + 1);
    auto t = in.DeQue<float>();
    auto y = out.AllocTensor<float>();
    Adds(y, t, 1.f, kTile);
    out.EnQue(y);
    in.FreeTensor(t);
    y = out.DeQue<float>();
    DataCopy(x[i * (g.plant ? kTile - 8 : kTile)], y, kTile);
    out.FreeTensor(y);
  }
}

SELFTEST(two_pipes, AIV_ONLY, g) {  // one after the other: the second begins with all of the memory
  const auto use = [](TPipe& pipe) {
    TBuf<TPosition::VECCALC> b;
    pipe.InitBuffer(b, 100 * 1024);
    Duplicate(b.Get<float>(), 1.f, 64);
  };
  TPipe* first = new TPipe;
  use(*first);
  if (!g.plant) delete first;
  TPipe second;
  use(second);
}

}  // namespace
