// SPDX-License-Identifier: Apache-2.0
// Starting kernels in clusters: blocks that run together and read each other's shared memory (ptx.cuh). sm_90 and
// newer. A kernel that is started this way may have dynamic shared memory only.
#pragma once
#include <atomic>

#include "kernel.cuh"

namespace dsv4::cuda {

constexpr unsigned kPortable = 8;  // blocks of a cluster that every device has room for

// The attributes of such a launch, set on the kernel and as the run time takes them.
class ClusterLaunch {
 public:
  ClusterLaunch(const void* kernel, unsigned cluster, dim3 grid, dim3 block, size_t smem, cudaStream_t stream)
      : config_{grid, block, smem, stream, &attribute_, 1} {
    attribute_.id = cudaLaunchAttributeClusterDimension;
    attribute_.val.clusterDim.x = cluster, attribute_.val.clusterDim.y = attribute_.val.clusterDim.z = 1;
    if (cluster > kPortable) error_ = cudaFuncSetAttribute(kernel, cudaFuncAttributeNonPortableClusterSizeAllowed, 1);
    if (error_ == cudaSuccess && smem > kDefaultSmem)  // less would lower it, for launches of other sizes
      error_ = cudaFuncSetAttribute(kernel, cudaFuncAttributeMaxDynamicSharedMemorySize, static_cast<int>(smem));
  }
  ClusterLaunch(const ClusterLaunch&) = delete;
  cudaError_t error() const { return error_; }
  const cudaLaunchConfig_t& config() const { return config_; }

 private:
  cudaLaunchAttribute attribute_{};
  cudaLaunchConfig_t config_;
  cudaError_t error_ = cudaSuccess;
};

// Clusters of `cluster` blocks along x.
template <class... P, class... A>
inline cudaError_t launch_clusters(void (*kernel)(P...), unsigned cluster, dim3 grid, dim3 block, size_t smem,
                                   cudaStream_t stream, A&&... args) {
  const ClusterLaunch how(reinterpret_cast<const void*>(kernel), cluster, grid, block, smem, stream);
  if (how.error() != cudaSuccess) return how.error();
#if defined(CUDA_EMU)
  return cuda_emu::launch_in_clusters(kernel, cluster, grid, block, smem, stream, std::forward<A>(args)...);
#else
  return cudaLaunchKernelEx(&how.config(), kernel, static_cast<P>(args)...);
#endif
}

// How many clusters of this kind the current device holds at a time: 0 where it has none, or none so large, or where the
// kernel's code is of an older architecture (PTX of sm_80 on sm_90), which traps.
inline int active_clusters(const void* kernel, unsigned cluster, unsigned threads, size_t smem) {
  int device = 0, clusters = 0;
  cudaFuncAttributes code{};
  if (cudaGetDevice(&device) != cudaSuccess ||
      cudaDeviceGetAttribute(&clusters, cudaDevAttrClusterLaunch, device) != cudaSuccess || !clusters ||
      cudaFuncGetAttributes(&code, kernel) != cudaSuccess || code.ptxVersion < 90) {
    return 0;
  }
  const ClusterLaunch how(kernel, cluster, cluster, threads, smem, nullptr);
  if (how.error() == cudaSuccess && cudaOccupancyMaxActiveClusters(&clusters, kernel, &how.config()) == cudaSuccess)
    return clusters;
  cudaGetLastError();  // the answer is "none", not an error of the next launch
  return 0;
}

// Answers of active_clusters for one kernel, whose threads and shared memory are always the same.
struct KnownClusters {
  static constexpr int kDevices = 64, kMost = 16;
  std::atomic<int> answer[kDevices][kMost + 1];  // + 1; 0: not asked
};

// active_clusters, asked once a device and size of cluster.
inline int clusters_at_once(KnownClusters& known, const void* kernel, unsigned cluster, unsigned threads, size_t smem) {
#if !defined(CUDA_EMU)  // whose device may change
  int device = 0;
  if (cudaGetDevice(&device) == cudaSuccess && device < KnownClusters::kDevices) {
    std::atomic<int>& answer = known.answer[device][cluster];
    if (!answer) answer = active_clusters(kernel, cluster, threads, smem) + 1;
    return answer - 1;
  }
#endif
  static_cast<void>(known);
  return active_clusters(kernel, cluster, threads, smem);
}

}  // namespace dsv4::cuda
