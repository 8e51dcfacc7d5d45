// SPDX-License-Identifier: Apache-2.0
// nextn_fuse_hidden on tensor cores: bf16 rows, bf16 | e4m3 | i8 weights that lie on 16 bytes.
//
// A block owns 128 channels of `tokens` tokens and one part of k: the same k of e_proj, then of h_proj.
// Weights flow through kStages stages of cp.async; rows go from L2 through registers, where they are normed
// and rounded, to one of two buffers while the stage before is multiplied. Weights are the M side of the
// products (a warp's 16 channels), rows the N side, so one token of four streams fills half a tile instead of
// a quarter. The sum over e_proj of a token becomes the start of the sums of its streams by shuffles. The
// parts of k are added in their order (fuse_parts.cuh): by the last block of an output tile to come there, or by the
// one that does all of them. Parts depend on d alone, and every output is summed alike in every tile shape: bits do
// not depend on the batch.
#pragma once
#include "fuse_parts.cuh"
#include "fuse_tile.cuh"

namespace dsv4::cuda {

constexpr int kStageBytes = kFuseChannels * kStageRowBytes;

template <Dtype kWeight, int NJ>
struct FuseShape {
  static constexpr Dtype kType = kWeight;
  static constexpr int kSize = kWeight == kBF16 ? 2 : 1;
  static constexpr int kDepth = kStageRowBytes / kSize;  // k of a stage; of bytes, a scale block
  static constexpr int kRows = NJ * 8;
  static constexpr int kRowBytes = kDepth * 2;
  static constexpr int kStages = NJ == 1 ? 6 : 5;
  static constexpr int kRowVectors = kDepth / 8;
  static constexpr int kRowsAtOnce = kFuseThreads / kRowVectors;
  static constexpr int kVectors = (kRows + kRowsAtOnce - 1) / kRowsAtOnce;  // a thread's, of a stage of rows
  static constexpr int kSmem = kStages * kStageBytes + 2 * kRows * kRowBytes + 2 * kRows * 4;
  static constexpr int kSums = kRows * kFuseChannels * 4;  // more, for a block that does all parts
};

DSV4_DEVICE uint4 load_raw(const bf16* p, bool vector) {
  if (vector) return *reinterpret_cast<const uint4*>(p);
  uint32_t pair[4];
#pragma unroll
  for (int i = 0; i < 4; ++i) {
    const uint32_t low = __bfloat16_as_ushort(p[2 * i]), high = __bfloat16_as_ushort(p[2 * i + 1]);
    pair[i] = low | high << 16;
  }
  return make_uint4(pair[0], pair[1], pair[2], pair[3]);
}

// The next stage of rows of a block, on its way through registers.
template <class S>
struct RowsInFlight {
  uint4 raw[S::kVectors];
  float norm[8];   // the norm's weights
  float scale[2];  // of a lane's two channels: what the stage's sums are multiplied by

  DSV4_DEVICE static int row(int i) { return threadIdx.x / S::kRowVectors + i * S::kRowsAtOnce; }

  DSV4_DEVICE void fetch(const FuseView& v, int side, int64_t row0, int rows, int k, int channel) {
    const FuseSide& s = v.side[side];
    const int at = k + threadIdx.x % S::kRowVectors * 8;
#pragma unroll
    for (int i = 0; i < S::kVectors; ++i)
      raw[i] = at < v.d && row(i) < rows ? load_raw(fuse_row<bf16>(v, side, row0 + row(i)) + at, s.x_vector)
                                         : make_uint4(0, 0, 0, 0);
#pragma unroll
    for (int i = 0; i < 8; ++i) norm[i] = 0;
    if (at < v.d) load_norm(norm, s, at);
    if (S::kSize == 1) fuse_scales<S::kType>(scale, v, side, channel, k);
  }

  // Up to `fill`, rows that do not exist are zero.
  DSV4_DEVICE void store(unsigned char* buffer, const float* inverse_rms, int rows, int fill) const {
#pragma unroll
    for (int i = 0; i < S::kVectors; ++i) {
      const int r = row(i);
      if (r >= fill) continue;
      const int vector = turned(threadIdx.x % S::kRowVectors, r);
      uint4* to = reinterpret_cast<uint4*>(buffer + r * S::kRowBytes) + vector;
      if (r >= rows) {
        *to = make_uint4(0, 0, 0, 0);
        continue;
      }
      float x[8];
      unpack8(x, raw[i]);
#pragma unroll
      for (int c = 0; c < 8; ++c) x[c] = x[c] * inverse_rms[r] * norm[c];
      store8(reinterpret_cast<bf16*>(to), x);
    }
  }
};

// Grid: (chunks of kRows / hc tokens, tiles of channels, parts of k), a part with room for `row_room` rows. With
// `parts` > 0 a block does so many, one after the other, their sum in shared memory: many rows fill the device without
// the split. All add the same numbers in the same order.
template <Dtype kWeight, int NJ>
__global__ void __launch_bounds__(kFuseThreads, NJ == 1 ? 2 : 1)
    fuse_mma_kernel(FuseView v, int parts, int row_room) {
  using S = FuseShape<kWeight, NJ>;
  DYN_SMEM(unsigned char, stages);
  unsigned char* buffers = stages + S::kStages * kStageBytes;
  float* inverse_rms = reinterpret_cast<float*>(buffers + 2 * S::kRows * S::kRowBytes);  // [2][kRows]

  const int warp = threadIdx.x / kWarp, lane = threadIdx.x % kWarp;
  const int64_t t0 = static_cast<int64_t>(blockIdx.x) * (S::kRows >> v.hc_log2);
  const int64_t left = v.T - t0;
  const int tokens = left < S::kRows >> v.hc_log2 ? static_cast<int>(left) : S::kRows >> v.hc_log2;
  const int channel0 = blockIdx.y * kFuseChannels;
  const int channel = channel0 + warp * 16 + lane / 4;  // and channel + 8
  const bool busy = channel0 + warp * 16 < v.d;
  int k0 = blockIdx.z * v.depth;
  auto steps_of = [&](int k) { return ((k + v.depth < v.d ? v.depth : v.d - k) + S::kDepth - 1) / S::kDepth; };
  int steps = steps_of(k0);  // of one side of the part

  auto side_of = [&](int step) { return step >= steps ? 1 : 0; };
  auto k_of = [&](int step) { return k0 + (step >= steps ? step - steps : step) * S::kDepth; };
  auto rows_of = [&](int side) { return side ? tokens << v.hc_log2 : tokens; };
  auto first_row = [&](int side) { return side ? t0 << v.hc_log2 : t0; };
  auto fill_of = [&](int side) { return NJ == 1 ? 8 : (rows_of(side) + 31) / 32 * 32; };
  auto buffer_of = [&](int step) { return buffers + step % 2 * S::kRows * S::kRowBytes; };

  auto fetch_weights = [&](int step) {
    const FuseSide& s = v.side[side_of(step)];
    const int vector = threadIdx.x % 8, k = k_of(step) + vector * (16 / S::kSize);
    unsigned char* stage = stages + step % S::kStages * kStageBytes;
#pragma unroll
    for (int i = 0; i < kFuseChannels / 32; ++i) {
      const int row = threadIdx.x / 8 + i * 32;
      const bool valid = channel0 + row < v.d && k < v.d;
      const int64_t offset = valid ? ((channel0 + row) * s.weight_n + k) * S::kSize : 0;
      cp_async16(stage + row * kStageRowBytes + turned(vector, row) * 16,
                 static_cast<const unsigned char*>(s.weight) + offset, valid);
    }
  };

  auto first_weights = [&] {
    for (int step = 0; step < S::kStages - 1; ++step) {
      if (step < 2 * steps) fetch_weights(step);
      cp_async_commit();
    }
  };
  first_weights();
  if (NJ == 1) {  // few rows: every block norms them itself
    for (int r = warp; r < tokens + rows_of(1); r += kFuseThreads / kWarp) {
      const int side = r >= tokens, row = side ? r - tokens : r;
      const float q = fuse_inverse_rms<bf16>(v, side, first_row(side) + row);
      if (lane == 0) inverse_rms[side * S::kRows + row] = q;
    }
  } else {
    for (int r = threadIdx.x; r < rows_of(1); r += kFuseThreads) {
      if (r < tokens) inverse_rms[r] = v.inverse_rms[t0 + r];
      inverse_rms[S::kRows + r] = v.inverse_rms[v.T + first_row(1) + r];
    }
  }
  __syncthreads();

  const int64_t column = static_cast<int64_t>(blockIdx.x) * gridDim.y + blockIdx.y;
  const int64_t part_size = static_cast<int64_t>(row_room) * kFuseChannels;
  float* in_memory = v.partials + column * gridDim.z * part_size;  // [part][row][channel]
  float* in_block = reinterpret_cast<float*>(stages + S::kSmem);   // [row][channel]
  const int rows = rows_of(1);
  RowsInFlight<S> next;
#pragma unroll 1
  for (int part = 0;;) {
    next.fetch(v, 0, first_row(0), rows_of(0), k_of(0), channel);
    next.store(buffer_of(0), inverse_rms, rows_of(0), fill_of(0));

    // Sums of weights of a byte are scaled stage by stage into `sums`; those of bf16 stay where they are.
    float acc[NJ][4] = {}, sums[NJ][4] = {};
    auto& total = S::kSize == 1 ? sums : acc;
    for (int step = 0; step < 2 * steps; ++step) {
      const int side = side_of(step), tiles = (rows_of(side) + 7) / 8;
      cp_async_wait<S::kStages - 2>();
      __syncthreads();
      if (step + S::kStages - 1 < 2 * steps) fetch_weights(step + S::kStages - 1);
      cp_async_commit();
      const float scale[2] = {next.scale[0], next.scale[1]};
      const bool more = step + 1 < 2 * steps;
      const int next_side = side_of(step + 1);
      if (more) next.fetch(v, next_side, first_row(next_side), rows_of(next_side), k_of(step + 1), channel);

      if (busy) {
        if (step == steps) {
          if (v.hc_log2 == 1) spread_tokens<1>(total, tiles);
          if (v.hc_log2 == 2) spread_tokens<2>(total, tiles);
        }
        const unsigned char* weights = stages + step % S::kStages * kStageBytes + warp * 16 * kStageRowBytes;
        mma_stage<kWeight>(acc, weights, buffer_of(step), tiles);
        if (S::kSize == 1) scale_sums(sums, acc, scale, tiles);
      }
      if (more)
        next.store(buffer_of(step + 1), inverse_rms + next_side * S::kRows, rows_of(next_side),
                   fill_of(next_side));
    }
    if (busy)
      store_sums((parts ? in_block : in_memory + blockIdx.z * part_size) + warp * 16, total, rows, kFuseChannels,
                 part > 0);
    if (++part >= parts) break;
    __syncthreads();  // nobody reads the last stages any more
    k0 += v.depth, steps = steps_of(k0);
    first_weights();
  }

  if (parts) {
    __syncthreads();
    return write_sums(v, in_block, 1, 0, first_row(1), rows, channel0);
  }
  if (!is_last_block(v.tickets + column, gridDim.z, reinterpret_cast<int*>(inverse_rms))) return;
  if (threadIdx.x == 0) v.tickets[column] = 0;
  write_sums(v, in_memory, gridDim.z, part_size, first_row(1), rows, channel0);
}

}  // namespace dsv4::cuda
