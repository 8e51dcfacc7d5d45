// SPDX-License-Identifier: Apache-2.0
// The bodies of the instructions that kernels/cuda/ptx.cuh wraps.
#pragma once
#include <cstdint>

#include "core.h"

namespace cuda_emu {

void mma_bf16(float (&d)[4], const uint32_t (&a)[4], const uint32_t (&b)[2], Site site = Site::here());
void ldmatrix_x4(uint32_t (&r)[4], const void* row, bool transposed, Site site = Site::here());

inline uint32_t cluster_rank() { return current_block().cluster_rank; }
inline uint32_t cluster_size() { return current_block().cluster_size; }
inline void cluster_sync(Site site = Site::here()) {
  cluster_arrive("cluster_sync", site);
  cluster_wait("cluster_sync", site);
}
inline void cluster_arrive(Site site = Site::here()) { cluster_arrive("cluster_arrive", site); }
inline void cluster_wait(Site site = Site::here()) { cluster_wait("cluster_wait", site); }
template <class T>
__attribute__((always_inline)) inline T cluster_load(const T* shared, uint32_t rank, Site site = Site::here()) {
  T value;
  cluster_read(&value, shared, sizeof(T), rank, site);
  return value;
}

inline void cp_async(void* shared, const void* global, int bytes, int source_bytes, Site site = Site::here()) {
  copy_async(shared, global, bytes, source_bytes, site);
}
inline void cp_async_commit() { copy_commit(); }
inline void cp_async_wait(int groups_in_flight) { copy_wait(groups_in_flight); }

}  // namespace cuda_emu
