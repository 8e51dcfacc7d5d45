// SPDX-License-Identifier: Apache-2.0
// What stands for kernel<<<grid, block, shared, stream>>>(args...).
#pragma once
#include <tuple>
#include <utility>

#include "core.h"

namespace cuda_emu {

template <class... Params>
struct Call {
  void (*kernel)(Params...);
  std::tuple<Params...> values;

  static void run(const void* self) {
    const Call& call = *static_cast<const Call*>(self);
    std::apply(call.kernel, call.values);  // by value: each thread has its own copy
  }
  static void* clone(const void* self) { return new Call(*static_cast<const Call*>(self)); }
  static void destroy(void* self) { delete static_cast<Call*>(self); }
};

template <class... Params, class... Args>
cudaError_t launch_in_clusters(void (*kernel)(Params...), unsigned cluster, dim3 grid, dim3 block, size_t shared_bytes,
                               cudaStream_t stream, Args&&... args) {
  using C = Call<std::remove_cv_t<Params>...>;
  const C call{reinterpret_cast<void (*)(std::remove_cv_t<Params>...)>(kernel),
               std::tuple<std::remove_cv_t<Params>...>(std::forward<Args>(args)...)};
  return submit({reinterpret_cast<const void*>(kernel), grid, block, shared_bytes, stream, &call, &C::run, &C::clone,
                 &C::destroy, cluster});
}

template <class... Params, class... Args>
cudaError_t launch(void (*kernel)(Params...), dim3 grid, dim3 block, size_t shared_bytes, cudaStream_t stream,
                   Args&&... args) {
  return launch_in_clusters(kernel, 0, grid, block, shared_bytes, stream, std::forward<Args>(args)...);
}

// Dynamic shared memory of the block that runs now; 128-byte aligned, its end is watched.
template <class T>
T* dynamic_shared() {
  return reinterpret_cast<T*>(current_block().dynamic);
}

}  // namespace cuda_emu

namespace dsv4::cuda {

// As kernels/cuda/device.cuh has it for nvcc.
template <class... Params, class... Args>
cudaError_t launch(void (*kernel)(Params...), dim3 grid, dim3 block, size_t shared_bytes, cudaStream_t stream,
                   Args&&... args) {
  if (shared_bytes > 48 * 1024) {
    const cudaError_t error =
        cudaFuncSetAttribute(reinterpret_cast<const void*>(kernel), cudaFuncAttributeMaxDynamicSharedMemorySize,
                             static_cast<int>(shared_bytes));
    if (error != cudaSuccess) return error;
  }
  return cuda_emu::launch(kernel, grid, block, shared_bytes, stream, std::forward<Args>(args)...);
}

}  // namespace dsv4::cuda
