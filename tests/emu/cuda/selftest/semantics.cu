// SPDX-License-Identifier: Apache-2.0
// Small kernels for what CUDA promises: collectives, votes, atomics, indices, faults. The tests know the answers.
#include "selftest.h"

#define SELFTEST_API extern "C" __attribute__((visibility("default")))

namespace {
using namespace dsv4::cuda;

__global__ void shuffle(int kind, int argument, int width, unsigned mask, const int* in, int* out) {
  const unsigned lane = threadIdx.x;
  if (!(mask >> lane & 1)) return;
  const int v = in[lane];
  if (kind == 0) out[lane] = __shfl_sync(mask, v, argument, width);
  if (kind == 1) out[lane] = __shfl_up_sync(mask, v, static_cast<unsigned>(argument), width);
  if (kind == 2) out[lane] = __shfl_down_sync(mask, v, static_cast<unsigned>(argument), width);
  if (kind == 3) out[lane] = __shfl_xor_sync(mask, v, argument, width);
}

// Of the lanes in `mask`: ballot, any, all, match, sum, least, greatest, and, or, xor. The others do the same in a
// meeting of their own, so that two meetings of one warp are under way.
__global__ void votes(unsigned mask, const int* in, int* out) {
  const unsigned lane = threadIdx.x, mine = mask >> lane & 1 ? mask : ~mask;
  const int v = in[lane];
  const unsigned u = static_cast<unsigned>(v);
  const int results[10] = {static_cast<int>(__ballot_sync(mine, v > 0)),
                           __any_sync(mine, v > 0),
                           __all_sync(mine, v > 0),
                           static_cast<int>(__match_any_sync(mine, v)),
                           __reduce_add_sync(mine, v),
                           __reduce_min_sync(mine, v),
                           __reduce_max_sync(mine, v),
                           static_cast<int>(__reduce_and_sync(mine, u)),
                           static_cast<int>(__reduce_or_sync(mine, u)),
                           static_cast<int>(__reduce_xor_sync(mine, u))};
  for (int i = 0; i < 10; ++i) out[lane * 10 + i] = results[i];
}

__global__ void barrier_votes(const int* in, int* out) {
  const int count = __syncthreads_count(in[threadIdx.x]), every = __syncthreads_and(in[threadIdx.x]),
            some = __syncthreads_or(in[threadIdx.x]);
  out[threadIdx.x * 3] = count, out[threadIdx.x * 3 + 1] = every, out[threadIdx.x * 3 + 2] = some;
}

__global__ void atomics(int* ints, unsigned* rounds, float* sum, unsigned long long* most) {
  const int i = static_cast<int>(blockIdx.x * blockDim.x + threadIdx.x);
  atomicAdd(&ints[0], i);
  atomicSub(&ints[1], 1);
  atomicMin(&ints[2], -i);
  atomicMax(&ints[3], i);
  atomicOr(&ints[4], 1 << i % 31);
  atomicXor(&ints[5], 3);
  atomicAnd(&ints[6], ~(1 << i % 31));
  if (i == 5) atomicExch(&ints[7], 77);
  atomicCAS(&ints[8], 0, 1);  // the first alone finds a zero
  atomicInc(&rounds[0], 6);
  atomicDec(&rounds[1], 6);
  atomicAdd(sum, 0.5f);
  atomicMax(most, static_cast<unsigned long long>(i) << 33);
}

__global__ void indices(int* seen) {
  const dim3 g = gridDim, b = blockDim;
  const uint3 block = blockIdx, thread = threadIdx;
  const unsigned linear =
      ((block.z * g.y + block.y) * g.x + block.x) * b.x * b.y * b.z + (thread.z * b.y + thread.y) * b.x + thread.x;
  atomicAdd(&seen[linear], 1);
}

// The last block of all adds up what every block has left, in one launch.
__global__ void last_block_sums(float* parts, unsigned* ticket, float* total) {
  __shared__ int flag;
  if (threadIdx.x == 0) parts[blockIdx.x] = static_cast<float>(blockIdx.x + 1);
  if (!is_last_block(ticket, gridDim.x, &flag) || threadIdx.x) return;
  float sum = 0;
  for (unsigned i = 0; i < gridDim.x; ++i) sum += parts[i];
  *total = sum;
}

// Two warps a barrier; the pairs pass it without each other.
__global__ void pairs_of_warps(int* out) {
  __shared__ int s[128];
  const int t = static_cast<int>(threadIdx.x), pair = t / 64;
  for (int round = 0; round <= pair; ++round) {
    s[t] = t + round;
    cuda_emu::barrier(1 + pair, 64, cuda_emu::Vote::kNone, false, cuda_emu::Site::here());
    out[t] = s[t ^ 32];
    cuda_emu::barrier(1 + pair, 64, cuda_emu::Vote::kNone, false, cuda_emu::Site::here());
  }
}

__global__ void add(float* p, float v, int n) {
  for (int i = static_cast<int>(threadIdx.x); i < n; i += static_cast<int>(blockDim.x)) p[i] += v;
}
// Thread t writes byte t * step; with `vector`, thread 0 writes four at once.
__global__ void bytes(uint8_t* p, int step, int vector) {
  if (vector && threadIdx.x == 0) *reinterpret_cast<uint32_t*>(p) = 0;
  else p[static_cast<int>(threadIdx.x) * step] = 1;
}
// Lane l reads from element l * stride.
__global__ void read_pattern(const float* x, float* y, int stride, int vector) {
  const float* p = x + static_cast<int>(threadIdx.x) * stride;
  if (vector) {
    const float4 v = *reinterpret_cast<const float4*>(p);
    y[threadIdx.x] = v.x + v.y + v.z + v.w;
  } else {
    y[threadIdx.x] = *p;
  }
}
// The same in shared memory. It is only read: what lies there is not looked at.
__global__ void bank_pattern(float* y, int stride, int size) {
  DYN_SMEM(float, s);
  const float* p = s + static_cast<int>(threadIdx.x) * stride;
  float v = 0;
  if (size == 4) v = *p;
  if (size == 8) v = reinterpret_cast<const float2*>(p)->x + reinterpret_cast<const float2*>(p)->y;
  if (size == 16) {
    const float4 a = *reinterpret_cast<const float4*>(p);
    v = a.x + a.y + a.z + a.w;
  }
  y[threadIdx.x] = v;
}
__global__ void store(char* p, char v) { *p = v; }
__global__ void deep(float* out, int levels) {
  volatile float frame[2048];
  frame[levels % 2048] = static_cast<float>(levels);
  if (levels > 0) deep(out, levels - 1);
  *out = frame[levels % 2048];
}
__global__ void no_way_out(int* out) {
  if (threadIdx.x < 16) __syncthreads();
  else __syncwarp();
  *out = 1;
}
__global__ void misses_copy(const float* x, float* y, int offset) {
  DYN_SMEM(float, s);
  cp_async16(s + 4 * threadIdx.x, x + 4 * threadIdx.x + offset);
  cp_async_commit();
  cp_async_wait<0>();
  __syncthreads();
  y[threadIdx.x] = s[threadIdx.x];
}
__global__ void odd_mask(unsigned mask, int* out) { out[threadIdx.x] = __shfl_xor_sync(mask, 1, 1); }
}  // namespace

// Pointers are those of the emulator's device memory, or any memory of this process.
SELFTEST_API int selftest_shuffle(int kind, int argument, int width, unsigned mask, const int* in, int* out) {
  return launch(&shuffle, 1, 32, 0, nullptr, kind, argument, width, mask, in, out);
}
SELFTEST_API int selftest_votes(unsigned mask, const int* in, int* out) {
  return launch(&votes, 1, 32, 0, nullptr, mask, in, out);
}
SELFTEST_API int selftest_barrier_votes(int threads, const int* in, int* out) {
  return launch(&barrier_votes, 1, threads, 0, nullptr, in, out);
}
SELFTEST_API int selftest_atomics(int blocks, int* ints, unsigned* rounds, float* sum, unsigned long long* most) {
  return launch(&atomics, blocks, 64, 0, nullptr, ints, rounds, sum, most);
}
SELFTEST_API int selftest_indices(const unsigned* shape, int* seen) {
  return launch(&indices, dim3(shape[0], shape[1], shape[2]), dim3(shape[3], shape[4], shape[5]), 0, nullptr, seen);
}
SELFTEST_API int selftest_last_block(int blocks, float* parts, unsigned* ticket, float* total) {
  return launch(&last_block_sums, blocks, 64, 0, nullptr, parts, ticket, total);
}
SELFTEST_API int selftest_pairs_of_warps(int* out) { return launch(&pairs_of_warps, 1, 128, 0, nullptr, out); }
SELFTEST_API int selftest_add(float* p, float v, int n, void* stream) {
  return launch(&add, 1, 64, 0, static_cast<cudaStream_t>(stream), p, v, n);
}
SELFTEST_API int selftest_store(void* p, long offset) {
  return launch(&store, 1, 1, 0, nullptr, static_cast<char*>(p) + offset, '\1');
}
SELFTEST_API int selftest_deep(float* out, int levels) { return launch(&deep, 1, 32, 0, nullptr, out, levels); }
SELFTEST_API int selftest_no_way_out(int* out) { return launch(&no_way_out, 1, 32, 0, nullptr, out); }
SELFTEST_API int selftest_copy(const float* x, float* y, int offset) {
  return launch(&misses_copy, 1, 32, 512, nullptr, x, y, offset);
}
SELFTEST_API int selftest_odd_mask(int threads, unsigned mask, int* out) {
  return launch(&odd_mask, 1, threads, 0, nullptr, mask, out);
}
SELFTEST_API int selftest_shared(float* p, size_t bytes) { return launch(&add, 1, 32, bytes, nullptr, p, 1.f, 1); }

SELFTEST_API void selftest_bits(unsigned a, unsigned b, int shift, unsigned* out) {
  out[0] = __byte_perm(a, b, 0x3715), out[1] = __byte_perm(a, b, 0xb6e2);
  out[2] = __funnelshift_l(a, b, static_cast<unsigned>(shift)),
  out[3] = __funnelshift_r(a, b, static_cast<unsigned>(shift));
  out[4] = __brev(a), out[5] = __umulhi(a, b), out[6] = static_cast<unsigned>(__popc(a)),
  out[7] = static_cast<unsigned>(__clz(static_cast<int>(a)));
  out[8] = static_cast<unsigned>(__ffs(static_cast<int>(a))),
  out[9] = static_cast<unsigned>(max(-1, 1u) == 0xffffffffu);
  out[10] = __float_as_uint(max(__int_as_float(0x7fc00000), 2.f)),
  out[11] = __float_as_uint(min(3.f, __int_as_float(0x7fc00000)));
}
SELFTEST_API int selftest_bytes(void* p, int step, int vector) {
  return launch(&bytes, 1, 8, 0, nullptr, static_cast<uint8_t*>(p), step, vector);
}
SELFTEST_API int selftest_read(const void* x, void* y, int stride, int vector) {
  return launch(&read_pattern, 1, 32, 0, nullptr, static_cast<const float*>(x), static_cast<float*>(y), stride, vector);
}
SELFTEST_API int selftest_banks(float* y, int stride, int size) {
  return launch(&bank_pattern, 1, 32, 8192, nullptr, y, stride, size);
}
