// SPDX-License-Identifier: Apache-2.0
// The functions of the CUDA run time that launchers and tests call, for one device of the size of an H100. Streams,
// events and graphs: stream_capture.cpp. What is not here is not offered: a kernel that needs it does not link.
#include <cuda_runtime_api.h>

#include <cstring>

#include "memory.h"
#include "run.h"
#include "stream_capture.h"
#include "worker.h"

using cuda_emu::remember;

extern "C" {

// ---- memory ----
cudaError_t cudaMalloc(void** memory, size_t bytes) {
  if (!memory) return remember(cudaErrorInvalidValue);
  if (const cudaError_t error = cuda_emu::refuse_in_captures(); error != cudaSuccess) return remember(error);
  *memory = bytes ? cuda_emu::allocate(bytes, 256) : nullptr;
  return remember(*memory || !bytes ? cudaSuccess : cudaErrorMemoryAllocation);
}
cudaError_t cudaFree(void* memory) {
  if (const cudaError_t error = cuda_emu::refuse_in_captures(); error != cudaSuccess) return remember(error);
  return remember(!memory || cuda_emu::release(memory) ? cudaSuccess : cudaErrorInvalidValue);
}
cudaError_t cudaMallocAsync(void** memory, size_t bytes, cudaStream_t stream) {
  if (const cudaError_t error = cuda_emu::refuse_if_captured(stream); error != cudaSuccess) return remember(error);
  return cudaMalloc(memory, bytes);
}
cudaError_t cudaFreeAsync(void* memory, cudaStream_t stream) {
  if (const cudaError_t error = cuda_emu::refuse_if_captured(stream); error != cudaSuccess) return remember(error);
  return cudaFree(memory);
}

cudaError_t cudaMemcpyAsync(void* to, const void* from, size_t bytes, cudaMemcpyKind kind, cudaStream_t stream) {
  if (kind < cudaMemcpyHostToHost || kind > cudaMemcpyDefault) return remember(cudaErrorInvalidMemcpyDirection);
  const auto copy = [=] {
    if (bytes) std::memmove(to, from, bytes);
    return cudaSuccess;
  };
  const cuda_emu::Recorded recorded = cuda_emu::record(stream, copy);
  return remember(recorded.done ? recorded.error : copy());
}
cudaError_t cudaMemcpy(void* to, const void* from, size_t bytes, cudaMemcpyKind kind) {
  if (const cudaError_t error = cuda_emu::refuse_in_captures(); error != cudaSuccess) return remember(error);
  return cudaMemcpyAsync(to, from, bytes, kind, nullptr);
}
cudaError_t cudaMemsetAsync(void* to, int value, size_t bytes, cudaStream_t stream) {
  const auto set = [=] {
    if (bytes) std::memset(to, value, bytes);
    return cudaSuccess;
  };
  const cuda_emu::Recorded recorded = cuda_emu::record(stream, set);
  return remember(recorded.done ? recorded.error : set());
}
cudaError_t cudaMemset(void* to, int value, size_t bytes) {
  if (const cudaError_t error = cuda_emu::refuse_in_captures(); error != cudaSuccess) return remember(error);
  return cudaMemsetAsync(to, value, bytes, nullptr);
}

// ---- the device ----
cudaError_t cudaGetDeviceCount(int* count) {
  *count = 1;
  return cudaSuccess;
}
cudaError_t cudaGetDevice(int* device) {
  *device = 0;
  return cudaSuccess;
}
cudaError_t cudaSetDevice(int device) { return remember(device == 0 ? cudaSuccess : cudaErrorInvalidDevice); }
cudaError_t cudaDeviceSynchronize() { return remember(cuda_emu::refuse_in_captures()); }
cudaError_t cudaRuntimeGetVersion(int* version) {
  *version = CUDART_VERSION;
  return cudaSuccess;
}
cudaError_t cudaDriverGetVersion(int* version) { return cudaRuntimeGetVersion(version); }

cudaError_t cudaDeviceGetAttribute(int* value, cudaDeviceAttr attribute, int device) {
  if (device != 0) return remember(cudaErrorInvalidDevice);
  switch (attribute) {
    case cudaDevAttrMultiProcessorCount: *value = 132; break;
    case cudaDevAttrComputeCapabilityMajor: *value = static_cast<int>(cuda_emu::config.capability / 10); break;
    case cudaDevAttrComputeCapabilityMinor: *value = static_cast<int>(cuda_emu::config.capability % 10); break;
    case cudaDevAttrClusterLaunch: *value = cuda_emu::config.capability >= 90; break;
    case cudaDevAttrWarpSize: *value = 32; break;
    case cudaDevAttrMaxThreadsPerBlock: *value = static_cast<int>(cuda_emu::kMaxThreads); break;
    case cudaDevAttrMaxSharedMemoryPerBlock: *value = 48 * 1024; break;
    case cudaDevAttrMaxSharedMemoryPerBlockOptin: *value = static_cast<int>(cuda_emu::kMaxShared); break;
    case cudaDevAttrMaxSharedMemoryPerMultiprocessor: *value = 228 * 1024; break;
    case cudaDevAttrMaxThreadsPerMultiProcessor: *value = 2048; break;
    case cudaDevAttrMaxRegistersPerBlock: *value = 65536; break;
    case cudaDevAttrMaxGridDimX: *value = 0x7fffffff; break;
    case cudaDevAttrMaxGridDimY:
    case cudaDevAttrMaxGridDimZ: *value = 65535; break;
    case cudaDevAttrL2CacheSize: *value = 50 * 1024 * 1024; break;
    default: return remember(cudaErrorInvalidValue);
  }
  return cudaSuccess;
}

cudaError_t cudaFuncSetAttribute(const void* kernel, cudaFuncAttribute attribute, int value) {
  switch (attribute) {
    case cudaFuncAttributeMaxDynamicSharedMemorySize: return cuda_emu::set_max_dynamic_shared(kernel, value);
    case cudaFuncAttributeNonPortableClusterSizeAllowed: return cuda_emu::allow_large_clusters(kernel, value != 0);
    case cudaFuncAttributePreferredSharedMemoryCarveout: return cudaSuccess;  // a hint
    default: return remember(cudaErrorInvalidValue);
  }
}

// Only what the architecture is: any address is a kernel here.
cudaError_t cudaFuncGetAttributes(cudaFuncAttributes* attributes, const void* kernel) {
  if (!attributes || !kernel) return remember(cudaErrorInvalidValue);
  *attributes = cudaFuncAttributes{};
  attributes->ptxVersion = static_cast<int>(cuda_emu::config.code);
  attributes->binaryVersion = static_cast<int>(cuda_emu::config.capability);
  return cudaSuccess;
}

// Of a device of eight groups of 16 multiprocessors each, where a cluster lies within one.
cudaError_t cudaOccupancyMaxActiveClusters(int* clusters, const void*, const cudaLaunchConfig_t* launch) {
  if (!clusters || !launch) return remember(cudaErrorInvalidValue);
  if (cuda_emu::config.capability < 90) return remember(cudaErrorNotSupported);
  unsigned blocks = 1;
  for (unsigned i = 0; i < launch->numAttrs; ++i)
    if (launch->attrs[i].id == cudaLaunchAttributeClusterDimension) blocks = launch->attrs[i].val.clusterDim.x;
  const size_t of_one = 228 * 1024 / (launch->dynamicSmemBytes + 1024);
  const size_t at_once = of_one < 2048 / launch->blockDim.x ? of_one : 2048 / launch->blockDim.x;
  const bool fits = blocks >= 1 && blocks <= static_cast<unsigned>(cuda_emu::config.cluster);
  *clusters = fits ? static_cast<int>(8 * (16 * at_once / blocks)) : 0;
  return cudaSuccess;
}

// ---- errors ----
cudaError_t cudaGetLastError() {
  const cudaError_t error = cuda_emu::local.last_error;
  cuda_emu::local.last_error = cudaSuccess;
  return error;
}
cudaError_t cudaPeekAtLastError() { return cuda_emu::local.last_error; }

#define CUDA_EMU_ERRORS(X)                                                                   \
  X(cudaSuccess, "no error")                                                                 \
  X(cudaErrorInvalidValue, "invalid argument")                                               \
  X(cudaErrorMemoryAllocation, "out of memory")                                              \
  X(cudaErrorInvalidConfiguration, "invalid configuration argument")                         \
  X(cudaErrorInvalidDevice, "invalid device ordinal")                                        \
  X(cudaErrorInvalidMemcpyDirection, "invalid copy direction for memcpy")                    \
  X(cudaErrorInvalidResourceHandle, "invalid resource handle")                               \
  X(cudaErrorIllegalState, "the operation cannot be performed in the present state")         \
  X(cudaErrorNotSupported, "operation not supported")                                        \
  X(cudaErrorInvalidClusterSize, "cluster misconfiguration")                                 \
  X(cudaErrorLaunchFailure, "unspecified launch failure")                                    \
  X(cudaErrorStreamCaptureUnsupported, "operation not permitted when stream is capturing")   \
  X(cudaErrorStreamCaptureInvalidated, "operation failed due to a previous error during capture") \
  X(cudaErrorStreamCaptureImplicit, "operation would make the legacy stream depend on a capturing blocking stream") \
  X(cudaErrorCapturedEvent, "operation not permitted on an event last recorded in a capturing stream")

const char* cudaGetErrorString(cudaError_t error) {
  switch (error) {
#define CUDA_EMU_CASE(code, text) \
  case code: return text;
    CUDA_EMU_ERRORS(CUDA_EMU_CASE)
#undef CUDA_EMU_CASE
    default: return "unrecognized error code";
  }
}
const char* cudaGetErrorName(cudaError_t error) {
  switch (error) {
#define CUDA_EMU_CASE(code, text) \
  case code: return #code;
    CUDA_EMU_ERRORS(CUDA_EMU_CASE)
#undef CUDA_EMU_CASE
    default: return "unrecognized error code";
  }
}

}  // extern "C"
