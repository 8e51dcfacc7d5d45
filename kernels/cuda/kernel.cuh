// SPDX-License-Identifier: Apache-2.0
// What every CUDA kernel file includes: params, the device's language, vector access, reductions, and the macros that
// put a launcher into the backend table.
#pragma once
#include <cstdio>

#include "backend.h"
#include "device.cuh"
#include "dsv4spec/types.h"
#include "params.h"
#include "ptx.cuh"

namespace dsv4::cuda {

// ------------------------------------------------------------------------------------------------- host side
bool add_kernel(OpId id, LaunchFn launch, WorkspaceFn workspace);

// Writes "argument: expected RULE, got VALUE" and returns the status to give back.
template <class... Values>
inline int32_t refuse(const Launch& launch, const char* format, Values... values) {
  std::snprintf(launch.error, launch.error_size, format, values...);
  return DSV4_INVALID_ARGUMENT;
}

// The status of a launch. An error is told once: the run time forgets it, or the next launch would be blamed for it.
inline int32_t status_of(const Launch& launch, cudaError_t error) {
  if (error == cudaSuccess) return DSV4_OK;
  cudaGetLastError();
#if defined(CUDA_EMU)
  std::snprintf(launch.error, launch.error_size, "CUDA: %s: %s", cudaGetErrorString(error), cuda_emu_report());
#else
  std::snprintf(launch.error, launch.error_size, "CUDA: %s", cudaGetErrorString(error));
#endif
  return DSV4_INTERNAL_ERROR;
}

inline cudaStream_t stream_of(const Launch& launch) { return static_cast<cudaStream_t>(launch.stream); }

// Makes the tensors' device the current one for the length of a launch; the emulator has but one.
class OnDevice {
 public:
#if defined(CUDA_EMU)
  explicit OnDevice(const Launch&) {}
  cudaError_t error() const { return cudaSuccess; }
#else
  explicit OnDevice(const Launch& l) : error_(cudaGetDevice(&before_)) {
    if (error_ != cudaSuccess || before_ == l.device) return;
    error_ = cudaSetDevice(l.device);
    changed_ = error_ == cudaSuccess;
  }
  cudaError_t error() const { return error_; }
  ~OnDevice() {
    if (changed_) cudaSetDevice(before_);
  }

 private:
  int before_ = 0;
  cudaError_t error_;
  bool changed_ = false;
#endif
};

// What stands in the table: `launch_fn` on the tensors' device.
template <class Params, int32_t (*launch_fn)(const Params&, const Launch&)>
int32_t launch_on_device(const void* params, const Launch* l) {
  OnDevice guard(*l);
  if (guard.error() != cudaSuccess) return status_of(*l, guard.error());
  return launch_fn(*static_cast<const Params*>(params), *l);
}

// The same with scratch. It holds anything; in the emulator that is NaN bytes, where taking it for zeros shows.
template <class Params, int32_t (*launch_fn)(const Params&, const Launch&), uint64_t (*workspace)(const Params&)>
int32_t launch_with_scratch(const void* params, const Launch* l) {
#if defined(CUDA_EMU)
  if (const uint64_t bytes = workspace(*static_cast<const Params*>(params))) {
    const cudaError_t error = cudaMemsetAsync(l->workspace, 0xff, bytes, stream_of(*l));
    if (error != cudaSuccess) return status_of(*l, error);
  }
#endif
  return launch_on_device<Params, launch_fn>(params, l);
}

template <class T>
constexpr T ceil_div(T a, T b) { return (a + b - 1) / b; }

// Can rows of this view be read 16 bytes at a time? True if its memory and all outer strides are multiples of 16 bytes.
inline bool aligned16(const TensorView& view, size_t element_size) {
  uintptr_t bits = reinterpret_cast<uintptr_t>(view.data);
  for (int i = 0; i + 1 < view.ndim; ++i)
    if (view.shape[i] > 1) bits |= static_cast<uintptr_t>(view.stride[i]) * element_size;
  return bits % 16 == 0;
}

// ----------------------------------------------------------------------------------------------- device side
// Eight neighbouring elements as floats. The vector forms need 16-byte aligned addresses.
DSV4_DEVICE float to_float(float x) { return x; }
DSV4_DEVICE float to_float(bf16 x) { return __bfloat162float(x); }
template <class T>
DSV4_DEVICE T from_float(float x);
template <>
DSV4_DEVICE float from_float<float>(float x) { return x; }
template <>
DSV4_DEVICE bf16 from_float<bf16>(float x) { return __float2bfloat16(x); }

DSV4_DEVICE float bf16_low(uint32_t pair) { return __uint_as_float(pair << 16); }
DSV4_DEVICE float bf16_high(uint32_t pair) { return __uint_as_float(pair & 0xffff0000u); }
DSV4_DEVICE uint32_t pack_bf16(float low, float high) {
  const uint32_t a = __bfloat16_as_ushort(__float2bfloat16(low)), b = __bfloat16_as_ushort(__float2bfloat16(high));
  return a | b << 16;
}
DSV4_DEVICE void unpack8(float (&v)[8], uint4 raw) {
  v[0] = bf16_low(raw.x), v[1] = bf16_high(raw.x), v[2] = bf16_low(raw.y), v[3] = bf16_high(raw.y);
  v[4] = bf16_low(raw.z), v[5] = bf16_high(raw.z), v[6] = bf16_low(raw.w), v[7] = bf16_high(raw.w);
}
DSV4_DEVICE void load8(float (&v)[8], const bf16* p) { unpack8(v, *reinterpret_cast<const uint4*>(p)); }
DSV4_DEVICE void load8(float (&v)[8], const float* p) {
  const float4 a = *reinterpret_cast<const float4*>(p), b = *reinterpret_cast<const float4*>(p + 4);
  v[0] = a.x, v[1] = a.y, v[2] = a.z, v[3] = a.w, v[4] = b.x, v[5] = b.y, v[6] = b.z, v[7] = b.w;
}
DSV4_DEVICE uint4 pack8(const float (&v)[8]) {
  return make_uint4(pack_bf16(v[0], v[1]), pack_bf16(v[2], v[3]), pack_bf16(v[4], v[5]), pack_bf16(v[6], v[7]));
}
DSV4_DEVICE void store8(bf16* p, const float (&v)[8]) { *reinterpret_cast<uint4*>(p) = pack8(v); }
DSV4_DEVICE void store8(float* p, const float (&v)[8]) {
  *reinterpret_cast<float4*>(p) = make_float4(v[0], v[1], v[2], v[3]);
  *reinterpret_cast<float4*>(p + 4) = make_float4(v[4], v[5], v[6], v[7]);
}
// The same to global memory, in one store of 16 bytes whatever stands beside it.
DSV4_DEVICE void store8_global(bf16* p, const float (&v)[8]) { store_global16(p, pack8(v)); }
DSV4_DEVICE void store8_global(float* p, const float (&v)[8]) { store8(p, v); }
// The same for rows that allow no vector access.
template <class T>
DSV4_DEVICE void load8_any(float (&v)[8], const T* p, bool aligned) {
  if (aligned) return load8(v, p);
#pragma unroll
  for (int i = 0; i < 8; ++i) v[i] = to_float(p[i]);
}
template <class T>
DSV4_DEVICE void store8_any(T* p, const float (&v)[8], bool aligned) {
  if (aligned) return store8_global(p, v);
#pragma unroll
  for (int i = 0; i < 8; ++i) p[i] = from_float<T>(v[i]);
}

// Sums and maxima over the 32 lanes, in every lane; the order is fixed.
DSV4_DEVICE float warp_sum(float v) {
#pragma unroll
  for (int o = 16; o; o >>= 1) v += __shfl_xor_sync(kAllLanes, v, o);
  return v;
}
DSV4_DEVICE float warp_max(float v) {
#pragma unroll
  for (int o = 16; o; o >>= 1) v = fmaxf(v, __shfl_xor_sync(kAllLanes, v, o));
  return v;
}

// The sum of v over the block's kWarps warps, in every thread, in a fixed order. `scratch` holds kWarps floats; the
// caller passes another array, or a barrier, before it is used again.
template <int kWarps>
DSV4_DEVICE float block_sum(float v, float* scratch) {
  v = warp_sum(v);
  if (threadIdx.x % kWarp == 0) scratch[threadIdx.x / kWarp] = v;
  __syncthreads();
  float total = 0;
#pragma unroll
  for (int i = 0; i < kWarps; ++i) total += scratch[i];
  return total;
}

// True in every thread of the block that is the last of `blocks` to come here; that block then sees all global writes
// that the others made before. `ticket` starts at 0; `flag` is one shared int. Nobody waits.
DSV4_DEVICE bool is_last_block(unsigned* ticket, unsigned blocks, int* flag) {
  __syncthreads();
  if (threadIdx.x == 0) {
    __threadfence();  // release: this block's writes, ordered before by the barrier
    const bool last = atomicAdd(ticket, 1u) == blocks - 1;
    if (last) __threadfence();  // acquire
    *flag = last;
  }
  __syncthreads();
  return *flag != 0;
}

}  // namespace dsv4::cuda

// Registers `int32_t launch(const Params&, const Launch&)` of this file as the kernel of `op`.
#define DSV4_CUDA_KERNEL(op, Params, launch_fn)                                                             \
  static const bool op##_added = ::dsv4::cuda::add_kernel(                                                  \
      ::dsv4::kOp_##op, &::dsv4::cuda::launch_on_device<Params, launch_fn>, nullptr);
// The same with scratch: `uint64_t workspace(const Params&)` bytes. The scratch is not zeroed: a launcher that counts
// tickets in it begins with a cudaMemsetAsync of them.
#define DSV4_CUDA_KERNEL_WITH_WORKSPACE(op, Params, launch_fn, workspace_size)                              \
  static const bool op##_added = ::dsv4::cuda::add_kernel(                                                  \
      ::dsv4::kOp_##op, &::dsv4::cuda::launch_with_scratch<Params, launch_fn, workspace_size>,              \
      [](const void* p) { return workspace_size(*static_cast<const Params*>(p)); });
