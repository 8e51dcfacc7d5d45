// SPDX-License-Identifier: Apache-2.0
// CUDA as the kernels of this folder see it, from either of two compilers: nvcc, or a host C++ compiler with the
// emulator of tests/emu/cuda, which runs the same sources on a CPU. Kernel files stay legal for both by using
//   launch(kernel, grid, block, smem, stream, args...)   instead of <<<>>>
//   DYN_SMEM(T, name)                                    instead of extern __shared__
//   the wrappers of ptx.cuh                              instead of inline PTX
#pragma once
#include <cstddef>
#include <cstdint>

namespace dsv4::cuda {
constexpr size_t kDefaultSmem = 48 * 1024;  // more dynamic shared memory has to be asked for, kernel by kernel
}

#if defined(__CUDACC__)
#include <cuda_bf16.h>
#include <cuda_fp8.h>
#include <cuda_runtime.h>

#define DSV4_DEVICE __device__ __forceinline__
#define DYN_SMEM(T, name)                                                   \
  extern __shared__ __align__(128) unsigned char dsv4_dynamic_smem[];       \
  T* name = reinterpret_cast<T*>(dsv4_dynamic_smem)

namespace dsv4::cuda {

template <class... P, class... A>
inline cudaError_t launch(void (*kernel)(P...), dim3 grid, dim3 block, size_t smem, cudaStream_t stream, A&&... args) {
  if (smem > kDefaultSmem) {
    const cudaError_t e = cudaFuncSetAttribute(reinterpret_cast<const void*>(kernel),
                                               cudaFuncAttributeMaxDynamicSharedMemorySize, static_cast<int>(smem));
    if (e != cudaSuccess) return e;
  }
  kernel<<<grid, block, smem, stream>>>(static_cast<P>(args)...);
  return cudaGetLastError();
}

}  // namespace dsv4::cuda
#else
#include "cuda_emu.h"  // defines CUDA_EMU, the qualifiers, DYN_SMEM, the intrinsics and dsv4::cuda::launch
#define DSV4_DEVICE inline
#endif

namespace dsv4::cuda {
using bf16 = __nv_bfloat16;
using bf16x2 = __nv_bfloat162;
constexpr int kWarp = 32;
constexpr unsigned kAllLanes = 0xffffffffu;
}  // namespace dsv4::cuda
