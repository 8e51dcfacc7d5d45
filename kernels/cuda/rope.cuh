// SPDX-License-Identifier: Apache-2.0
// What q_norm_rope and swa_store_kv share: a row in the registers of a warp, its norm's factor, and the rotation of
// its trailing dims.
#pragma once
#include "kernel.cuh"

namespace dsv4::cuda {

constexpr int kMaxHeadSize = 512;

// Element i of lane l's part p is row element (p * 32 + l) * kVector + i: a part is one 16-byte access a lane.
template <class T>
struct WarpRow {
  static constexpr int kVector = 16 / sizeof(T);
  static constexpr int kParts = kMaxHeadSize / (kVector * kWarp);
  static constexpr int kPairs = kVector / 2;

  float x[kParts][kVector];
  float cos[kParts][kPairs], sin[kParts][kPairs];  // only where dims are rotated
  int D, R, lane;

  DSV4_DEVICE WarpRow(int head_size, int rotated) : D(head_size), R(rotated), lane(threadIdx.x % kWarp) {}
  DSV4_DEVICE int at(int part) const { return (part * kWarp + lane) * kVector; }
  DSV4_DEVICE int pair(int part, int k) const { return (at(part) - (D - R)) / 2 + k; }  // negative: not rotated
  DSV4_DEVICE bool turned(int part) const { return at(part) < D && at(part) + kVector > D - R; }

  DSV4_DEVICE void load(const T* row, bool vector) {
#pragma unroll
    for (int p = 0; p < kParts; ++p) {
      if (at(p) >= D) {
#pragma unroll
        for (int i = 0; i < kVector; ++i) x[p][i] = 0;
      } else if (vector) {
        load_vector(x[p], row + at(p));
      } else {
#pragma unroll
        for (int i = 0; i < kVector; ++i) x[p][i] = to_float(row[at(p) + i]);
      }
    }
  }

  // `angles`: R/2 cosines, then R/2 sines. `vector`: rows are 16-byte aligned and R is a multiple of 8.
  DSV4_DEVICE void load_angles(const float* angles, bool vector) {
#pragma unroll
    for (int p = 0; p < kParts; ++p) {
      if (!turned(p)) continue;
      if (vector) {
        load_pairs(cos[p], angles + pair(p, 0));
        load_pairs(sin[p], angles + R / 2 + pair(p, 0));
      } else {
#pragma unroll
        for (int k = 0; k < kPairs; ++k) {
          if (pair(p, k) < 0) continue;
          cos[p][k] = angles[pair(p, k)];
          sin[p][k] = angles[R / 2 + pair(p, k)];
        }
      }
    }
  }

  // 1 / sqrt(mean(x^2) + eps), in every lane.
  DSV4_DEVICE float rms_factor(float eps) const {
    float sum = 0;
#pragma unroll
    for (int p = 0; p < kParts; ++p)
#pragma unroll
      for (int i = 0; i < kVector; ++i) sum += x[p][i] * x[p][i];
    return 1.0f / sqrtf(warp_sum(sum) / static_cast<float>(D) + eps);
  }

  DSV4_DEVICE void turn() {
#pragma unroll
    for (int p = 0; p < kParts; ++p) {
      if (!turned(p)) continue;
#pragma unroll
      for (int k = 0; k < kPairs; ++k) {
        if (pair(p, k) < 0) continue;
        const float a = x[p][2 * k], b = x[p][2 * k + 1];
        x[p][2 * k] = a * cos[p][k] - b * sin[p][k];
        x[p][2 * k + 1] = a * sin[p][k] + b * cos[p][k];
      }
    }
  }

  DSV4_DEVICE void store(T* row, bool vector) const {
#pragma unroll
    for (int p = 0; p < kParts; ++p) {
      if (at(p) >= D) continue;
      if (vector) {
        store_vector(row + at(p), x[p]);
      } else {
#pragma unroll
        for (int i = 0; i < kVector; ++i) row[at(p) + i] = from_float<T>(x[p][i]);
      }
    }
  }

 private:
  static DSV4_DEVICE void load_vector(float (&v)[8], const bf16* p) { load8(v, p); }
  static DSV4_DEVICE void load_vector(float (&v)[4], const float* p) {
    const float4 a = *reinterpret_cast<const float4*>(p);
    v[0] = a.x, v[1] = a.y, v[2] = a.z, v[3] = a.w;
  }
  static DSV4_DEVICE void store_vector(bf16* p, const float (&v)[8]) { store8(p, v); }
  static DSV4_DEVICE void store_vector(float* p, const float (&v)[4]) {
    *reinterpret_cast<float4*>(p) = make_float4(v[0], v[1], v[2], v[3]);
  }
  static DSV4_DEVICE void load_pairs(float (&v)[4], const float* p) { load_vector(v, p); }
  static DSV4_DEVICE void load_pairs(float (&v)[2], const float* p) {
    const float2 a = *reinterpret_cast<const float2*>(p);
    v[0] = a.x, v[1] = a.y;
  }
};

inline bool vector_angles(const TensorView& cos_sin, int64_t R) {
  return aligned16(cos_sin, sizeof(float)) && R % 8 == 0;
}

}  // namespace dsv4::cuda
