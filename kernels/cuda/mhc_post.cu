// SPDX-License-Identifier: Apache-2.0
// mhc_post: out[t,i,:] = post[t,i] * y[t,:] + sum_j comb[t,j,i] * residual[t,j,:]
// Every thread owns eight channels of one token and reads all streams there before it writes, so `out` may be
// `residual`. Contract: include/dsv4spec/mhc.h.
//
// One launch. Bytes: (2*hc + 1) * d elements a token; flops: 2*hc*(hc + 1) a channel, so memory binds. Flash
// in bf16 moves 73.8 KB a token; at 4.8 TB/s the floor is 0.02 us for 1 token, 1.0 us for 64, 63 us for 4096.
#include "mhc_mix.cuh"

namespace dsv4::cuda {
namespace {

constexpr int kThreads = 128;
constexpr int kChannels = 8;  // a thread's

struct MixView {
  const void *y, *residual;
  const float *post, *comb;
  void* out;
  int64_t y_t, residual_t, residual_i, post_t, comb_t, comb_j, out_t, out_i;  // strides in elements
  int64_t d;
  bool vector;
};

template <class T, int HC>
__global__ void __launch_bounds__(kThreads) mhc_post_kernel(MixView v) {
  const int64_t t = blockIdx.x;
  const int64_t channel = (static_cast<int64_t>(blockIdx.y) * kThreads + threadIdx.x) * kChannels;
  if (channel >= v.d) return;
  const float* comb = v.comb + t * v.comb_t;
  float out[HC][kChannels], x[kChannels];
  const bool whole = channel + kChannels <= v.d;
  const bool vector = v.vector && whole;
  const int count = whole ? kChannels : static_cast<int>(v.d - channel);

  auto load = [&](const T* row) {
    if (vector) return load8(x, row + channel);
#pragma unroll
    for (int c = 0; c < kChannels; ++c) x[c] = c < count ? to_float(row[channel + c]) : 0.f;
  };
  load(static_cast<const T*>(v.y) + t * v.y_t);
  mhc::mix_open<HC>(out, v.post + t * v.post_t, x);
#pragma unroll
  for (int j = 0; j < HC; ++j) {
    load(static_cast<const T*>(v.residual) + t * v.residual_t + j * v.residual_i);
    mhc::mix_add<HC>(out, comb + j * v.comb_j, x);
  }
#pragma unroll
  for (int i = 0; i < HC; ++i) {
    T* row = static_cast<T*>(v.out) + t * v.out_t + i * v.out_i + channel;
    if (vector) {
      store8_global(row, out[i]);
    } else {
#pragma unroll
      for (int c = 0; c < kChannels; ++c)
        if (c < count) row[c] = from_float<T>(out[i][c]);
    }
  }
}

template <class T>
cudaError_t launch_of(const MhcPostParams& p, cudaStream_t stream) {
  const bool vector = aligned16(p.y, sizeof(T)) && aligned16(p.residual, sizeof(T)) && aligned16(p.out, sizeof(T));
  const MixView v{p.y.data, p.residual.data, p.post.at<float>(), p.comb.at<float>(), p.out.data,
                  p.y.stride[0], p.residual.stride[0], p.residual.stride[1], p.post.stride[0], p.comb.stride[0],
                  p.comb.stride[1], p.out.stride[0], p.out.stride[1], p.d, vector};
  const dim3 grid(static_cast<unsigned>(p.T), static_cast<unsigned>(ceil_div<int64_t>(p.d, kThreads * kChannels)));
  auto* kernel = p.hc == 4 ? &mhc_post_kernel<T, 4> : p.hc == 2 ? &mhc_post_kernel<T, 2> : &mhc_post_kernel<T, 1>;
  return launch(kernel, grid, kThreads, 0, stream, v);
}

int32_t launch_op(const MhcPostParams& p, const Launch& l) {
  if (p.T > INT32_MAX) return refuse(l, "y: expected at most %d rows, got %lld", INT32_MAX, (long long)p.T);
  return status_of(l, p.residual.dtype == kBF16 ? launch_of<bf16>(p, stream_of(l)) : launch_of<float>(p, stream_of(l)));
}

}  // namespace
DSV4_CUDA_KERNEL(mhc_post, MhcPostParams, launch_op)
}  // namespace dsv4::cuda
