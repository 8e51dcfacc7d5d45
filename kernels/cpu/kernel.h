// SPDX-License-Identifier: Apache-2.0
// What every CPU kernel file includes: params, vectors, threads, and the macro that puts it in the backend table.
#pragma once
#include <cstdio>

#include "backend.h"
#include "dsv4spec/types.h"
#include "params.h"
#include "simd.h"

namespace dsv4::cpu {

extern const HostServices* g_host;

// fn(begin, end) over [0, n), in ranges of at least `grain`, on the pool's threads. Ranges never change results:
// every output element is computed by one call, in an order that does not depend on the range.
template <class Fn>
inline void parallel(int64_t n, int64_t grain, Fn&& fn) {
  g_host->parallel_for(
      n, grain, [](void* ctx, int64_t begin, int64_t end) { (*static_cast<Fn*>(ctx))(begin, end); }, &fn);
}

// Ranges worth a second thread hold at least this much work (bytes moved, or flops / 16): some 15 us of one core, well
// above a hand-over. Smaller ones lose more to a thread that the system has put aside than they gain.
constexpr int64_t kParallelBytes = 256 * 1024;
inline int64_t grain_for(int64_t bytes_per_item) {
  const int64_t g = kParallelBytes / (bytes_per_item > 0 ? bytes_per_item : 1);
  return g > 1 ? g : 1;
}

// Do rows of this result consist of whole, aligned vectors (or pairs of them), as simd.h's stream() writes them?
template <class T>
inline bool whole_vectors(const TensorView& out, int width = W) {
  const int rank = out.ndim;
  bool whole = reinterpret_cast<uintptr_t>(out.data) % (width * sizeof(T)) == 0 && out.shape[rank - 1] % width == 0;
  for (int i = 0; i + 1 < rank; ++i) whole = whole && out.stride[i] % width == 0;
  return whole;
}

// Does stream() suit this result: more than the caches keep until it is read?
template <class T>
inline bool streamable(const TensorView& out, int width = W) {
  int64_t count = 1;
  for (int i = 0; i < out.ndim; ++i) count *= out.shape[i];
  return whole_vectors<T>(out, width) && count * static_cast<int64_t>(sizeof(T)) >= (int64_t{16} << 20);
}

// Rows that are kept for later calls are read again only after the other layers have used the caches: so many bytes, read
// and written, and more go past them.
constexpr int64_t kStreamedBytes = 128 * 1024;

// Bytes whose place the processor looks up at once. A fetch into the second-level cache waits for that; one line of the page
// fetched into the first level in time looks it up meanwhile.
constexpr int64_t kPage = 4096;

// Writes "argument: expected RULE, got VALUE" and returns the status to give back.
template <class... Values>
inline int32_t refuse(const Launch& launch, const char* format, Values... values) {
  std::snprintf(launch.error, launch.error_size, format, values...);
  return DSV4_INVALID_ARGUMENT;
}

bool add_kernel(OpId id, LaunchFn launch, WorkspaceFn workspace);

}  // namespace dsv4::cpu

// Registers `int32_t launch(const Params&, const Launch&)` of this file as the kernel of `op`.
#define DSV4_CPU_KERNEL(op, Params, launch)                                                            \
  static const bool op##_added = ::dsv4::cpu::add_kernel(                                              \
      ::dsv4::kOp_##op,                                                                                \
      [](const void* p, const ::dsv4::Launch* l) { return launch(*static_cast<const Params*>(p), *l); }, \
      nullptr);
// The same with scratch: `uint64_t workspace(const Params&)` bytes.
#define DSV4_CPU_KERNEL_WITH_WORKSPACE(op, Params, launch, workspace_size)                             \
  static const bool op##_added = ::dsv4::cpu::add_kernel(                                              \
      ::dsv4::kOp_##op,                                                                                \
      [](const void* p, const ::dsv4::Launch* l) { return launch(*static_cast<const Params*>(p), *l); }, \
      [](const void* p) { return workspace_size(*static_cast<const Params*>(p)); });
