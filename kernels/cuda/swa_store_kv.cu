// SPDX-License-Identifier: Apache-2.0
// swa_store_kv: kv_pages[slot] = rope(kv[t,:] / sqrt(mean(kv[t,:]^2) + eps) * weight, positions[t])
// A warp owns one token: read once into registers, written once; a block owns four, which share the weight in shared
// memory (there it is widened, so that the global read of it stays coalesced whatever the row's dtype).
// Bound by memory: 2 * D elements and about 5 * D flops a token. Flash in bf16, 2 KiB a token: 64 tokens move 128 KiB,
// 4096 tokens 8 MiB (1.7 us at 4.8 TB/s); fewer cost a launch. One launch, 2.3 KiB of shared memory.
// Contract: include/dsv4spec/attention.h.
#include "rope.cuh"

namespace dsv4::cuda {
namespace {

constexpr int kRows = 4;  // of a block
constexpr int kThreads = kRows * kWarp;

struct StoreView {
  const void *kv, *weight;
  void* pages;
  const float* cos_sin;
  const int64_t *positions, *slots;
  int64_t kv_t, page_stride, slot_stride, angle_row;  // strides in elements
  int64_t T, max_pos, slot_count, page;
  int D, R;
  float eps;
  bool weight_f32, vector_in, vector_out, vector_angles;
};

// Where the weight of row element d lies: a lane's elements four by four, so that lanes read neighbouring 16 bytes.
template <class T>
DSV4_DEVICE int weight_at(int d) {
  return sizeof(T) == 4 ? d : d / 256 * 288 + d % 8 / 4 * 144 + d % 256 / 8 * 4 + d % 4;
}

template <class T>
__global__ void __launch_bounds__(kThreads) swa_store_kv_kernel(StoreView v) {
  __shared__ __align__(16) float weight[kMaxHeadSize / 256 * 288];
  const int64_t t = static_cast<int64_t>(blockIdx.x) * kRows + threadIdx.x / kWarp;
  int64_t slot = -1, position = -1;
  if (t < v.T) slot = v.slots[t];
  const bool stored = slot >= 0 && slot < v.slot_count;
  if (stored) position = v.positions[t];
  const bool real = stored && position >= 0 && position < v.max_pos;
  const WarpPlace<T> place(v.D, v.R);
  WarpRow<T> row;
  WarpAngles<T> angles;
  if (real) {
    row.load(place, static_cast<const T*>(v.kv) + t * v.kv_t, v.vector_in);
    angles.load(place, v.cos_sin + position * v.angle_row, v.vector_angles);
  }
  for (int d = threadIdx.x; d < v.D; d += kThreads)
    weight[weight_at<T>(d)] = v.weight_f32 ? static_cast<const float*>(v.weight)[d] : to_float(static_cast<const bf16*>(v.weight)[d]);
  __syncthreads();
  if (!real) return;

  const float factor = row.rms_factor(place, v.eps);
#pragma unroll
  for (int p = 0; p < WarpPlace<T>::kParts; ++p) {
    if (place.at(p) >= v.D) continue;
#pragma unroll
    for (int i = 0; i < WarpPlace<T>::kVector; i += 4) {
      const float4 w = *reinterpret_cast<const float4*>(weight + weight_at<T>(place.at(p) + i));
      float* x = row.x[p] + i;
      x[0] = x[0] * factor * w.x, x[1] = x[1] * factor * w.y, x[2] = x[2] * factor * w.z, x[3] = x[3] * factor * w.w;
    }
  }
  row.turn(place, angles);
  T* out = static_cast<T*>(v.pages) + slot / v.page * v.page_stride + slot % v.page * v.slot_stride;
  row.store(place, out, v.vector_out);
}

template <class T>
cudaError_t launch_of(const SwaStoreKvParams& p, cudaStream_t stream) {
  const StoreView v{p.kv.data, p.kv_norm_weight.data, p.kv_pages.data, p.cos_sin.at<float>(),
                    p.positions.at<int64_t>(), p.slots.at<int64_t>(),
                    p.kv.stride[0], p.kv_pages.stride[0], p.kv_pages.stride[1], p.cos_sin.stride[0],
                    p.T, p.max_pos, p.P * p.page, p.page, static_cast<int>(p.D), static_cast<int>(p.R),
                    static_cast<float>(p.eps), p.kv_norm_weight.dtype == kF32, aligned16(p.kv, sizeof(T)),
                    aligned16(p.kv_pages, sizeof(T)), vector_angles(p.cos_sin, p.R)};
  const dim3 grid(static_cast<unsigned>(ceil_div<int64_t>(p.T, kRows)));
  return launch(&swa_store_kv_kernel<T>, grid, kThreads, 0, stream, v);
}

int32_t launch_op(const SwaStoreKvParams& p, const Launch& l) {
  return status_of(l, p.kv.dtype == kBF16 ? launch_of<bf16>(p, stream_of(l)) : launch_of<float>(p, stream_of(l)));
}

}  // namespace
DSV4_CUDA_KERNEL(swa_store_kv, SwaStoreKvParams, launch_op)
}  // namespace dsv4::cuda
