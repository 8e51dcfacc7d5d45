// SPDX-License-Identifier: Apache-2.0
// What every AscendC kernel file includes: the API, the split of work over cores, and streams of any dtype as floats.
// Kernels order everything themselves (no auto-sync): PipeBarrier<PIPE_V> between dependent vector instructions, queues
// between pipes, SetFlag/WaitFlag where the scalar unit takes part.
#pragma once
#include "kernel_operator.h"

// What an entry is, in front of its `void`. KERNEL_TASK_TYPE_DEFAULT in its body says the same to
// ascendc_library; language ASC reads the specifiers only, and deduces nothing where a source has several
// kernels. MEETING: cores wait for those of other blocks. Such a kernel starts when there is room for all of
// its blocks (__schedmode__(1)): two of them in two streams could else wait for each other's cores for ever.
#if defined(DSV4_ASCEND_ASC)
#define DSV4_VECTOR_KERNEL __global__ __vector__
#define DSV4_VECTOR_MEETING __schedmode__(1) __global__ __mix__(0, 1)
#define DSV4_MIXED_KERNEL __global__ __mix__(1, 2)
#else
#define DSV4_VECTOR_KERNEL __global__ __aicore__
#define DSV4_VECTOR_MEETING __global__ __aicore__
#define DSV4_MIXED_KERNEL __global__ __aicore__
#endif

// ENTRY(suffix, type) for every dtype of a stream: the entries of a kernel are dsv4_<name>_<suffix>.
#define DSV4_STREAM_ENTRIES(ENTRY) \
  ENTRY(bf16, bfloat16_t)          \
  ENTRY(f16, half)                 \
  ENTRY(f32, float)

namespace dsv4_ascend {

using namespace AscendC;

constexpr int32_t kBlock = 32;  // bytes that a transfer in local memory begins at and counts in

template <class T>
__aicore__ inline constexpr int32_t block_elements() { return kBlock / static_cast<int32_t>(sizeof(T)); }

template <class T>
__aicore__ inline constexpr T ceil_div(T a, T b) { return (a + b - 1) / b; }
template <class T>
__aicore__ inline constexpr T round_up(T a, T b) { return (a + b - 1) / b * b; }
template <class T>
__aicore__ inline constexpr T min_of(T a, T b) { return a < b ? a : b; }

// The units of one core: the first total % cores of them do one more.
struct Share {
  int64_t first, count;
};
__aicore__ inline Share share_of(int64_t total, int64_t cores, int64_t index) {
  const int64_t each = total / cores, more = total % cores;
  return {each * index + min_of(index, more), each + (index < more ? 1 : 0)};
}

// Rows between global and local memory; any length, the local side begins at a block.
template <class T>
__aicore__ inline void load_row(const LocalTensor<T>& to, const GlobalTensor<T>& from, int32_t count) {
  DataCopyPad(to, from, DataCopyExtParams{1, static_cast<uint32_t>(count * sizeof(T)), 0, 0, 0},
              DataCopyPadExtParams<T>{false, 0, 0, T{}});
}
template <class T>
__aicore__ inline void store_row(const GlobalTensor<T>& to, const LocalTensor<T>& from, int32_t count) {
  DataCopyPad(to, from, DataCopyExtParams{1, static_cast<uint32_t>(count * sizeof(T)), 0, 0, 0});
}

// 16-bit streams to floats and back, rounded to nearest even. (fp32 streams need neither.)
template <class T>
__aicore__ inline void to_float(const LocalTensor<float>& to, const LocalTensor<T>& from, int32_t count) {
  Cast(to, from, RoundMode::CAST_NONE, static_cast<uint32_t>(count));
}
template <class T>
__aicore__ inline void from_float(const LocalTensor<T>& to, const LocalTensor<float>& from, int32_t count) {
  Cast(to, from, RoundMode::CAST_RINT, static_cast<uint32_t>(count));
}

template <class T>
__aicore__ inline GlobalTensor<T> global(GM_ADDR address) {
  GlobalTensor<T> t;
  t.SetGlobalBuffer(reinterpret_cast<__gm__ T*>(address));
  return t;
}

template <class A, class B>
struct SameType {
  static constexpr bool value = false;
};
template <class A>
struct SameType<A, A> {
  static constexpr bool value = true;
};
template <class T>
constexpr bool is_float = SameType<T, float>::value;

}  // namespace dsv4_ascend
