// SPDX-License-Identifier: Apache-2.0
// What q_norm_rope and swa_store_kv share: a row in the registers of a warp, its norm's factor, and the rotation of
// its trailing dims.
#pragma once
#include "kernel.cuh"

namespace dsv4::cuda {

constexpr int kMaxHeadSize = 512;

// Which row elements a lane holds: element i of lane l's part p is (p * 32 + l) * kVector + i, so that a part is one
// 16-byte access a lane.
template <class T>
struct WarpPlace {
  static constexpr int kVector = 16 / sizeof(T);
  static constexpr int kParts = kMaxHeadSize / (kVector * kWarp);
  static constexpr int kPairs = kVector / 2;

  int D, R, lane;
  DSV4_DEVICE WarpPlace(int head_size, int rotated) : D(head_size), R(rotated), lane(threadIdx.x % kWarp) {}
  DSV4_DEVICE int at(int part) const { return (part * kWarp + lane) * kVector; }
  DSV4_DEVICE int pair(int part, int k) const { return (at(part) - (D - R)) / 2 + k; }  // negative: not rotated
  DSV4_DEVICE bool turned(int part) const { return at(part) < D && at(part) + kVector > D - R; }
};

// The angles of a lane's elements, where they are rotated.
template <class T>
struct WarpAngles {
  using Place = WarpPlace<T>;
  float cos[Place::kParts][Place::kPairs], sin[Place::kParts][Place::kPairs];

  // `angles`: R/2 cosines, then R/2 sines. `vector`: rows are 16-byte aligned and R is a multiple of 8.
  DSV4_DEVICE void load(const Place& place, const float* angles, bool vector) {
#pragma unroll
    for (int p = 0; p < Place::kParts; ++p) {
      if (!place.turned(p)) continue;
      if (vector) {
        load_pairs(cos[p], angles + place.pair(p, 0));
        load_pairs(sin[p], angles + place.R / 2 + place.pair(p, 0));
      } else {
#pragma unroll
        for (int k = 0; k < Place::kPairs; ++k) {
          if (place.pair(p, k) < 0) continue;
          cos[p][k] = angles[place.pair(p, k)];
          sin[p][k] = angles[place.R / 2 + place.pair(p, k)];
        }
      }
    }
  }

 private:
  static DSV4_DEVICE void load_pairs(float (&v)[4], const float* p) {
    const float4 a = *reinterpret_cast<const float4*>(p);
    v[0] = a.x, v[1] = a.y, v[2] = a.z, v[3] = a.w;
  }
  static DSV4_DEVICE void load_pairs(float (&v)[2], const float* p) {
    const float2 a = *reinterpret_cast<const float2*>(p);
    v[0] = a.x, v[1] = a.y;
  }
};

template <class T>
struct WarpRow {
  using Place = WarpPlace<T>;
  float x[Place::kParts][Place::kVector];

  DSV4_DEVICE void zero() {
#pragma unroll
    for (auto& part : x)
#pragma unroll
      for (float& e : part) e = 0;
  }

  DSV4_DEVICE void load(const Place& place, const T* row, bool vector) {
    zero();
#pragma unroll
    for (int p = 0; p < Place::kParts; ++p) {
      if (place.at(p) >= place.D) continue;
      if (vector) {
        load_vector(x[p], row + place.at(p));
      } else {
#pragma unroll
        for (int i = 0; i < Place::kVector; ++i) x[p][i] = to_float(row[place.at(p) + i]);
      }
    }
  }

  // 1 / sqrt(mean(x^2) + eps), in every lane.
  DSV4_DEVICE float rms_factor(const Place& place, float eps) const {
    float sum = 0;
#pragma unroll
    for (const auto& part : x)
#pragma unroll
      for (const float e : part) sum += e * e;
    return 1.0f / sqrtf(warp_sum(sum) / static_cast<float>(place.D) + eps);
  }

  DSV4_DEVICE void turn(const Place& place, const WarpAngles<T>& angles) {
#pragma unroll
    for (int p = 0; p < Place::kParts; ++p) {
      if (!place.turned(p)) continue;
#pragma unroll
      for (int k = 0; k < Place::kPairs; ++k) {
        if (place.pair(p, k) < 0) continue;
        const float a = x[p][2 * k], b = x[p][2 * k + 1], cos = angles.cos[p][k], sin = angles.sin[p][k];
        x[p][2 * k] = a * cos - b * sin;
        x[p][2 * k + 1] = a * sin + b * cos;
      }
    }
  }

  DSV4_DEVICE void store(const Place& place, T* row, bool vector) const {
#pragma unroll
    for (int p = 0; p < Place::kParts; ++p) {
      if (place.at(p) >= place.D) continue;
      if (vector) {
        store_vector(row + place.at(p), x[p]);
      } else {
#pragma unroll
        for (int i = 0; i < Place::kVector; ++i) row[place.at(p) + i] = from_float<T>(x[p][i]);
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
};

inline bool vector_angles(const TensorView& cos_sin, int64_t R) {
  return aligned16(cos_sin, sizeof(float)) && R % 8 == 0;
}

}  // namespace dsv4::cuda
