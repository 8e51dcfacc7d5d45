// SPDX-License-Identifier: Apache-2.0
// An op on raw CUDA pointers and a stream of this program's own, without any tensor library. The input is filled on that
// stream behind a long copy: the op must wait for it. Exit code 77: there is no GPU here.
#include <cuda_runtime.h>
#include <dsv4spec/dsv4spec.h>

#include <cmath>
#include <cstdio>
#include <cstdlib>
#include <vector>

namespace {

void check(cudaError_t error, const char* what) {
  if (error == cudaSuccess) return;
  std::printf("%s: %s\n", what, cudaGetErrorString(error));
  std::exit(1);
}

constexpr int64_t kRows = 3, kStreams = 4, kWidth = 256;

DLTensor floats(float* data, int32_t ndim, int64_t* shape) {
  DLTensor t{};
  t.data = data;
  t.device = {kDLCUDA, 0};
  t.ndim = ndim;
  t.dtype = {kDLFloat, 32, 1};
  t.shape = shape;
  return t;
}

float* on_device(size_t n) {
  void* memory = nullptr;
  check(cudaMalloc(&memory, n * sizeof(float)), "cudaMalloc");
  return static_cast<float*>(memory);
}

}  // namespace

int main() {
  int devices = 0;
  if (const cudaError_t error = cudaGetDeviceCount(&devices); error != cudaSuccess || devices == 0) {
    std::printf("no GPU here: %s\n", error == cudaSuccess ? "0 devices" : cudaGetErrorString(error));
    return 77;
  }
  cudaStream_t stream;
  check(cudaStreamCreateWithFlags(&stream, cudaStreamNonBlocking), "cudaStreamCreate");

  // mhc_post: out[t,i] = post[t,i] * y[t] + sum_j comb[t,j,i] * residual[t,j]
  const size_t small = kRows * kWidth, large = small * kStreams, delay = size_t{1} << 26;
  std::vector<float> y(small), residual(large), post(kRows * kStreams, 0.5f), comb(kRows * kStreams * kStreams, 0.25f), out(large);
  for (size_t i = 0; i < small; ++i) y[i] = static_cast<float>(i % 17);
  for (size_t i = 0; i < large; ++i) residual[i] = static_cast<float>(i % 5);
  float *dy = on_device(small), *dresidual = on_device(large), *dpost = on_device(post.size()), *dcomb = on_device(comb.size());
  float *dout = on_device(large), *from = on_device(delay), *to = on_device(delay);
  const auto send = [stream](float* device, const std::vector<float>& host) {
    check(cudaMemcpyAsync(device, host.data(), host.size() * sizeof(float), cudaMemcpyHostToDevice, stream), "cudaMemcpyAsync");
  };

  int64_t shape_y[] = {kRows, kWidth}, shape_r[] = {kRows, kStreams, kWidth}, shape_p[] = {kRows, kStreams};
  int64_t shape_c[] = {kRows, kStreams, kStreams};
  const DLTensor ty = floats(dy, 2, shape_y), tr = floats(dresidual, 3, shape_r), tp = floats(dpost, 2, shape_p);
  const DLTensor tc = floats(dcomb, 3, shape_c), to_ = floats(dout, 3, shape_r);
  dsv4_mhc_post_args args{};
  args.struct_size = sizeof args;
  args.y = &ty;
  args.residual = &tr;
  args.post = &tp;
  args.comb = &tc;
  args.out = &to_;

  for (int turn = 0; turn < 20; ++turn) {
    check(cudaMemsetAsync(dout, 0xff, large * sizeof(float), stream), "cudaMemsetAsync");
    check(cudaMemcpyAsync(to, from, delay * sizeof(float), cudaMemcpyDeviceToDevice, stream), "the delay");
    y[0] = static_cast<float>(turn);
    send(dy, y), send(dresidual, residual), send(dpost, post), send(dcomb, comb);
    if (dsv4_mhc_post(&args, stream) != DSV4_OK) {  // queued: it has not run yet
      std::printf("mhc_post: %s\n", dsv4_last_error());
      return 1;
    }
    check(cudaMemcpyAsync(out.data(), dout, large * sizeof(float), cudaMemcpyDeviceToHost, stream), "cudaMemcpyAsync");
    check(cudaStreamSynchronize(stream), "cudaStreamSynchronize");
    for (int64_t t = 0; t < kRows; ++t)
      for (int64_t i = 0; i < kStreams; ++i)
        for (int64_t d = 0; d < kWidth; ++d) {
          float expected = 0.5f * y[t * kWidth + d];
          for (int64_t j = 0; j < kStreams; ++j) expected += 0.25f * residual[(t * kStreams + j) * kWidth + d];
          const float got = out[(t * kStreams + i) * kWidth + d];
          if (!(std::fabs(got - expected) < 1e-5f)) {
            std::printf("turn %d, row %d, stream %d, channel %d: %f, expected %f\n", turn, static_cast<int>(t),
                        static_cast<int>(i), static_cast<int>(d), got, expected);
            return 1;
          }
        }
  }
  std::printf("mhc_post on a stream of its own: 20 of 20 calls as expected\n");
  return 0;
}
