// SPDX-License-Identifier: Apache-2.0
// Mistakes of order between the pipes of a core: rule 10. `plant` 0 is the correct kernel.
#include "selftest.h"

using selftest::global;

namespace {

constexpr int32_t kCount = 64;

// Buffers without queues; every flag is written out.
struct Plain {
  explicit Plain(const selftest::Args& args) : g(args), in(global<float>(args.a)), out(global<float>(args.out)) {
    pipe.InitBuffer(x_, 256);
    pipe.InitBuffer(y_, 256);
    x = x_.Get<float>(), y = y_.Get<float>();
  }
  void load() {
    DataCopy(x, in, kCount);
    SetFlag<HardEvent::MTE2_V>(EVENT_ID0);
    WaitFlag<HardEvent::MTE2_V>(EVENT_ID0);
  }
  void store() {
    SetFlag<HardEvent::V_MTE3>(EVENT_ID0);
    WaitFlag<HardEvent::V_MTE3>(EVENT_ID0);
    DataCopy(out, y, kCount);
  }
  const selftest::Args& g;
  TPipe pipe;
  TBuf<TPosition::VECCALC> x_, y_;
  LocalTensor<float> x, y;
  GlobalTensor<float> in, out;
};

SELFTEST(v_after_v, AIV_ONLY, g) {
  Plain k(g);
  k.load();
  Adds(k.y, k.x, 1.f, kCount);
  if (!g.plant) PipeBarrier<PIPE_V>();
  Muls(k.y, k.y, 2.f, kCount);
  k.store();
}
SELFTEST(v_after_mte2, AIV_ONLY, g) {
  Plain k(g);
  if (g.plant) DataCopy(k.x, k.in, kCount);
  else k.load();
  Adds(k.y, k.x, 1.f, kCount);
  k.store();
}
SELFTEST(mte3_after_v, AIV_ONLY, g) {
  Plain k(g);
  k.load();
  Adds(k.y, k.x, 1.f, kCount);
  if (g.plant) DataCopy(k.out, k.y, kCount);
  else k.store();
}
SELFTEST(mte2_after_v, AIV_ONLY, g) {  // the next load must not overtake the reading of the first
  Plain k(g);
  k.load();
  Adds(k.y, k.x, 1.f, kCount);
  if (!g.plant) {
    SetFlag<HardEvent::V_MTE2>(EVENT_ID0);
    WaitFlag<HardEvent::V_MTE2>(EVENT_ID0);
  }
  DataCopy(k.x, k.in[kCount], kCount);
  k.store();
}
SELFTEST(v_after_mte3, AIV_ONLY, g) {
  Plain k(g);
  k.load();
  Adds(k.y, k.x, 1.f, kCount);
  k.store();
  if (!g.plant) {
    SetFlag<HardEvent::MTE3_V>(EVENT_ID0);
    WaitFlag<HardEvent::MTE3_V>(EVENT_ID0);
  }
  Adds(k.y, k.x, 2.f, kCount);
}
SELFTEST(s_after_v, AIV_ONLY, g) {
  Plain k(g);
  k.load();
  Adds(k.y, k.x, 1.f, kCount);
  if (!g.plant) {
    SetFlag<HardEvent::V_S>(EVENT_ID0);
    WaitFlag<HardEvent::V_S>(EVENT_ID0);
  }
  const float first = k.y.GetValue(0);
  SetFlag<HardEvent::S_V>(EVENT_ID0);
  WaitFlag<HardEvent::S_V>(EVENT_ID0);
  Muls(k.y, k.y, first, kCount);
  k.store();
}
SELFTEST(v_after_s, AIV_ONLY, g) {
  Plain k(g);
  k.load();
  SetFlag<HardEvent::MTE2_S>(EVENT_ID0);
  WaitFlag<HardEvent::MTE2_S>(EVENT_ID0);
  k.x.SetValue(0, 7.f);
  if (!g.plant) {
    SetFlag<HardEvent::S_V>(EVENT_ID0);
    WaitFlag<HardEvent::S_V>(EVENT_ID0);
  }
  Adds(k.y, k.x, 1.f, kCount);
  k.store();
}
SELFTEST(mte3_after_s, AIV_ONLY, g) {
  Plain k(g);
  for (int i = 0; i < kCount; ++i) k.y.SetValue(static_cast<uint32_t>(i), 1.f);
  if (!g.plant) {
    SetFlag<HardEvent::S_MTE3>(EVENT_ID0);
    WaitFlag<HardEvent::S_MTE3>(EVENT_ID0);
  }
  DataCopy(k.out, k.y, kCount);
}
SELFTEST(mte2_after_mte2, AIV_ONLY, g) {
  Plain k(g);
  DataCopy(k.x, k.in, kCount);
  if (!g.plant) PipeBarrier<PIPE_MTE2>();
  k.load();
  Adds(k.y, k.x, 1.f, kCount);
  k.store();
}
SELFTEST(mte3_after_mte3, AIV_ONLY, g) {
  Plain k(g);
  k.load();
  Adds(k.y, k.x, 1.f, kCount);
  k.store();
  if (!g.plant) PipeBarrier<PIPE_MTE3>();
  DataCopy(k.out, k.y, kCount);
}
SELFTEST(mte2_after_mte3, AIV_ONLY, g) {  // through global memory
  Plain k(g);
  k.load();
  Adds(k.y, k.x, 1.f, kCount);
  k.store();
  if (!g.plant) {
    SetFlag<HardEvent::MTE3_MTE2>(EVENT_ID0);
    WaitFlag<HardEvent::MTE3_MTE2>(EVENT_ID0);
  }
  SetFlag<HardEvent::V_MTE2>(EVENT_ID0);
  WaitFlag<HardEvent::V_MTE2>(EVENT_ID0);
  DataCopy(k.x, k.out, kCount);
}
SELFTEST(set_twice, AIV_ONLY, g) {
  SetFlag<HardEvent::V_S>(EVENT_ID0);
  if (!g.plant) WaitFlag<HardEvent::V_S>(EVENT_ID0);
  SetFlag<HardEvent::V_S>(EVENT_ID0);
  WaitFlag<HardEvent::V_S>(EVENT_ID0);
}
SELFTEST(wait_alone, AIV_ONLY, g) {
  if (!g.plant) SetFlag<HardEvent::V_S>(EVENT_ID1);
  WaitFlag<HardEvent::V_S>(EVENT_ID1);
}
SELFTEST(set_left, AIV_ONLY, g) {
  SetFlag<HardEvent::V_S>(EVENT_ID2);
  if (!g.plant) WaitFlag<HardEvent::V_S>(EVENT_ID2);
}
SELFTEST(event_range, AIV_ONLY, g) {
  SetFlag<HardEvent::V_S>(g.plant ? 8 : 7);
  WaitFlag<HardEvent::V_S>(g.plant ? 8 : 7);
}
SELFTEST(event_of_queue, AIV_ONLY, g) {  // a queue holds id 0 of V_MTE2 while its buffer is free
  TPipe pipe;
  TQue<TPosition::VECIN, 1> q;
  pipe.InitBuffer(q, 1, 256);
  auto t = q.AllocTensor<float>();
  q.FreeTensor(t);
  const TEventID id = g.plant ? TEventID(EVENT_ID0) : GetTPipePtr()->FetchEventID(HardEvent::V_MTE2);
  SetFlag<HardEvent::V_MTE2>(id);
  WaitFlag<HardEvent::V_MTE2>(id);
}

}  // namespace
