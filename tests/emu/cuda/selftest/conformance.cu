// SPDX-License-Identifier: Apache-2.0
// One kernel for each wrapper of kernels/cuda/ptx.cuh, on registers and memory that the caller lays out. It is built
// twice, here and by nvcc: tests/test_ptx_conformance.py knows from the PTX ISA what has to come out of both.
#include "cluster.cuh"
#include "selftest.h"

#define SELFTEST_API extern "C" __attribute__((visibility("default")))

namespace {
using namespace dsv4::cuda;
using selftest::Device;

__global__ void mma(const uint32_t* a, const uint32_t* b, float* d) {
  const int lane = static_cast<int>(threadIdx.x);
  uint32_t ra[4], rb[2];
  float rd[4];
  for (int i = 0; i < 4; ++i) ra[i] = a[lane * 4 + i], rd[i] = d[lane * 4 + i];
  for (int i = 0; i < 2; ++i) rb[i] = b[lane * 2 + i];
  mma_bf16(rd, ra, rb);
  for (int i = 0; i < 4; ++i) d[lane * 4 + i] = rd[i];
}

// rows: 32 of `stride` elements in shared memory, the first eight a matrix's; lane l names row order[l].
__global__ void load_matrices(const uint16_t* rows, int stride, const int* order, bool transposed, uint32_t* out) {
  DYN_SMEM(uint16_t, s);
  const int lane = static_cast<int>(threadIdx.x);
  for (int i = lane; i < 32 * stride; i += 32) s[i] = rows[i];
  __syncwarp();
  uint32_t r[4];
  if (transposed) ldmatrix_x4_trans(r, s + order[lane] * stride);
  else ldmatrix_x4(r, s + order[lane] * stride);
  for (int i = 0; i < 4; ++i) out[lane * 4 + i] = r[i];
}

// Two groups of 16 bytes a lane. out: what the first group brought when one may still be under way, then both.
__global__ void copies(const uint32_t* x, const int* valid, uint32_t* out) {
  DYN_SMEM(uint32_t, s);
  const int lane = static_cast<int>(threadIdx.x);
  for (int group = 0; group < 2; ++group) {
    cp_async16(s + (group * 32 + lane) * 4, x + (group * 32 + lane) * 4, valid[group * 32 + lane] != 0);
    cp_async_commit();
  }
  cp_async_wait<1>();
  __syncwarp();
  for (int i = 0; i < 4; ++i) out[lane * 4 + i] = s[(lane ^ 1) * 4 + i];
  cp_async_wait<0>();
  __syncwarp();
  for (int group = 0; group < 2; ++group)
    for (int i = 0; i < 4; ++i) out[(32 + group * 32 + lane) * 4 + i] = s[(group * 32 + (lane ^ 1)) * 4 + i];
}

__global__ void stores(const uint4* x, uint4* y) { store_global16(y + (threadIdx.x ^ 3), x[threadIdx.x]); }

template <class T>
Device<T> device(const T* values, size_t n) { return Device<T>(std::vector<T>(values, values + n)); }

template <class T>
int give_back(cudaError_t error, const Device<T>& from, T* to) {
  if (error == cudaSuccess) error = cudaDeviceSynchronize();
  return error != cudaSuccess ? error : cudaMemcpy(to, from.data, from.count * sizeof(T), cudaMemcpyDeviceToHost);
}
}  // namespace

SELFTEST_API int selftest_mma(const uint32_t* a, const uint32_t* b, float* d) {
  const auto da = device(a, 128), db = device(b, 64);
  const auto dd = device(d, 128);
  return give_back(launch(&mma, 1, 32, 0, nullptr, da.data, db.data, dd.data), dd, d);
}
SELFTEST_API int selftest_ldmatrix(const uint16_t* rows, int stride, const int* order, int transposed,
                                   uint32_t* out) {
  const auto dr = device(rows, static_cast<size_t>(32 * stride));
  const auto dorder = device(order, 32);
  const Device<uint32_t> dout(128);
  return give_back(launch(&load_matrices, 1, 32, static_cast<size_t>(64 * stride), nullptr, dr.data, stride,
                          dorder.data, transposed != 0, dout.data),
                   dout, out);
}
SELFTEST_API int selftest_stores(const uint32_t* x, uint32_t* y) {
  const auto dx = device(x, 128);
  const Device<uint32_t> dy(128);
  return give_back(launch(&stores, 1, 32, 0, nullptr, reinterpret_cast<const uint4*>(dx.data),
                          reinterpret_cast<uint4*>(dy.data)), dy, y);
}
SELFTEST_API int selftest_cp_async(const uint32_t* x, const int* valid, uint32_t* out) {
  const auto dx = device(x, 256);
  const auto dvalid = device(valid, 64);
  const Device<uint32_t> dout(384);
  return give_back(launch(&copies, 1, 32, 1024, nullptr, dx.data, dvalid.data, dout.data), dout, out);
}

// Rank, size, and both loads of what the block `step` further in the cluster holds.
namespace {
__global__ void clusters(int step, unsigned* who, float* one, float4* four) {
  DYN_SMEM(float4, s);
  const unsigned rank = cluster_rank(), size = cluster_size(), at = blockIdx.x * blockDim.x + threadIdx.x;
  const float v = static_cast<float>(at);
  s[threadIdx.x] = make_float4(v, v + 0.25f, v + 0.5f, v + 0.75f);
  cluster_sync();
  who[2 * at] = rank, who[2 * at + 1] = size;
  const unsigned other = (rank + static_cast<unsigned>(step)) % size;
  one[at] = cluster_load(reinterpret_cast<const float*>(s + threadIdx.x) + 3, other);
  four[at] = cluster_load(s + threadIdx.x, other);
  cluster_sync();
}
}  // namespace
// `blocks` of 32 threads in clusters of `cluster`; -1: the device has none of that size.
SELFTEST_API int selftest_clusters(int cluster, int blocks, int step, unsigned* who, float* one, float* four) {
  const size_t n = static_cast<size_t>(blocks) * 32;
  if (!active_clusters(reinterpret_cast<const void*>(&clusters), static_cast<unsigned>(cluster), 32, 512)) return -1;
  const Device<unsigned> dwho(2 * n);
  const Device<float> done(n), dfour(4 * n);
  cudaError_t error =
      launch_clusters(&clusters, static_cast<unsigned>(cluster), static_cast<unsigned>(blocks), 32, 512, nullptr, step,
                      dwho.data, done.data, reinterpret_cast<float4*>(dfour.data));
  if (error == cudaSuccess) error = static_cast<cudaError_t>(give_back(error, dwho, who));
  if (error == cudaSuccess) error = static_cast<cudaError_t>(give_back(error, done, one));
  return give_back(error, dfour, four);
}

// Rounds of copies of `bytes` from row `round * size + rank` of x to place `rank` of all blocks of the cluster, so that each
// has all rows of the round; what lies in a place that no copy meets is zero. In round 1 block 0 copies to itself alone.
namespace {
constexpr int kBulkRounds = 5, kBulkWords = 64;  // of a row
__global__ void bulk_copies(unsigned bytes, const uint32_t* x, uint32_t* y) {
  DYN_SMEM(uint32_t, s);
  const unsigned rank = cluster_rank(), size = cluster_size(), words = size * kBulkWords;
  uint64_t* barrier = reinterpret_cast<uint64_t*>(s + words);
  if (threadIdx.x == 0) mbarrier_init(barrier, 2), mbarrier_fence();
  cluster_arrive();
  cluster_wait();
  const unsigned first = blockIdx.x / size * size * kBulkRounds;
  for (unsigned round = 0; round < kBulkRounds; ++round) {
    for (unsigned i = threadIdx.x; i < words; i += blockDim.x) s[i] = 0;
    proxy_fence();
    cluster_arrive();
    cluster_wait();
    const bool alone = round == 1;
    if (threadIdx.x == 7) {
      if (!alone || rank == 0) {
        const uint16_t mask = static_cast<uint16_t>(alone ? 1u : (1u << size) - 1);
        copy_bulk(s + rank * kBulkWords, x + (first + round * size + rank) * kBulkWords, bytes, barrier, mask);
      }
      mbarrier_arrive(barrier, alone ? 0 : bytes * size - 16);
    }
    if (threadIdx.x == 31) mbarrier_arrive(barrier, alone ? (rank == 0 ? bytes : 0) : 16);
    mbarrier_wait(barrier, round & 1);
    for (unsigned i = threadIdx.x; i < words; i += blockDim.x)
      y[(blockIdx.x * kBulkRounds + round) * words + i] = s[i];
    cluster_sync();
  }
}
}  // namespace
SELFTEST_API int selftest_bulk_copies(int cluster, int blocks, unsigned bytes, const uint32_t* x, uint32_t* y) {
  const size_t smem = static_cast<size_t>(cluster) * kBulkWords * 4 + 8, rows = static_cast<size_t>(blocks) * kBulkRounds;
  if (!active_clusters(reinterpret_cast<const void*>(&bulk_copies), static_cast<unsigned>(cluster), 32, smem)) return -1;
  const auto dx = device(x, rows * kBulkWords);
  const Device<uint32_t> dy(rows * static_cast<size_t>(cluster) * kBulkWords);
  return give_back(launch_clusters(&bulk_copies, static_cast<unsigned>(cluster), static_cast<unsigned>(blocks), 32, smem,
                                   nullptr, bytes, dx.data, dy.data), dy, y);
}
