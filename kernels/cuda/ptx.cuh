// SPDX-License-Identifier: Apache-2.0
// Every PTX instruction that the kernels use by name: sm_80 and newer, clusters sm_90 and newer. The emulator runs the
// second body of each wrapper, not the PTX text, so the list is short and each has a conformance test that runs in both
// builds. Fragment layouts are those of the PTX ISA, "Matrix Fragments for mma.m16n8k16" and "ldmatrix".
#pragma once
#include "device.cuh"

namespace dsv4::cuda {

// D += A * B of one warp: A 16x16 and B 16x8 bf16, D fp32. With g = lane / 4 and t = lane % 4 * 2, a lane holds
//   a[0] = A[g][t..t+1], a[1] = A[g+8][t..], a[2] = A[g][t+8..], a[3] = A[g+8][t+8..]
//   b[0] = B[t..t+1][g], b[1] = B[t+8..t+9][g];   d = D[g][t], D[g][t+1], D[g+8][t], D[g+8][t+1]
DSV4_DEVICE void mma_bf16(float (&d)[4], const uint32_t (&a)[4], const uint32_t (&b)[2]) {
#if defined(__CUDA_ARCH__)
  asm volatile(
      "mma.sync.aligned.m16n8k16.row.col.f32.bf16.bf16.f32 {%0,%1,%2,%3}, {%4,%5,%6,%7}, {%8,%9}, {%0,%1,%2,%3};\n"
      : "+f"(d[0]), "+f"(d[1]), "+f"(d[2]), "+f"(d[3])
      : "r"(a[0]), "r"(a[1]), "r"(a[2]), "r"(a[3]), "r"(b[0]), "r"(b[1]));
#elif defined(CUDA_EMU)
  cuda_emu::mma_bf16(d, a, b);
#endif
}

// Four 8x8 matrices of 16-bit elements from shared memory. Lane l gives the address of row l % 8 of matrix l / 8
// (16 bytes, 16-byte aligned). Afterwards r[m] of a lane holds M_m[lane / 4][lane % 4 * 2 ..+1]; transposed:
// M_m[lane % 4 * 2 ..+1][lane / 4].
DSV4_DEVICE void ldmatrix_x4(uint32_t (&r)[4], const void* row) {
#if defined(__CUDA_ARCH__)
  const uint32_t address = static_cast<uint32_t>(__cvta_generic_to_shared(row));
  asm volatile("ldmatrix.sync.aligned.m8n8.x4.shared.b16 {%0,%1,%2,%3}, [%4];\n"
               : "=r"(r[0]), "=r"(r[1]), "=r"(r[2]), "=r"(r[3]) : "r"(address) : "memory");
#elif defined(CUDA_EMU)
  cuda_emu::ldmatrix_x4(r, row, false);
#endif
}
DSV4_DEVICE void ldmatrix_x4_trans(uint32_t (&r)[4], const void* row) {
#if defined(__CUDA_ARCH__)
  const uint32_t address = static_cast<uint32_t>(__cvta_generic_to_shared(row));
  asm volatile("ldmatrix.sync.aligned.m8n8.x4.trans.shared.b16 {%0,%1,%2,%3}, [%4];\n"
               : "=r"(r[0]), "=r"(r[1]), "=r"(r[2]), "=r"(r[3]) : "r"(address) : "memory");
#elif defined(CUDA_EMU)
  cuda_emu::ldmatrix_x4(r, row, true);
#endif
}

// Writes 16 bytes to global memory, at a multiple of 16. Of the assignment of a uint4, nvcc may make four stores where a
// scalar path stands beside it.
DSV4_DEVICE void store_global16(void* global, uint4 v) {
#if defined(__CUDA_ARCH__)
  asm volatile("st.global.v4.b32 [%0], {%1,%2,%3,%4};\n"
               : : "l"(__cvta_generic_to_global(global)), "r"(v.x), "r"(v.y), "r"(v.z), "r"(v.w) : "memory");
#else
  *static_cast<uint4*>(global) = v;
#endif
}

// Starts a copy of 16 bytes from global to shared memory, past L1 and the registers; with `valid` false it writes 16
// zeros and reads nothing. Both addresses 16-byte aligned. Copies are done when cp_async_wait says so, and other
// threads see them after a barrier that follows it.
DSV4_DEVICE void cp_async16(void* shared, const void* global, bool valid = true) {
#if defined(__CUDA_ARCH__)
  const uint32_t address = static_cast<uint32_t>(__cvta_generic_to_shared(shared));
  const int bytes = valid ? 16 : 0;
  asm volatile("cp.async.cg.shared.global [%0], [%1], 16, %2;\n" : : "r"(address), "l"(global), "r"(bytes) : "memory");
#elif defined(CUDA_EMU)
  cuda_emu::cp_async(shared, global, 16, valid ? 16 : 0);
#endif
}
DSV4_DEVICE void cp_async_commit() {
#if defined(__CUDA_ARCH__)
  asm volatile("cp.async.commit_group;\n" : : : "memory");
#elif defined(CUDA_EMU)
  cuda_emu::cp_async_commit();
#endif
}
// Waits until at most N of this thread's committed groups are still under way.
template <int N>
DSV4_DEVICE void cp_async_wait() {
#if defined(__CUDA_ARCH__)
  asm volatile("cp.async.wait_group %0;\n" : : "n"(N) : "memory");
#elif defined(CUDA_EMU)
  cuda_emu::cp_async_wait(N);
#endif
}

// ---- clusters of blocks, of kernels started by launch_clusters. Below sm_90 there are none: such a kernel traps ----
#if defined(__CUDA_ARCH__) && __CUDA_ARCH__ < 900
#define DSV4_CLUSTERS 0
#else
#define DSV4_CLUSTERS 1
#endif

// This block's place in its cluster, and the cluster's blocks.
DSV4_DEVICE unsigned cluster_rank() {
#if defined(__CUDA_ARCH__) && DSV4_CLUSTERS
  unsigned rank;
  asm volatile("mov.u32 %0, %%cluster_ctarank;\n" : "=r"(rank));
  return rank;
#elif defined(CUDA_EMU)
  return cuda_emu::cluster_rank();
#else
  return 0;
#endif
}
DSV4_DEVICE unsigned cluster_size() {
#if defined(__CUDA_ARCH__) && DSV4_CLUSTERS
  unsigned size;
  asm volatile("mov.u32 %0, %%cluster_nctarank;\n" : "=r"(size));
  return size;
#elif defined(CUDA_EMU)
  return cuda_emu::cluster_size();
#else
  return 1;
#endif
}

// A barrier of all threads of the cluster's blocks; what they wrote before they arrived, also to shared memory, is seen
// by those that have waited. Each thread waits before it arrives again, and before it returns. Lanes may come apart.
DSV4_DEVICE void cluster_arrive() {
#if defined(__CUDA_ARCH__) && DSV4_CLUSTERS
  asm volatile("barrier.cluster.arrive.release;\n" : : : "memory");
#elif defined(CUDA_EMU)
  cuda_emu::cluster_arrive();
#endif
}
DSV4_DEVICE void cluster_wait() {
#if defined(__CUDA_ARCH__) && DSV4_CLUSTERS
  asm volatile("barrier.cluster.wait.acquire;\n" : : : "memory");
#elif defined(CUDA_EMU)
  cuda_emu::cluster_wait();
#endif
}
DSV4_DEVICE void cluster_sync() {
#if defined(CUDA_EMU)
  cuda_emu::cluster_sync();
#else
  cluster_arrive(), cluster_wait();
#endif
}

// What block `rank` has where `shared` points to in this block's dynamic shared memory. Between two cluster_sync:
// one before makes sure that the block runs, one behind that it does not return too early.
DSV4_DEVICE float cluster_load(const float* shared, unsigned rank) {
  float v = 0;
#if defined(__CUDA_ARCH__) && DSV4_CLUSTERS
  uint32_t address = static_cast<uint32_t>(__cvta_generic_to_shared(shared));
  asm volatile("mapa.shared::cluster.u32 %0, %1, %2;\n" : "=r"(address) : "r"(address), "r"(rank));
  asm volatile("ld.shared::cluster.f32 %0, [%1];\n" : "=f"(v) : "r"(address) : "memory");
#elif defined(CUDA_EMU)
  v = cuda_emu::cluster_load(shared, rank);
#endif
  return v;
}
DSV4_DEVICE float4 cluster_load(const float4* shared, unsigned rank) {
  float4 v = make_float4(0, 0, 0, 0);
#if defined(__CUDA_ARCH__) && DSV4_CLUSTERS
  uint32_t address = static_cast<uint32_t>(__cvta_generic_to_shared(shared));
  asm volatile("mapa.shared::cluster.u32 %0, %1, %2;\n" : "=r"(address) : "r"(address), "r"(rank));
  asm volatile("ld.shared::cluster.v4.f32 {%0,%1,%2,%3}, [%4];\n"
               : "=f"(v.x), "=f"(v.y), "=f"(v.z), "=f"(v.w) : "r"(address) : "memory");
#elif defined(CUDA_EMU)
  v = cuda_emu::cluster_load(shared, rank);
#endif
  return v;
}

// ---- bulk copies, told to mbarriers: eight bytes of dynamic shared memory each, at a multiple of 8 ----
// One thread makes it, for `count` arrivals a phase, and fences it; a barrier of the cluster must follow before copies
// are told to it.
DSV4_DEVICE void mbarrier_init(uint64_t* barrier, uint32_t count) {
#if defined(__CUDA_ARCH__) && DSV4_CLUSTERS
  const uint32_t address = static_cast<uint32_t>(__cvta_generic_to_shared(barrier));
  asm volatile("mbarrier.init.shared::cta.b64 [%0], %1;\n" : : "r"(address), "r"(count) : "memory");
#elif defined(CUDA_EMU)
  cuda_emu::mbarrier_init(barrier, count);
#endif
}
DSV4_DEVICE void mbarrier_fence() {
#if defined(__CUDA_ARCH__) && DSV4_CLUSTERS
  asm volatile("fence.mbarrier_init.release.cluster;\n" : : : "memory");
#elif defined(CUDA_EMU)
  cuda_emu::mbarrier_fence();
#endif
}
// One arrival; `bytes` of copies are to come in this phase (some may have come already).
DSV4_DEVICE void mbarrier_arrive(uint64_t* barrier, uint32_t bytes) {
#if defined(__CUDA_ARCH__) && DSV4_CLUSTERS
  const uint32_t address = static_cast<uint32_t>(__cvta_generic_to_shared(barrier));
  asm volatile("mbarrier.arrive.expect_tx.shared::cta.b64 _, [%0], %1;\n" : : "r"(address), "r"(bytes) : "memory");
#elif defined(CUDA_EMU)
  cuda_emu::mbarrier_arrive(barrier, bytes);
#endif
}
// Waits until the phase of that parity is complete: all arrivals and bytes. The first phase has parity 0. What the
// copies brought is seen behind.
DSV4_DEVICE void mbarrier_wait(uint64_t* barrier, uint32_t parity) {
#if defined(__CUDA_ARCH__) && DSV4_CLUSTERS
  const uint32_t address = static_cast<uint32_t>(__cvta_generic_to_shared(barrier));
  uint32_t done = 0;
  while (!done)
    asm volatile("{\n.reg .pred p;\nmbarrier.try_wait.parity.shared::cta.b64 p, [%1], %2;\nselp.u32 %0, 1, 0, p;\n}\n"
                 : "=r"(done) : "r"(address), "r"(parity) : "memory");
#elif defined(CUDA_EMU)
  cuda_emu::mbarrier_wait(barrier, parity);
#endif
}
// Orders what this thread wrote to its block's shared memory ahead of copies that other threads start behind a barrier.
DSV4_DEVICE void proxy_fence() {
#if defined(__CUDA_ARCH__) && DSV4_CLUSTERS
  asm volatile("fence.proxy.async.shared::cta;\n" : : : "memory");
#elif defined(CUDA_EMU)
  cuda_emu::proxy_fence();
#endif
}
// Starts a copy from global memory to where `shared` points to in each block of the cluster that `mask` has a bit for,
// told to the mbarrier of that block where `barrier` points to. Addresses and size are multiples of 16. Read once.
DSV4_DEVICE void copy_bulk(void* shared, const void* global, uint32_t bytes, uint64_t* barrier, uint16_t mask) {
#if defined(__CUDA_ARCH__) && DSV4_CLUSTERS
  const uint32_t to = static_cast<uint32_t>(__cvta_generic_to_shared(shared));
  const uint32_t told = static_cast<uint32_t>(__cvta_generic_to_shared(barrier));
  asm volatile("cp.async.bulk.shared::cluster.global.mbarrier::complete_tx::bytes.multicast::cluster [%0], [%1], %2, "
               "[%3], %4;\n"
               : : "r"(to), "l"(__cvta_generic_to_global(global)), "r"(bytes), "r"(told), "h"(mask) : "memory");
#elif defined(CUDA_EMU)
  cuda_emu::copy_bulk(shared, global, bytes, barrier, mask);
#endif
}

}  // namespace dsv4::cuda
