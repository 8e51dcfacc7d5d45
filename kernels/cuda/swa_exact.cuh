// SPDX-License-Identifier: Apache-2.0
// swa_paged_attention in fp32 throughout: the exact, untuned path. A block holds 16 (query row, head) pairs of one
// request against tiles of 32 keys; eight threads take the scores of a pair, and a thread takes up to four dims of all
// pairs for the weighted sum. Keys that a pair does not see are skipped, not multiplied by 0.
#pragma once
#include "swa_request.cuh"

namespace dsv4::cuda {

struct SwaExact {
  static constexpr int kM = 16, kPairs = kM, kThreads = 128;
  static constexpr int kMine = kKeys / (kThreads / kM);  // keys of a thread: c, c + 8, c + 16, c + 24
  static constexpr int kColumns = 512 / (2 * kThreads);  // pairs of dims of a thread

  static constexpr size_t bytes(int D) {
    return ((kM + kKeys) * (D + 4) + kKeys * kM + 2 * kM) * sizeof(float) + (2 * kM + kKeys) * sizeof(int64_t) +
           sizeof(Work) + sizeof(uint32_t);
  }

  const SwaView& v;
  const int D, pitch, thread;
  float *q, *kv, *weights;            // shared: [kM][pitch], [kKeys][pitch], [kKeys][kM]
  float *alpha, *total;               // [kM]
  int64_t *q_at, *angle_at, *key_at;  // [kM], [kM], [kKeys]
  Work* work;
  uint32_t* usable;
  float o[kColumns][kM][2];
  float top, sum;

  DSV4_DEVICE SwaExact(const SwaView& view, unsigned char* memory)
      : v(view), D(view.D), pitch(D + 4), thread(threadIdx.x) {
    q = reinterpret_cast<float*>(memory);
    kv = q + kM * pitch;
    weights = kv + kKeys * pitch;
    alpha = weights + kKeys * kM;
    total = alpha + kM;
    q_at = reinterpret_cast<int64_t*>(total + kM);
    angle_at = q_at + kM;
    key_at = angle_at + kM;
    work = reinterpret_cast<Work*>(key_at + kKeys);
    usable = reinterpret_cast<uint32_t*>(work + 1);
  }

  DSV4_DEVICE int pair() const { return thread / 8; }
  DSV4_DEVICE int key(int i) const { return thread % 8 + i * 8; }

  DSV4_DEVICE void begin() {
    top = -__uint_as_float(0x7f800000u), sum = 0;
#pragma unroll
    for (auto& column : o)
#pragma unroll
      for (auto& m : column) m[0] = 0, m[1] = 0;
  }

  DSV4_DEVICE void score(float (&x)[kMine]) const {
    float4 s[kMine] = {};
    for (int d = 0; d < D; d += 4) {
      const float4 a = *reinterpret_cast<const float4*>(q + pair() * pitch + d);
#pragma unroll
      for (int i = 0; i < kMine; ++i) {
        const float4 b = *reinterpret_cast<const float4*>(kv + key(i) * pitch + d);
        s[i].x += a.x * b.x, s[i].y += a.y * b.y, s[i].z += a.z * b.z, s[i].w += a.w * b.w;
      }
    }
#pragma unroll
    for (int i = 0; i < kMine; ++i) x[i] = (s[i].x + s[i].y) + (s[i].z + s[i].w);
  }

  DSV4_DEVICE void soften(float (&x)[kMine], uint32_t seen) {
    const float infinity = __uint_as_float(0x7f800000u);
    float best = top, add = 0;
#pragma unroll
    for (int i = 0; i < kMine; ++i) {
      const bool visible = seen >> key(i) & 1, finite = fabsf(x[i]) < infinity;
      x[i] = !visible ? -infinity : finite ? x[i] * v.scale : not_a_number();
      best = fmaxf(best, x[i]);
    }
#pragma unroll
    for (int lanes = 1; lanes < 8; lanes *= 2) best = fmaxf(best, __shfl_xor_sync(kAllLanes, best, lanes));
    const float base = best == -infinity ? 0.f : best, shrink = expf(top - base);
#pragma unroll
    for (int i = 0; i < kMine; ++i) {
      const float w = seen >> key(i) & 1 ? expf(x[i] - base) : 0.f;
      weights[key(i) * kM + pair()] = w;
      add += w;
    }
#pragma unroll
    for (int lanes = 1; lanes < 8; lanes *= 2) add += __shfl_xor_sync(kAllLanes, add, lanes);
    if (thread % 8 == 0) alpha[pair()] = shrink;
    top = best;
    sum = sum * shrink + add;
  }

  DSV4_DEVICE void mix() {
#pragma unroll
    for (int c = 0; c < kColumns; ++c) {
      const int d = 2 * (thread + c * kThreads);
      if (d >= D) continue;
#pragma unroll
      for (int m = 0; m < kM; ++m) o[c][m][0] *= alpha[m], o[c][m][1] *= alpha[m];
      for (int k = 0; k < kKeys; ++k) {
        const float2 x = *reinterpret_cast<const float2*>(kv + k * pitch + d);
#pragma unroll
        for (int m = 0; m < kM; ++m) {
          const float w = weights[k * kM + m];
          if (w != 0) o[c][m][0] += w * x.x, o[c][m][1] += w * x.y;
        }
      }
    }
  }

  DSV4_DEVICE void write_result() const {
#pragma unroll
    for (int c = 0; c < kColumns; ++c) {
      const int d = 2 * (thread + c * kThreads), i = (d - (D - v.R)) / 2;
      if (d >= D) continue;
#pragma unroll
      for (int m = 0; m < kM; ++m) {
        if (m >= work->pairs) continue;
        float a = o[c][m][0] / total[m], b = o[c][m][1] / total[m];
        if (d >= D - v.R) {
          const float cos = v.cos_sin[angle_at[m] + i], sin = v.cos_sin[angle_at[m] + v.R / 2 + i];
          const float turned = a * cos + b * sin;
          b = b * cos - a * sin;
          a = turned;
        }
        float* to = result_at<float>(v, *work, m) + d;
        if (v.vector_out) *reinterpret_cast<float2*>(to) = make_float2(a, b);
        else to[0] = a, to[1] = b;
      }
    }
  }
};

// One tile of keys after the other, each loaded and used.
DSV4_DEVICE void attend(SwaExact& b, const SwaView& v) {
  constexpr int kM = SwaExact::kM, kThreads = SwaExact::kThreads;
  const Segment& g = b.work->segment;
  const KeyRange& keys = b.work->keys;
  const int pairs = b.work->pairs, thread = b.thread;
  if (thread < kM) b.q_at[thread] = thread < pairs ? query_at(v, *b.work, thread) : -1, b.angle_at[thread] = 0;
  __syncthreads();
  load_rows<float, kThreads>(b.q, b.pitch, v.q, b.q_at, kM, b.D, v.vector_q);
  cp_async_commit();  // whether or not a tile follows
  Sight sight;
  if (b.pair() < pairs) {
    int64_t angle_at;
    sight = sight_of(v, g, keys, b.work->row(v, b.pair()), &angle_at);
    if (thread % 8 == 0) b.angle_at[b.pair()] = angle_at;
  }
  b.begin();

  for (int i = 0; i < keys.tiles; ++i) {
    if (thread < kKeys) {
      const int64_t offset = offset_of(v, g, keys, i * kKeys + thread);
      b.key_at[thread] = offset;
      const uint32_t bits = __ballot_sync(kAllLanes, offset >= 0);
      if (thread == 0) *b.usable = bits;
    }
    __syncthreads();
    load_rows<float, kThreads>(b.kv, b.pitch, v.kv, b.key_at, kKeys, b.D, v.vector_kv);
    cp_async_commit();
    cp_async_wait<0>();
    __syncthreads();
    float scores[SwaExact::kMine];
    b.score(scores);
    b.soften(scores, seen(v, g, keys, sight, i * kKeys, *b.usable & 0x01010101u << thread % 8));
    __syncthreads();
    b.mix();
    __syncthreads();
  }

  if (thread % 8 == 0) {
    const int m = b.pair();
    const float weight = v.sink != nullptr && m < pairs ? expf(v.sink[b.work->head(v, m)] - b.top) : 0.f;
    b.total[m] = b.sum == 0 ? __uint_as_float(0x7f800000u) : b.sum + weight;  // no visible key: 0 / infinity
  }
  cp_async_wait<0>();
  __syncthreads();
  b.write_result();
}

}  // namespace dsv4::cuda
