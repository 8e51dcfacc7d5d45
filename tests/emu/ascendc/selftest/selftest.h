// SPDX-License-Identifier: Apache-2.0
// Kernels for the tests of the emulator itself. SELFTEST(name, type, g) { ... } is one; selftest_run launches it.
#pragma once
#include "kernel_operator.h"

using namespace AscendC;

namespace selftest {

struct Args {
  uint8_t *a, *b, *out, *work;
  int64_t n;      // elements, where a case takes so many
  int32_t plant;  // 1: with its mistake
};

bool add(const char* name, void (*kernel)(Args));

// Three buffers of floats (or anything), of 8 KB each, and a fourth for scratch. Loads and stores wait for everything:
// cases replay one instruction; those about order write their own flags.
struct Bench {
  explicit Bench(const Args& args) : g(args) {
    pipe.InitBuffer(a_, kBytes);
    pipe.InitBuffer(b_, kBytes);
    pipe.InitBuffer(d_, kBytes);
    pipe.InitBuffer(w_, 2 * kBytes);
  }
  static constexpr uint32_t kBytes = 20 * 1024;
  template <class T>
  LocalTensor<T> a(uint32_t bytes = kBytes) { return load<T>(a_, g.a, bytes); }
  template <class T>
  LocalTensor<T> b(uint32_t bytes = kBytes) { return load<T>(b_, g.b, bytes); }
  template <class T>
  LocalTensor<T> d(uint32_t bytes = kBytes) { return load<T>(d_, g.out, bytes); }  // with what `out` holds
  template <class T>
  LocalTensor<T> w() { return w_.Get<T>(); }
  template <class T>
  void store(const LocalTensor<T>& t, uint32_t bytes = kBytes) {
    PipeBarrier<PIPE_ALL>();
    GlobalTensor<T> out;
    out.SetGlobalBuffer(reinterpret_cast<T*>(g.out));
    DataCopyPad(out, t, DataCopyExtParams(1, bytes, 0, 0, 0));
    PipeBarrier<PIPE_ALL>();
  }

  const Args& g;
  TPipe pipe;

 private:
  template <class T>
  LocalTensor<T> load(TBuf<TPosition::VECCALC>& buffer, GM_ADDR from, uint32_t bytes) {
    GlobalTensor<T> t;
    t.SetGlobalBuffer(reinterpret_cast<T*>(from));
    DataCopyPad(buffer.Get<T>(), t, DataCopyExtParams(1, bytes, 0, 0, 0), DataCopyPadExtParams<T>());
    PipeBarrier<PIPE_ALL>();
    return buffer.Get<T>();
  }
  TBuf<TPosition::VECCALC> a_, b_, d_, w_;
};

template <class T>
GlobalTensor<T> global(GM_ADDR p) {
  GlobalTensor<T> t;
  t.SetGlobalBuffer(reinterpret_cast<T*>(p));
  return t;
}

}  // namespace selftest

#define SELFTEST(name, type, g)                                                \
  static void name##_body(const selftest::Args& g);                            \
  static void name##_kernel(selftest::Args g) {                                \
    KERNEL_TASK_TYPE_DEFAULT(KERNEL_TYPE_##type);                              \
    name##_body(g);                                                            \
  }                                                                            \
  static const bool name##_added = selftest::add(#name, &name##_kernel);       \
  static void name##_body([[maybe_unused]] const selftest::Args& g)
