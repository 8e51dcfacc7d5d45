// SPDX-License-Identifier: Apache-2.0
// How the parts of k of nextn_fuse_hidden's blocks become one output: through memory, or through the shared memory of a
// cluster. Either adds them in their order.
#pragma once
#include "fuse_view.cuh"

namespace dsv4::cuda {

constexpr int kFuseThreads = 256;
constexpr int kFuseChannels = 128;           // of a block: the rows of a scale block of e4m3
constexpr int kFours = kFuseChannels / 4;    // of channels, of a row

// Four channels of stream row `row`.
DSV4_DEVICE void write_four(const FuseView& v, float4 sum, int64_t row, int channel) {
  bf16* out = static_cast<bf16*>(v.out) + (row >> v.hc_log2) * v.out_t +
              (row & ((1 << v.hc_log2) - 1)) * v.out_i + channel;
  if (v.out_vector) {
    *reinterpret_cast<uint2*>(out) = make_uint2(pack_bf16(sum.x, sum.y), pack_bf16(sum.z, sum.w));
  } else {
    out[0] = from_float<bf16>(sum.x), out[1] = from_float<bf16>(sum.y);
    out[2] = from_float<bf16>(sum.z), out[3] = from_float<bf16>(sum.w);
  }
}
DSV4_DEVICE void add(float4& sum, float4 more) {
  sum.x += more.x, sum.y += more.y, sum.z += more.z, sum.w += more.w;
}

// Adds the parts of this block's outputs, [part][row][channel], and writes them.
DSV4_DEVICE void write_sums(const FuseView& v, const float* parts, int part_count, int64_t part_size,
                            int64_t row0, int rows, int channel0) {
  for (int i = threadIdx.x; i < rows * kFours; i += kFuseThreads) {
    const int channel = channel0 + i % kFours * 4;
    if (channel >= v.d) continue;
    float4 sum = *reinterpret_cast<const float4*>(parts + i * 4);
#pragma unroll 4
    for (int p = 1; p < part_count; ++p) add(sum, *reinterpret_cast<const float4*>(parts + p * part_size + i * 4));
    write_four(v, sum, row0 + i / kFours, channel);
  }
}

// The same of up to eight rows from the first, whose parts stand at `mine` [row][channel] in the blocks of the cluster.
// Each writes every so manieth sector.
DSV4_DEVICE void write_sums_of_cluster(const FuseView& v, const float* mine, int rows, int channel0) {
  const unsigned parts = cluster_size();
  cluster_sync();
  const int i = (threadIdx.x / 4 * parts + cluster_rank()) * 4 + threadIdx.x % 4, channel = channel0 + i % kFours * 4;
  if (i < rows * kFours && channel < v.d) {
    const float4* from = reinterpret_cast<const float4*>(mine) + i;
    float4 sum = cluster_load(from, 0);
    for (unsigned p = 1; p < parts; ++p) add(sum, cluster_load(from, p));
    write_four(v, sum, i / kFours, channel);
  }
  cluster_sync();  // others may still read what this block has
}

// 1/rms of the first `tokens` tokens' rows, [side][kRows]: every block of the cluster adds the squares of its own part
// of k, from k0.
template <int kRows>
DSV4_DEVICE void cluster_inverse_rms(float* inverse_rms, float* squares, const FuseView& v, int tokens, int k0) {
  const int all = tokens + (tokens << v.hc_log2);
  const auto place = [&](int r) { return r < tokens ? r : kRows + r - tokens; };
  for (int r = threadIdx.x / kWarp; r < all; r += kFuseThreads / kWarp) {
    const float sum = fuse_squares<bf16>(v, r >= tokens, r < tokens ? r : r - tokens, k0);
    if (threadIdx.x % kWarp == 0) squares[place(r)] = sum;
  }
  cluster_sync();
  if (static_cast<int>(threadIdx.x) < all) {
    float sum = 0;
    for (unsigned p = 0; p < cluster_size(); ++p) sum += cluster_load(squares + place(threadIdx.x), p);
    inverse_rms[place(threadIdx.x)] = fuse_inverse_rms(v, sum);
  }
}

}  // namespace dsv4::cuda
