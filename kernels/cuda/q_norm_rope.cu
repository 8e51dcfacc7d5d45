// SPDX-License-Identifier: Apache-2.0
// q_norm_rope: out[t,h,:] = rope(q[t,h,:] / sqrt(mean(q[t,h,:]^2) + eps), positions[t])
// A warp owns two heads of a token: each row is read once into registers and written once, and the token's angles are
// read once for both. A block owns eight heads. Bound by memory: 2 * D elements and about 4 * D flops a row.
// Flash in bf16, 128 KiB a token: T=64 moves 8 MiB (1.7 us at 4.8 TB/s), T=4096 512 MiB (112 us); fewer tokens cost a
// launch. One launch, no shared memory. Contract: include/dsv4spec/attention.h.
#include "rope.cuh"

namespace dsv4::cuda {
namespace {

constexpr int kWarps = 4;
constexpr int kHeads = 2;  // of a warp

struct QView {
  const void* q;
  void* out;
  const float* cos_sin;
  const int64_t* positions;
  int64_t q_t, q_h, out_t, out_h, angle_row;  // strides in elements
  int64_t max_pos;
  int H, D, R, chunks;  // chunks of kWarps * kHeads heads of a token
  float eps;
  bool zero_padding, vector_in, vector_out, vector_angles;
};

template <class T>
__global__ void __launch_bounds__(kWarps* kWarp, 6) q_norm_rope_kernel(QView v) {
  const unsigned t = blockIdx.x / v.chunks;
  const int h = (blockIdx.x % v.chunks * kWarps + threadIdx.x / kWarp) * kHeads;
  if (h >= v.H) return;
  const int64_t position = v.positions[t];
  const bool padding = position < 0 || position >= v.max_pos;
  if (padding && !v.zero_padding) return;
  const WarpPlace<T> place(v.D, v.R);
  const T* q = static_cast<const T*>(v.q) + t * v.q_t + h * v.q_h;
  T* out = static_cast<T*>(v.out) + t * v.out_t + h * v.out_h;
  WarpRow<T> rows[kHeads];
  WarpAngles<T> angles;
  if (!padding) angles.load(place, v.cos_sin + position * v.angle_row, v.vector_angles);
#pragma unroll
  for (int i = 0; i < kHeads; ++i) {
    if (!padding && h + i < v.H) rows[i].load(place, q + i * v.q_h, v.vector_in);
    else rows[i].zero();
  }
#pragma unroll
  for (int i = 0; i < kHeads; ++i) {
    if (h + i >= v.H) break;
    if (!padding) {
      const float factor = rows[i].rms_factor(place, v.eps);
#pragma unroll
      for (auto& part : rows[i].x)
#pragma unroll
        for (float& x : part) x *= factor;
      rows[i].turn(place, angles);
    }
    rows[i].store(place, out + i * v.out_h, v.vector_out);
  }
}

template <class T>
cudaError_t launch_of(const QNormRopeParams& p, cudaStream_t stream) {
  const int H = static_cast<int>(p.H), chunks = ceil_div(H, kWarps * kHeads);
  const QView v{p.q.data, p.out.data, p.cos_sin.at<float>(), p.positions.at<int64_t>(),
                p.q.stride[0], p.q.stride[1], p.out.stride[0], p.out.stride[1], p.cos_sin.stride[0],
                p.max_pos, H, static_cast<int>(p.D), static_cast<int>(p.R), chunks, static_cast<float>(p.eps),
                p.zero_padding, aligned16(p.q, sizeof(T)), aligned16(p.out, sizeof(T)),
                vector_angles(p.cos_sin, p.R)};
  const dim3 grid(static_cast<unsigned>(p.T * chunks));
  return launch(&q_norm_rope_kernel<T>, grid, kWarps * kWarp, 0, stream, v);
}

int32_t launch_op(const QNormRopeParams& p, const Launch& l) {
  return status_of(l, p.q.dtype == kBF16 ? launch_of<bf16>(p, stream_of(l)) : launch_of<float>(p, stream_of(l)));
}

}  // namespace
DSV4_CUDA_KERNEL(q_norm_rope, QNormRopeParams, launch_op)
}  // namespace dsv4::cuda
