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

// A lane's sums, channels lane / 4 and 8 behind of a warp's 16, to [row][channel] of that pitch; or adds them there.
template <int NJ>
DSV4_DEVICE void store_sums(float* to, const float (&sums)[NJ][4], int rows, int pitch, bool add_them) {
  const int lane = threadIdx.x % kWarp;
  to += lane / 4;
#pragma unroll
  for (int j = 0; j < NJ; ++j)
#pragma unroll
    for (int c = 0; c < 4; ++c) {
      const int row = 8 * j + lane % 4 * 2 + c % 2, at = row * pitch + c / 2 * 8;
      if (row < rows) to[at] = add_them ? to[at] + sums[j][c] : sums[j][c];
    }
}

// Adds the parts of the outputs of all rows, which stand at `mine` [row][channel] in `parts` blocks of the cluster that
// follow one another, and writes them: each block every so manieth sector.
template <int kThreads, int kChannels, int kPitch>
DSV4_DEVICE void write_sums_of_cluster(const FuseView& v, const float* mine, int rows, int channel0, int parts) {
  constexpr int kSectors = kChannels / 16;  // of a row
  const int first = cluster_rank() / parts * parts, part = cluster_rank() - first;
  cluster_sync();
  for (int i = threadIdx.x / 4 * parts + part; i < rows * kSectors; i += kThreads / 4 * parts) {
    const int row = i / kSectors, at = i % kSectors * 16 + threadIdx.x % 4 * 4;
    if (channel0 + at >= v.d) continue;
    const float4* from = reinterpret_cast<const float4*>(mine + row * kPitch + at);
    float4 sum = cluster_load(from, first);
    for (int p = 1; p < parts; ++p) add(sum, cluster_load(from, first + p));
    write_four(v, sum, row, channel0 + at);
  }
  cluster_sync();  // others may still read what this block has
}

}  // namespace dsv4::cuda
