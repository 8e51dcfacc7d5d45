// SPDX-License-Identifier: Apache-2.0
// nextn_fuse_hidden of few rows on clusters of blocks, in one launch.
//
// A cluster is `parts` of k times some columns of channels. A block multiplies its channels with its part of k of all
// rows, first those of embeds, then those of hidden. The rows and norm weights of a part come into the shared memory
// of all its blocks at once: each of the columns sends its share by bulk copies, so that a cluster reads a row once.
// The squares of the rows and, in the end, the sums of the parts go through the cluster's shared memory. Rows are
// normed and rounded where they lie, one stage ahead of their use, while weights flow through kStages stages of
// cp.async. A stage is 64 bytes of each channel: two of them are one stage of fuse_mma.cuh, and give the same bits.
#pragma once
#include "fuse_parts.cuh"
#include "fuse_tile.cuh"

namespace dsv4::cuda {

constexpr unsigned kFuseBlocks = 16;  // of the largest cluster
constexpr int kFuseDepth = 1024;      // of the largest part of k

// For up to NJ * 8 stream rows, and NJ * 10 rows with those of embeds.
template <Dtype kWeight, int NJ>
struct FuseCluster {
  static constexpr int kSize = kWeight == kBF16 ? 2 : 1;
  // Many rows and few bytes of weights: wider blocks, so that fewer clusters read the rows.
  static constexpr int kWarps = kSize == 1 && NJ > 4 ? 11 : 8;
  static constexpr int kThreads = kWarps * kWarp, kChannels = kWarps * 16;
  static constexpr int kHalf = 64, kDepth = 2 * kHalf / kSize;  // bytes of a stage, k of two
  static constexpr int kStageBytes = kChannels * kHalf;
  static constexpr int kStages = NJ > 4 ? kWarps == 8 ? 7 : 5 : 12;
  static constexpr int kPitch = kFuseDepth * 2, kRows = NJ * 10;  // of rows
  static constexpr int kRowVectors = kDepth / 8;  // of a row, of two stages
  static constexpr int kVectors = (NJ * 8 * kRowVectors + kThreads - 1) / kThreads;  // a thread's
  static constexpr int kNorms = kStages * kStageBytes + kRows * kPitch, kSquares = kNorms + 2 * kFuseDepth * 4;
  static constexpr int kSmem = kSquares + 2 * kRows * 4 + 8;
  static_assert(kSmem <= 227 * 1024 && kThreads % kRowVectors == 0 && kRows <= kThreads);
};

// Rows of a side in shared memory: what is behind the last is zero up to a tile of eight.
DSV4_DEVICE int fuse_fill(int rows) { return (rows + 7) / 8 * 8; }

// The part from k0 of every row and of both norms, into all blocks of the same part: this column's share. One warp.
template <class S>
DSV4_DEVICE void send_rows(const FuseView& v, unsigned char* rows, unsigned char* norms, uint64_t* landed, int k0,
                           int length, int parts, int column) {
  const int columns = cluster_size() / parts, T = static_cast<int>(v.T), all = T + (T << v.hc_log2);
  const auto norm_size = [&](int side) { return (side ? v.side[1].norm_f32 : v.side[0].norm_f32) ? 4 : 2; };
  uint32_t mask = 0;
  for (int c = 0; c < columns; ++c) mask |= 1u << (cluster_rank() % parts + c * parts);
  if (threadIdx.x == 0) mbarrier_arrive(landed, length * (2 * all + norm_size(0) + norm_size(1)));
  for (int i = column + static_cast<int>(threadIdx.x) * columns; i < all + 2; i += kWarp * columns) {
    if (i < all) {
      const int side = i >= T, row = side ? i - T : i;
      copy_bulk(rows + (side ? fuse_fill(T) + row : row) * S::kPitch, fuse_row<bf16>(v, side, row) + k0, length * 2,
                landed, static_cast<uint16_t>(mask));
    } else {
      const int side = i - all;
      const unsigned char* norm = static_cast<const unsigned char*>(v.side[side].norm);
      copy_bulk(norms + side * kFuseDepth * 4, norm + k0 * norm_size(side), length * norm_size(side), landed,
                static_cast<uint16_t>(mask));
    }
  }
}

// 1/rms of all rows: each column sums the squares of some rows of its part, and every block adds the parts of all.
template <class S>
DSV4_DEVICE void inverse_rms_of_cluster(float* inverse_rms, float* squares, const FuseView& v,
                                        const unsigned char* rows, int length, int parts, int column) {
  const int columns = cluster_size() / parts, T = static_cast<int>(v.T), all = T + (T << v.hc_log2);
  for (int r = column + static_cast<int>(threadIdx.x) / kWarp * columns; r < all; r += S::kWarps * columns) {
    const unsigned char* row = rows + (r < T ? r : fuse_fill(T) + r - T) * S::kPitch;
    const float sum = fuse_squares(reinterpret_cast<const bf16*>(row), length, true);
    if (threadIdx.x % kWarp == 0) squares[r] = sum;
  }
  cluster_sync();
  const int r = threadIdx.x;
  if (r < all) {
    float sum = 0;
    for (int p = 0; p < parts; ++p) sum += cluster_load(squares + r, p + parts * (r % columns));
    inverse_rms[r] = fuse_inverse_rms(v, sum);
  }
  __syncthreads();
}

// Norms kDepth of k of a side's rows, from `k` of the part on, and turns their vectors as mma_vectors reads them: eight
// neighbouring ones stay among eight neighbouring lanes.
template <class S>
DSV4_DEVICE void norm_rows(const FuseView& v, unsigned char* rows, const unsigned char* norms, const float* inverse_rms,
                           int side, int count, int k, int length) {
  const int vector = threadIdx.x % S::kRowVectors, at = k + vector * 8, total = fuse_fill(count) * S::kRowVectors;
  const auto row_of = [&](int i) { return (static_cast<int>(threadIdx.x) + i * S::kThreads) / S::kRowVectors; };
  const auto within = [&](int i) { return static_cast<int>(threadIdx.x) + i * S::kThreads < total; };  // a warp as one
  uint4* to = reinterpret_cast<uint4*>(rows + k * 2);
  constexpr int kPitch = S::kPitch / 16;
  float norm[8] = {};
  if (at < length) {
    if (v.side[side].norm_f32) load8(norm, reinterpret_cast<const float*>(norms) + at);
    else load8(norm, reinterpret_cast<const bf16*>(norms) + at);
  }
  uint4 raw[S::kVectors];
#pragma unroll
  for (int i = 0; i < S::kVectors; ++i)
    raw[i] = within(i) && row_of(i) < count && at < length ? to[row_of(i) * kPitch + vector] : make_uint4(0, 0, 0, 0);
  __syncwarp();
#pragma unroll
  for (int i = 0; i < S::kVectors; ++i) {
    if (!within(i)) break;
    float x[8];
    unpack8(x, raw[i]);
    const float scale = row_of(i) < count ? inverse_rms[row_of(i)] : 0.f;
#pragma unroll
    for (int c = 0; c < 8; ++c) x[c] = x[c] * scale * norm[c];
    to[row_of(i) * kPitch + turned(vector, row_of(i))] = pack8(x);
  }
}

// What the sums of two stages of weights of a byte are multiplied by: read once a side.
template <Dtype kWeight>
struct PairScales {
  float now[2] = {};   // of a lane's channels
  float of_lane = 0;   // e4m3: lane i has that of the side's pair i

  // A warp as one, whose first channel is `channel`.
  DSV4_DEVICE void of_pair(const FuseView& v, int side, int channel, int k0, int pair, int pairs) {
    const int lane = threadIdx.x % kWarp;
    if (kWeight == kI8) {
      if (pair == 0) fuse_scales<kWeight>(now, v, side, channel + lane / 4, k0);
    } else {
      if (pair == 0 && lane < pairs) {
        fuse_scales<kWeight>(now, v, side, channel, k0 + lane * FuseCluster<kWeight, 1>::kDepth);
        of_lane = now[0];
      }
      now[0] = now[1] = __shfl_sync(kAllLanes, of_lane, pair);
    }
  }
};

// Grid: clusters of parts * columns blocks along x; neighbouring blocks are the parts of one tile of channels.
template <Dtype kWeight, int NJ>
__global__ void __launch_bounds__(FuseCluster<kWeight, NJ>::kThreads, 1) fuse_cluster_kernel(FuseView v, int parts) {
#if DSV4_CLUSTERS
  using S = FuseCluster<kWeight, NJ>;
  DYN_SMEM(unsigned char, stages);
  unsigned char *rows = stages + S::kStages * S::kStageBytes, *norms = stages + S::kNorms;
  float *squares = reinterpret_cast<float*>(stages + S::kSquares), *inverse_rms = squares + S::kRows;
  uint64_t* landed = reinterpret_cast<uint64_t*>(inverse_rms + S::kRows);

  const int warp = threadIdx.x / kWarp, lane = threadIdx.x % kWarp, T = static_cast<int>(v.T);
  const int part = cluster_rank() % parts, column = cluster_rank() / parts;
  const int channel0 = blockIdx.x / parts * S::kChannels;
  const int warp_channel = channel0 + warp * 16;
  const bool busy = warp_channel < v.d;
  const int k0 = part * v.depth, length = min(v.depth, v.d - k0);
  const int pairs = (length + S::kDepth - 1) / S::kDepth;  // of stages, of one side
  const auto rows_of = [&](int side) { return side ? T << v.hc_log2 : T; };
  const auto base_of = [&](int side) { return rows + (side ? fuse_fill(T) * S::kPitch : 0); };

  const auto fetch_weights = [&](int step) {
    if (step < 4 * pairs) {
      const int side = step >= 2 * pairs;
      const FuseSide& s = v.side[side];
      const int vector = threadIdx.x % 4;
      const int k = k0 + (step - side * 2 * pairs) * (S::kHalf / S::kSize) + vector * (16 / S::kSize);
      unsigned char* stage = stages + step % S::kStages * S::kStageBytes;
#pragma unroll
      for (int i = 0; i < 2; ++i) {
        const int row = threadIdx.x / 4 + i * (S::kThreads / 4);
        const bool valid = channel0 + row < v.d && k < v.d;
        const int64_t offset = valid ? ((channel0 + row) * s.weight_n + k) * S::kSize : 0;
        cp_async16(stage + row * S::kHalf + vector * 16, static_cast<const unsigned char*>(s.weight) + offset, valid);
      }
    }
    cp_async_commit();
  };
  const auto norm = [&](int pair) {
    const int side = pair >= pairs;
    norm_rows<S>(v, base_of(side), norms + side * kFuseDepth * 4, inverse_rms + side * T, side, rows_of(side),
                 (pair - side * pairs) * S::kDepth, length);
  };

  for (int step = 0; step < S::kStages - 1; ++step) fetch_weights(step);
  if (threadIdx.x == 0) {
    mbarrier_init(landed, 1);
    mbarrier_fence();
  }
  cluster_sync();  // every block has its mbarrier
  if (warp == 0) send_rows<S>(v, rows, norms, landed, k0, length, parts, column);
  mbarrier_wait(landed, 0);
  inverse_rms_of_cluster<S>(inverse_rms, squares, v, rows, length, parts, column);
  norm(0);

  // Sums of weights of a byte are scaled pair by pair into `sums`; those of bf16 stay where they are.
  PairScales<kWeight> scales;
  float acc[NJ][4] = {}, sums[NJ][4] = {};
  auto& total = S::kSize == 1 ? sums : acc;
#pragma unroll 1
  for (int pair = 0; pair < 2 * pairs; ++pair) {
    const int side = pair >= pairs, tiles = (rows_of(side) + 7) / 8, k = (pair - side * pairs) * S::kDepth;
    if (S::kSize == 1) scales.of_pair(v, side, warp_channel, k0, pair - side * pairs, pairs);
    const unsigned char* of_k = base_of(side) + lane / 4 * S::kPitch + k * 2;
#pragma unroll
    for (int half = 0; half < 2; ++half) {
      const int step = 2 * pair + half;
      cp_async_wait<S::kStages - 2>();
      __syncthreads();
      fetch_weights(step + S::kStages - 1);
      if (half == 0 && pair + 1 < 2 * pairs) norm(pair + 1);
      if (!busy) continue;
      if (half == 0 && pair == pairs) {
        if (v.hc_log2 == 1) spread_tokens<1>(total, tiles);
        if (v.hc_log2 == 2) spread_tokens<2>(total, tiles);
      }
      const unsigned char* stage = stages + step % S::kStages * S::kStageBytes;
      const unsigned char* at = stage + (warp * 16 + lane / 4) * S::kHalf + lane % 4 * 16;
      const uint4 low = *reinterpret_cast<const uint4*>(at);
      const uint4 high = *reinterpret_cast<const uint4*>(at + 8 * S::kHalf);
      mma_vectors<kWeight, NJ, S::kPitch, true>(acc, low, high, of_k, half, tiles);
    }
    if (S::kSize == 1 && busy) scale_sums(sums, acc, scales.now, tiles);
  }
  __syncthreads();  // nobody reads rows any more
  constexpr int kSumPitch = S::kChannels + 4;
  float* mine = reinterpret_cast<float*>(rows);  // [row][channel]
  if (busy) store_sums(mine + warp * 16, total, rows_of(1), kSumPitch, false);
  write_sums_of_cluster<S::kThreads, S::kChannels, kSumPitch>(v, mine, rows_of(1), channel0, parts);
#else
  __trap();
#endif
}

}  // namespace dsv4::cuda
