// SPDX-License-Identifier: Apache-2.0
// The inner product of fuse_mma.cuh: 16 channels of one warp times 8 * NJ rows, one stage of k.
//
// A stage is 128 channels x 128 bytes of weights; the rows lie beside it as bf16. Both are read as 16-byte
// vectors: a lane takes 16 bytes of *neighbouring* k from each of its weight rows and the same k of its
// activation row, and hands them to mma as the k that its layout asks for. Products are summed over k anyhow,
// so any pairing that A and B share is right, and weights of a byte need no shuffle after they are widened.
// Widening is exact: bf16 holds every E4M3 and i8.
#pragma once
#include "fuse_view.cuh"

namespace dsv4::cuda {

constexpr int kStageRowBytes = 128;

// Neighbouring rows are turned by five vectors of 16 bytes, so that the eight lanes that shared memory serves
// together, four vectors (or every other of eight) of two rows, use all banks.
DSV4_DEVICE int turned(int vector, int row) { return vector ^ (row & 1) * 5; }

DSV4_DEVICE uint32_t bits_of(const bf16x2& pair) { return *reinterpret_cast<const uint32_t*>(&pair); }
DSV4_DEVICE bf16x2 pair_of(const uint32_t& bits) { return *reinterpret_cast<const bf16x2*>(&bits); }

// Four weights of a byte as two pairs of bf16.
template <Dtype kWeight>
DSV4_DEVICE void widen4(uint32_t (&pair)[2], uint32_t bytes) {
  const uint32_t spread[2] = {__byte_perm(bytes, 0, 0x1404), __byte_perm(bytes, 0, 0x3424)};  // high bytes
#pragma unroll
  for (int i = 0; i < 2; ++i) {
    if (kWeight == kI8) {  // (128 + low seven bits) - (128, or 256 for negative values), exactly
      const uint32_t low = spread[i] >> 8;
      const uint32_t plus = 0x43004300u | (low & 0x007f007fu), minus = 0xc300c300u | (low & 0x00800080u);
      pair[i] = bits_of(__hadd2(pair_of(plus), pair_of(minus)));
    } else {  // read as a bf16, whose bias is 120 more; subnormals come out right too
      const uint32_t small = (spread[i] & 0x80008000u) | (spread[i] >> 4 & 0x07f007f0u);
      pair[i] = bits_of(__hmul2(pair_of(small), pair_of(0x7b807b80u)));
    }
  }
  if (kWeight == kF8E4M3) {
    const uint32_t nan = ((bytes & 0x7f7f7f7fu) + 0x01010101u) & 0x80808080u;  // code 0x7f: came out as 480
    if (nan) {
      if (nan & 0x80u) pair[0] |= 0x7fc0u;
      if (nan & 0x8000u) pair[0] |= 0x7fc00000u;
      if (nan & 0x800000u) pair[1] |= 0x7fc0u;
      if (nan & 0x80000000u) pair[1] |= 0x7fc00000u;
    }
  }
}

// acc += the two k steps a[0], a[1] times the vectors of rows at `column`; `rows` is this lane's row of the
// first tile. Tiles go by four, so that their loads overlap; `tiles` of them hold rows. Past these the last four read
// rows too, unless kExact.
template <int NJ, int kRowBytes, bool kExact>
DSV4_DEVICE void mma_group(float (&acc)[NJ][4], const uint32_t (&a)[2][4], const unsigned char* rows,
                           int tiles) {
  constexpr int kBatch = NJ < 4 ? NJ : 4;
#pragma unroll
  for (int j0 = 0; j0 < NJ; j0 += kBatch) {
    if (j0 >= tiles) break;
    const auto have = [&](int j) { return !kExact || j0 + j < tiles; };
    uint4 b[kBatch];
#pragma unroll
    for (int j = 0; j < kBatch; ++j)
      if (have(j)) b[j] = *reinterpret_cast<const uint4*>(rows + (j0 + j) * 8 * kRowBytes);
#pragma unroll
    for (int j = 0; j < kBatch; ++j)
      if (have(j)) mma_bf16(acc[j0 + j], a[0], {b[j].x, b[j].y});
#pragma unroll
    for (int j = 0; j < kBatch; ++j)
      if (have(j)) mma_bf16(acc[j0 + j], a[1], {b[j].z, b[j].w});
  }
}

// acc += what the vectors of a half of a stage give: channel g of the warp's 16, then channel g + 8, with g = lane / 4.
// `rows` is this lane's row g of the stage.
template <Dtype kWeight, int NJ, int kRowBytes, bool kExact>
DSV4_DEVICE void mma_vectors(float (&acc)[NJ][4], uint4 low, uint4 high, const unsigned char* rows, int half,
                             int tiles) {
  const int lane = threadIdx.x % kWarp, g = lane / 4, t = lane % 4;
  if (kWeight == kBF16) {
    const uint32_t a[2][4] = {{low.x, high.x, low.y, high.y}, {low.z, high.z, low.w, high.w}};
    mma_group<NJ, kRowBytes, kExact>(acc, a, rows + turned(half * 4 + t, g) * 16, tiles);
  } else {
#pragma unroll
    for (int quarter = 0; quarter < 2; ++quarter) {
      const uint32_t words[2][2] = {{quarter ? low.z : low.x, quarter ? high.z : high.x},
                                    {quarter ? low.w : low.y, quarter ? high.w : high.y}};
      uint32_t a[2][4], l[2], h[2];
#pragma unroll
      for (int i = 0; i < 2; ++i) {
        widen4<kWeight>(l, words[i][0]), widen4<kWeight>(h, words[i][1]);
        a[i][0] = l[0], a[i][1] = h[0], a[i][2] = l[1], a[i][3] = h[1];
      }
      mma_group<NJ, kRowBytes, kExact>(acc, a, rows + turned(half * 8 + 2 * t + quarter, g) * 16, tiles);
    }
  }
}

// acc += one stage. `weights` is the warp's first channel in the stage, `rows` the block's first row.
template <Dtype kWeight, int NJ>
DSV4_DEVICE void mma_stage(float (&acc)[NJ][4], const unsigned char* weights, const unsigned char* rows,
                           int tiles) {
  constexpr int kRowBytes = kWeight == kBF16 ? kStageRowBytes : 2 * kStageRowBytes;
  const int lane = threadIdx.x % kWarp, g = lane / 4, t = lane % 4;
#pragma unroll
  for (int half = 0; half < 2; ++half) {
    const unsigned char* at = weights + g * kStageRowBytes + turned(half * 4 + t, g) * 16;
    const uint4 low = *reinterpret_cast<const uint4*>(at);
    const uint4 high = *reinterpret_cast<const uint4*>(at + 8 * kStageRowBytes);
    mma_vectors<kWeight, NJ, kRowBytes, false>(acc, low, high, rows + g * kRowBytes, half, tiles);
  }
}

// sums += the acc of one stage of weights of a byte, scaled; acc is zero again.
template <int NJ>
DSV4_DEVICE void scale_sums(float (&sums)[NJ][4], float (&acc)[NJ][4], const float (&scale)[2], int tiles) {
#pragma unroll
  for (int j = 0; j < NJ; ++j) {
    if (j >= tiles) break;
#pragma unroll
    for (int c = 0; c < 4; ++c) sums[j][c] = fmaf(acc[j][c], scale[c / 2], sums[j][c]), acc[j][c] = 0;
  }
}

// From sums of tokens to sums of their streams: sums[j] of rows 8j .. 8j+7 becomes that of the token of
// stream row 8j .. 8j+7. Tiles are done from the last, whose source lies before them.
template <int kLog2, int NJ>
DSV4_DEVICE void spread_tokens(float (&sums)[NJ][4], int tiles) {
  const int lane = threadIdx.x % kWarp, t = lane % 4;
#pragma unroll
  for (int j = NJ - 1; j >= 0; --j) {
    if (j >= tiles) continue;
    const int token = (8 * j + 2 * t) >> kLog2 & 7;  // both rows of a lane are streams of one token
    const int from = (lane & ~3) | token >> 1;
#pragma unroll
    for (int c = 0; c < 4; c += 2) {
      const float even = __shfl_sync(kAllLanes, sums[j >> kLog2][c], from);
      const float odd = __shfl_sync(kAllLanes, sums[j >> kLog2][c + 1], from);
      sums[j][c] = sums[j][c + 1] = token & 1 ? odd : even;
    }
  }
}

}  // namespace dsv4::cuda
