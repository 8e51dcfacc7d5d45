// SPDX-License-Identifier: Apache-2.0
// The entry of the CUDA backend, and of its emulation on a CPU: the same kernel sources behind another name.
#include "build_info.h"
#include "kernel.cuh"

namespace dsv4::cuda {
namespace {

#if defined(CUDA_EMU)
constexpr DLDeviceType kDevice = kDLCPU;
const char* why_not() { return nullptr; }
#else
constexpr DLDeviceType kDevice = kDLCUDA;
constexpr int kLeastShared = 163 * 1024;  // of a block: attention's tiles; sm_86 and sm_89, which run sm_80's code, have 99 KB

// Why this machine cannot run the kernels. The run time is linked in and looks for the driver only now.
const char* why_not() {
  static char text[256];
  int driver = 0, devices = 0;
  cudaDriverGetVersion(&driver);  // 0 if there is none
  if (driver == 0) {
    std::snprintf(text, sizeof text, "no driver: libcuda.so.1 was not found; the kernels need a driver for CUDA %d",
                  CUDART_VERSION / 1000);
    return text;
  }
  const cudaError_t error = cudaGetDeviceCount(&devices);
  if (error == cudaSuccess && devices > 0) {
    int shared = 0;
    const cudaError_t asked = cudaDeviceGetAttribute(&shared, cudaDevAttrMaxSharedMemoryPerBlockOptin, 0);
    if (asked == cudaSuccess && shared >= kLeastShared) return nullptr;
    std::snprintf(text, sizeof text, "GPU 0 lets a block have %d bytes of shared memory, the kernels need %d: compute "
                  "capability 8.0, 9.0 or 10.0 (%s)", shared, kLeastShared, cudaGetErrorString(asked));
    cudaGetLastError();
    return text;
  }
  std::snprintf(text, sizeof text, "%s: %s (driver for CUDA %d.%d, kernels built with CUDA %d.%d)",
                error == cudaErrorInsufficientDriver ? "driver too old" : "no GPU",
                error == cudaSuccess ? "the driver names no device" : cudaGetErrorString(error), driver / 1000,
                driver % 1000 / 10, CUDART_VERSION / 1000, CUDART_VERSION % 1000 / 10);
  cudaGetLastError();  // nobody's later launch is to blame for this
  return text;
}
#endif

BackendTable& table() {
  static BackendTable t{kPluginAbi, kOpCount, DSV4_BACKEND_NAME, kBuild.source_hash, DSV4_TOOLCHAIN, DSV4_ARCHS,
                        kDevice, &why_not, {}, {}, {}};
  return t;
}

}  // namespace

bool add_kernel(OpId id, LaunchFn launch, WorkspaceFn workspace) {
  table().launch[id] = launch;
  table().workspace[id] = workspace;
  return true;
}

}  // namespace dsv4::cuda

extern "C" DSV4_API const dsv4::BackendTable* dsv4_backend_entry(const dsv4::HostServices* host) {
  return host->abi == dsv4::kPluginAbi ? &dsv4::cuda::table() : nullptr;
}
