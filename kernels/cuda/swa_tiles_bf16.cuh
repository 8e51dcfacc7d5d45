// SPDX-License-Identifier: Apache-2.0
// swa_paged_attention on bf16 tensor cores, once queries and keys are in shared memory (swa_copies.cuh). A block holds
// kM (query row, head) pairs of one request against tiles of 32 keys. Four warps split D for the scores of kRows pairs,
// their queries in registers, and add their parts in one fixed order; then each of them owns eight pairs for the
// softmax. For the weighted sum every warp takes all pairs and a share of the dims. Shared memory a tile at D = 512, 64
// pairs: 64 KiB read as K, 32 KiB as V, 80 KiB for the parts and weights, which is about the time that the products take.
// Products that are added are written as fmaf, or kept from it by __fmul_rn: 16 and 64 pairs are two compilations, and a
// compiler that is free to join the two operations in one and not in the other would give a row two results.
#pragma once
#include "swa_request.cuh"

namespace dsv4::cuda {

constexpr float kLog2E = 1.4426950408889634f;
constexpr int kPitchP = kKeys + 8;  // rows that are an odd number of 16-byte units apart spread over all banks

template <int kM, int kStages, int kD>  // kD = 0: any D
struct SwaTiles {
  static constexpr int kPairs = kM;
  static constexpr int kSplit = 4;                           // warps that share D
  static constexpr int kWarps = kM == 16 ? 4 : 8, kThreads = kWarps * kWarp;
  static constexpr int kRows = kM / (kWarps / kSplit);       // pairs that a warp scores
  static constexpr int kOctets = kRows / 8;                  // each belongs to the warp of that number
  static constexpr int kTiles = kM / 16, kScoreTiles = kRows / 16;
  static constexpr int kGroups = (kD ? kD : 512) / 16 / kWarps;  // 16-dim groups of a warp's weighted sum
  static constexpr int kSteps = (kD ? kD : 512) / 16 / kSplit;   // of 16 dims, in a warp's scores
  static constexpr int kPass = kM == 16 ? 2 : 1;             // groups of 16 keys scored at once
  static constexpr int kSlots = 8;                           // tiles whose key offsets are known
  static constexpr int kFree = kStages - (kM + kKeys - 1) / kKeys;  // stages without queries, before those are read
  static_assert(kM == 16 || kM == 64, "16 pairs keep four warps busy, 64 fill the registers of eight");

  static __host__ __device__ constexpr size_t bytes(int D) {
    return kStages * kKeys * (D + 8) * sizeof(bf16) + kM / 8 * (kSplit - 1) * 64 * sizeof(float4) +
           kM * kPitchP * sizeof(bf16) + kM * 2 * sizeof(int64_t) + kSlots * kKeys * sizeof(int64_t) +
           kM * sizeof(Sight) + sizeof(Work) + kSlots * sizeof(uint32_t) + kStages * sizeof(uint64_t);
  }

  const SwaView& v;
  const int D, pitch, warp, lane;
  bf16 *kv, *weights;                  // shared: [kStages][kKeys][pitch]; [kM][kPitchP]
  float4* parts;                       // [kM / 8][kSplit - 1][2][kWarp]: scores over other warps' dims
  int64_t *q_at, *angle_at, *key_at;   // [kM], [kM], [kSlots][kKeys]
  Work* work;
  Sight* sights;                       // [kM]
  float *alpha, *inverse;              // [kM], in the place of q_at, which is no longer needed then
  uint32_t* usable;                    // [kSlots]: keys that have a page
  uint64_t* landed;                    // [kStages]: mbarriers of tiles that the cluster shares

  uint32_t q[kScoreTiles][kSteps][4];  // in the layout of mma_bf16's A: this warp's pairs and dims
  float o[kTiles][kGroups][2][4];      // in the layout of its result
  float top, sum;                      // running maximum and sum of this lane's pair

  DSV4_DEVICE SwaTiles(const SwaView& view, unsigned char* memory)
      : v(view), D(kD ? kD : view.D), pitch(D + 8), warp(threadIdx.x / kWarp), lane(threadIdx.x % kWarp) {
    kv = reinterpret_cast<bf16*>(memory);
    weights = kv + kStages * kKeys * pitch;
    parts = reinterpret_cast<float4*>(weights + kM * kPitchP);
    q_at = reinterpret_cast<int64_t*>(parts + kM / 8 * (kSplit - 1) * 64);
    angle_at = q_at + kM;
    key_at = angle_at + kM;
    work = reinterpret_cast<Work*>(key_at + kSlots * kKeys);
    sights = reinterpret_cast<Sight*>(work + 1);
    alpha = reinterpret_cast<float*>(q_at);
    inverse = alpha + kM;
    usable = reinterpret_cast<uint32_t*>(sights + kM);
    landed = reinterpret_cast<uint64_t*>(usable + kSlots);
  }

  DSV4_DEVICE int split() const { return warp % kSplit; }
  DSV4_DEVICE int pair() const { return warp / kSplit * kRows + split() * 8 + lane / 4; }  // of the softmax
  DSV4_DEVICE bool owns_pairs() const { return split() < kOctets; }
  DSV4_DEVICE uint32_t my_keys() const { return 0x03030303u << lane % 4 * 2; }  // of a tile's softmax
  DSV4_DEVICE bf16* queries() const { return kv + kFree * kKeys * pitch; }  // [kM][pitch] until they are read
  DSV4_DEVICE bf16* result() const { return kv; }                           // [kM][pitch] after the last tile
  DSV4_DEVICE bf16* tile(int i) const { return kv + i % kStages * kKeys * pitch; }
  // Where this lane points ldmatrix for a 16x16 block.
  DSV4_DEVICE int block16(int row_pitch) const { return lane % 16 * row_pitch + lane / 16 * 8; }

  DSV4_DEVICE bool wanted(int i, int half) const { return (usable[i % kSlots] >> half * 16 & 0xffffu) != 0; }
  DSV4_DEVICE void set_keys(int i) {  // a warp, lane = key
    const int64_t offset = offset_of(v, work->segment, work->keys, i * kKeys + lane);
    key_at[i % kSlots * kKeys + lane] = offset;
    const uint32_t bits = __ballot_sync(kAllLanes, offset >= 0);
    if (lane == 0) usable[i % kSlots] = bits;
  }

  DSV4_DEVICE void begin() {
    top = -__uint_as_float(0x7f800000u), sum = 0;
#pragma unroll
    for (auto& m : o)
#pragma unroll
      for (auto& group : m)
#pragma unroll
        for (auto& n : group) n[0] = 0, n[1] = 0, n[2] = 0, n[3] = 0;
  }

  DSV4_DEVICE int first_step() const { return split() * (kD ? kSteps : (D / 16 + kSplit - 1) / kSplit); }
  DSV4_DEVICE int step_count() const {
    return kD ? kSteps : max(0, min((D / 16 + kSplit - 1) / kSplit, D / 16 - first_step()));
  }

  DSV4_DEVICE void take_queries() {
    const bf16* rows = queries() + warp / kSplit * kRows * pitch + first_step() * 16 + block16(pitch);
#pragma unroll
    for (int m = 0; m < kScoreTiles; ++m)
#pragma unroll
      for (int k = 0; k < kSteps; ++k)
        if (k < step_count()) ldmatrix_x4(q[m][k], rows + m * 16 * pitch + k * 16);
  }

  // x[2 * n + e] = q . key of this lane's pair and the tile's key 8 * n + lane % 4 * 2 + e, where the warp owns pairs.
  // The parts of the four warps are added in the order of the dims, always.
  DSV4_DEVICE void score(int i, float (&x)[8]) {
    const bf16* columns = tile(i) + (lane % 8 + lane / 16 * 8) * pitch + first_step() * 16 + lane / 8 % 2 * 8;
    float4* mine = parts + warp / kSplit * kOctets * (kSplit - 1) * 64 + lane;
    float own[8];
#pragma unroll
    for (int h = 0; h < 2; h += kPass) {
      float s[kScoreTiles][2 * kPass][4] = {};
      if (kPass == 2 || wanted(i, h)) {
#pragma unroll
        for (int k = 0; k < kSteps; ++k) {
          if (k >= step_count()) continue;
#pragma unroll
          for (int n = 0; n < kPass; ++n) {
            uint32_t r[4];
            ldmatrix_x4(r, columns + (h + n) * 16 * pitch + k * 16);
            const uint32_t low[2] = {r[0], r[1]}, high[2] = {r[2], r[3]};
#pragma unroll
            for (int m = 0; m < kScoreTiles; ++m)
              mma_bf16(s[m][2 * n], q[m][k], low), mma_bf16(s[m][2 * n + 1], q[m][k], high);
          }
        }
      }
#pragma unroll
      for (int octet = 0; octet < kOctets; ++octet) {
        const int e = octet % 2 * 2;
#pragma unroll
        for (int n = 0; n < kPass; ++n) {
          const float(&a)[4] = s[octet / 2][2 * n];
          const float(&b)[4] = s[octet / 2][2 * n + 1];
          if (octet == split()) {
            float* to = own + (h + n) * 4;
            to[0] = a[e], to[1] = a[e + 1], to[2] = b[e], to[3] = b[e + 1];
          } else {
            mine[(octet * (kSplit - 1) + split() - (split() > octet)) * 64 + (h + n) * kWarp] =
                make_float4(a[e], a[e + 1], b[e], b[e + 1]);
          }
        }
      }
    }
    __syncthreads();
    if (!owns_pairs()) return;
#pragma unroll
    for (int w = 0; w < kSplit; ++w) {
      const float4* from = mine + (split() * (kSplit - 1) + w - (w > split())) * 64;
      float y[8];
      if (w == split()) {
#pragma unroll
        for (int e = 0; e < 8; ++e) y[e] = own[e];
      } else {
        const float4 a = from[0], b = from[kWarp];
        y[0] = a.x, y[1] = a.y, y[2] = a.z, y[3] = a.w, y[4] = b.x, y[5] = b.y, y[6] = b.z, y[7] = b.w;
      }
#pragma unroll
      for (int e = 0; e < 8; ++e) x[e] = w ? x[e] + y[e] : y[e];
    }
  }

  // Weights of a tile, rounded to bf16; the softmax divides by the sum of the rounded ones. True if a score that the
  // pair must not see is not finite: the key may hold NaN, and 0 * NaN would reach the pair through the product.
  DSV4_DEVICE bool soften(float (&x)[8], uint32_t seen) {
    const float infinity = __uint_as_float(0x7f800000u);
    float best = top;
    bool poisoned = false;
#pragma unroll
    for (int i = 0; i < 8; ++i) {
      const int key = i / 2 * 8 + lane % 4 * 2 + i % 2;
      const bool visible = seen >> key & 1, finite = fabsf(x[i]) < infinity;
      poisoned |= !visible && !finite;
      x[i] = !visible ? -infinity : finite ? __fmul_rn(x[i], v.scale * kLog2E) : not_a_number();
      best = fmaxf(best, x[i]);
    }
    best = fmaxf(best, __shfl_xor_sync(kAllLanes, best, 1));
    best = fmaxf(best, __shfl_xor_sync(kAllLanes, best, 2));
    const float base = best == -infinity ? 0.f : best, shrink = exp2f(top - base);
    float add = 0;
    uint32_t* to = reinterpret_cast<uint32_t*>(weights + pair() * kPitchP + lane % 4 * 2);
#pragma unroll
    for (int n = 0; n < 4; ++n) {
      const uint32_t w = pack_bf16(exp2f(x[2 * n] - base), exp2f(x[2 * n + 1] - base));
      to[n * 4] = w;
      add += bf16_low(w) + bf16_high(w);
    }
    add += __shfl_xor_sync(kAllLanes, add, 1);
    add += __shfl_xor_sync(kAllLanes, add, 2);
    if (lane % 4 == 0) alpha[pair()] = shrink;
    top = best;
    sum = fmaf(sum, shrink, add);
    return poisoned;
  }

  DSV4_DEVICE void zero_key(bf16* key) const {  // a warp
#pragma unroll 1
    for (int c = lane; c < D / 8; c += kWarp) reinterpret_cast<uint4*>(key)[c] = make_uint4(0, 0, 0, 0);
  }
  static DSV4_DEVICE bool not_finite(uint32_t pair) {
    return (pair & 0x7f80u) == 0x7f80u || (pair & 0x7f800000u) == 0x7f800000u;
  }
  // Zeroes the keys of a tile that hold NaN or infinity. Their scores have been taken, none of them finite: a pair that
  // sees such a key has the weight NaN by now, which makes its result NaN with a zero key too.
  DSV4_DEVICE void clean(bf16* keys) {
    for (int k = warp; k < kKeys; k += kWarps) {
      uint4* row = reinterpret_cast<uint4*>(keys + k * pitch);
      bool bad = false;
      for (int c = lane; c < D / 8; c += kWarp) {
        const uint4 r = row[c];
        bad |= not_finite(r.x) || not_finite(r.y) || not_finite(r.z) || not_finite(r.w);
      }
      if (__any_sync(kAllLanes, bad)) zero_key(keys + k * pitch);
    }
    __syncthreads();
  }

  DSV4_DEVICE void mix(int i) {
    const bf16* values = tile(i);
#pragma unroll
    for (int m = 0; m < kTiles; ++m) {
      const float low = alpha[m * 16 + lane / 4], high = alpha[m * 16 + 8 + lane / 4];
#pragma unroll
      for (int g = 0; g < kGroups; ++g)
#pragma unroll
        for (int n = 0; n < 2; ++n)
          o[m][g][n][0] *= low, o[m][g][n][1] *= low, o[m][g][n][2] *= high, o[m][g][n][3] *= high;
    }
#pragma unroll
    for (int k = 0; k < kKeys / 16; ++k) {
      if (!wanted(i, k)) continue;  // all weights are 0
      uint32_t a[kTiles][4];
#pragma unroll
      for (int m = 0; m < kTiles; ++m) ldmatrix_x4(a[m], weights + m * 16 * kPitchP + k * 16 + block16(kPitchP));
#pragma unroll
      for (int g = 0; g < kGroups; ++g) {
        const int d = (g * kWarps + warp) * 16;
        if (kD == 0 && d >= D) continue;
        uint32_t r[4];
        ldmatrix_x4_trans(r, values + k * 16 * pitch + d + block16(pitch));
        const uint32_t low[2] = {r[0], r[1]}, high[2] = {r[2], r[3]};
#pragma unroll
        for (int m = 0; m < kTiles; ++m) mma_bf16(o[m][g][0], a[m], low), mma_bf16(o[m][g][1], a[m], high);
      }
    }
  }

  // Divides, turns back, rounds once, and leaves the result in shared memory.
  DSV4_DEVICE void round_result() {
    float factor[kTiles][2];
#pragma unroll
    for (int m = 0; m < 2 * kTiles; ++m) factor[m / 2][m % 2] = inverse[m * 8 + lane / 4];
#pragma unroll
    for (int g = 0; g < kGroups; ++g) {
#pragma unroll
      for (int n = 0; n < 2; ++n) {
        const int first = (g * kWarps + warp) * 16 + n * 8, d = first + lane % 4 * 2;
        if (kD == 0 && first >= D) continue;
#pragma unroll
        for (int m = 0; m < 2 * kTiles; ++m) {
          o[m / 2][g][n][m % 2 * 2] *= factor[m / 2][m % 2];
          o[m / 2][g][n][m % 2 * 2 + 1] *= factor[m / 2][m % 2];
        }
        if (first + 8 > D - v.R) turn_back(g, n, d);
#pragma unroll
        for (int m = 0; m < 2 * kTiles; ++m)
          *reinterpret_cast<uint32_t*>(result() + (m * 8 + lane / 4) * pitch + d) =
              pack_bf16(o[m / 2][g][n][m % 2 * 2], o[m / 2][g][n][m % 2 * 2 + 1]);
      }
    }
  }

  // The inverse rotation of dims d and d + 1 in all pairs.
  DSV4_DEVICE void turn_back(int g, int n, int d) {
    const int i = (d - (D - v.R)) / 2;
    if (d < D - v.R) return;
    int64_t have = -1;
    float c = 1, s = 0;
#pragma unroll
    for (int m = 0; m < 2 * kTiles; ++m) {
      const int64_t at = angle_at[m * 8 + lane / 4];
      if (at != have) have = at, c = v.cos_sin[at + i], s = v.cos_sin[at + v.R / 2 + i];  // heads of a row share it
      float &a = o[m / 2][g][n][m % 2 * 2], &b = o[m / 2][g][n][m % 2 * 2 + 1];
      const float turned = fmaf(a, c, b * s);
      b = fmaf(b, c, -(a * s));
      a = turned;
    }
  }
};

}  // namespace dsv4::cuda
