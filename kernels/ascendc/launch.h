// SPDX-License-Identifier: Apache-2.0
// What every host/<op>.cpp includes: params, refusals, the number of cores, the launch itself, and the macros that put
// a launcher into the backend table. The launch has three forms: kernel<<<...>>> (language ASC; the file is compiled
// in one source with its kernel), the launchers that CANN 8's ascendc_library generates (DSV4_ASCEND_ACLRT; plain
// C++), and the emulator's (ASCEND_EMU).
#pragma once
#include <cstdio>

#include "dsv4spec/types.h"
#include "params.h"
#include "registry.h"

#if defined(ASCEND_EMU)
#include "../../tests/emu/ascendc/launch.h"
#elif defined(DSV4_ASCEND_ACLRT)
#include <type_traits>

#include "acl/acl.h"
#define GM_ADDR void*
#else
#include "acl/acl.h"
#include "kernel_operator.h"
#endif

namespace dsv4::ascend {

// Writes "argument: expected RULE, got VALUE" and returns the status to give back.
template <class... Values>
inline int32_t refuse(const Launch& launch, const char* format, Values... values) {
  std::snprintf(launch.error, launch.error_size, format, values...);
  return DSV4_INVALID_ARGUMENT;
}
inline int32_t failed(const Launch& launch, const char* what, const char* why) {
  std::snprintf(launch.error, launch.error_size, "AscendC: %s: %s", what, why);
  return DSV4_INTERNAL_ERROR;
}

template <class T>
constexpr T ceil_div(T a, T b) { return (a + b - 1) / b; }
template <class T>
constexpr T round_up(T a, T b) { return (a + b - 1) / b * b; }

inline uint8_t* address(const TensorView& view) { return static_cast<uint8_t*>(view.data); }
inline uint8_t* workspace_of(const Launch& launch) { return static_cast<uint8_t*>(launch.workspace); }

// Makes the tensors' device the current one for the length of a launch: streams belong to their device's context.
class OnDevice {
 public:
#if defined(ASCEND_EMU)
  explicit OnDevice(const Launch&) {}
  const char* problem() const { return nullptr; }
#else
  explicit OnDevice(const Launch& l) {
    if (aclrtGetDevice(&before_) == ACL_SUCCESS && before_ == l.device) return;
    if (aclrtSetDevice(l.device) != ACL_SUCCESS) problem_ = "the run time does not let this thread use it";
    else changed_ = before_ >= 0;
  }
  ~OnDevice() {
    if (changed_) aclrtSetDevice(before_);
  }
  const char* problem() const { return problem_; }

 private:
  int32_t before_ = -1;
  bool changed_ = false;
  const char* problem_ = nullptr;
#endif
  OnDevice(const OnDevice&) = delete;
};

template <class Params, int32_t (*launch_fn)(const Params&, const Launch&)>
int32_t launch_op(const void* params, const Launch* l) {
  const OnDevice device(*l);
  if (device.problem()) return failed(*l, "the tensors' device", device.problem());
  return launch_fn(*static_cast<const Params*>(params), *l);
}
// The same with scratch. It holds anything; in the emulator that is NaN bytes, where taking it for zeros shows.
template <class Params, int32_t (*launch_fn)(const Params&, const Launch&), uint64_t (*workspace)(const Params&)>
int32_t launch_with_scratch(const void* params, const Launch* l) {
#if defined(ASCEND_EMU)
  ::ascend_emu::begin_scratch(l->workspace, workspace(*static_cast<const Params*>(params)));
#endif
  return launch_op<Params, launch_fn>(params, l);
}

#if defined(DSV4_ASCEND_ACLRT)
// A generated launcher takes the tiling struct by address, and copies it before it returns.
template <class T>
using AclrtParam = std::conditional_t<std::is_class_v<T>, T*, T>;
template <class... Ts>
using AclrtLauncher = uint32_t(uint32_t, aclrtStream, AclrtParam<Ts>...);
template <class P, class T>
P aclrt_argument(const T& value) {
  if constexpr (std::is_class_v<T>) return const_cast<T*>(&value);
  else return value;
}
template <class... Ps, class... Ts>
int32_t aclrt_launch(const Launch& l, const char* kernel, uint32_t (*launcher)(uint32_t, aclrtStream, Ps...),
                     int64_t blocks, const Ts&... args) {
  return launcher(static_cast<uint32_t>(blocks), l.stream, aclrt_argument<Ps>(args)...) == ACL_SUCCESS
             ? DSV4_OK : failed(l, kernel, "the run time refused the launch");
}
#elif !defined(ASCEND_EMU)
// After kernel<<<...>>>, which returns nothing.
inline int32_t launched(const Launch& l, const char* kernel) {
  return aclrtGetLastError(ACL_RT_THREAD_LEVEL) == ACL_SUCCESS ? DSV4_OK
                                                               : failed(l, kernel, "the run time refused the launch");
}
#endif

}  // namespace dsv4::ascend

// DSV4_ASCEND_DECLARE(kernel, types...): the kernel as host code sees it.
// DSV4_ASCEND_LAUNCH(kernel, blocks, launch, args...): a dsv4_status.
#if defined(ASCEND_EMU)
#define DSV4_ASCEND_DECLARE(kernel, ...) extern "C" void kernel(__VA_ARGS__)
#define DSV4_ASCEND_LAUNCH(kernel, blocks, l, ...)                                                \
  (::ascend_emu::launch(#kernel, &kernel, static_cast<uint32_t>(blocks), (l).workspace != nullptr, __VA_ARGS__) \
       ? DSV4_OK                                                                                                  \
       : ::dsv4::ascend::failed(l, #kernel, ascend_emu_report()))
#elif defined(DSV4_ASCEND_ACLRT)
#define DSV4_ASCEND_DECLARE(kernel, ...) extern "C" ::dsv4::ascend::AclrtLauncher<__VA_ARGS__> aclrtlaunch_##kernel
#define DSV4_ASCEND_LAUNCH(kernel, blocks, l, ...) \
  ::dsv4::ascend::aclrt_launch(l, #kernel, &aclrtlaunch_##kernel, blocks, __VA_ARGS__)
#else
#define DSV4_ASCEND_DECLARE(kernel, ...) static_assert(true, "its definition stands before, in the same source")
#define DSV4_ASCEND_LAUNCH(kernel, blocks, l, ...)                          \
  (kernel<<<static_cast<uint32_t>(blocks), 0, (l).stream>>>(__VA_ARGS__),   \
   ::dsv4::ascend::launched(l, #kernel))
#endif

// Of the entries that a kernel has for every dtype of a stream (kernel.h's DSV4_STREAM_ENTRIES): DECLARE(suffix) for each,
// and LAUNCH(suffix), a dsv4_status, for the one of this dtype.
#define DSV4_ASCEND_STREAMS(DECLARE) \
  DECLARE(bf16);                     \
  DECLARE(f16);                      \
  DECLARE(f32)
#define DSV4_ASCEND_STREAM_LAUNCH(dtype, LAUNCH) \
  ((dtype) == kBF16 ? LAUNCH(bf16) : (dtype) == kF16 ? LAUNCH(f16) : LAUNCH(f32))

// Registers `int32_t launch(const Params&, const Launch&)` of this file as the kernel of `op`.
#define DSV4_ASCEND_KERNEL(op, Params, launch_fn)                  \
  static const bool op##_added = ::dsv4::ascend::add_kernel(       \
      ::dsv4::kOp_##op, &::dsv4::ascend::launch_op<Params, launch_fn>, nullptr);
// The same with scratch: `uint64_t workspace(const Params&)` bytes, not zeroed.
#define DSV4_ASCEND_KERNEL_WITH_WORKSPACE(op, Params, launch_fn, workspace_size)                   \
  static const bool op##_added = ::dsv4::ascend::add_kernel(                                       \
      ::dsv4::kOp_##op, &::dsv4::ascend::launch_with_scratch<Params, launch_fn, workspace_size>,   \
      [](const void* p) { return workspace_size(*static_cast<const Params*>(p)); });
// Says that the kernel of `op` takes float16 streams; without it the core refuses them.
#define DSV4_ASCEND_FLOAT16(op) \
  static const bool op##_float16_added = ::dsv4::ascend::add_float16(::dsv4::kOp_##op);
