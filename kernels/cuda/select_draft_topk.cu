// SPDX-License-Identifier: Apache-2.0
// select_draft_topk: path scores of the k*k candidates of each request and the k best of them.
// 24 bytes moved a candidate; at the usual k of 1 to 16 a launch's latency is the floor. A block a request.
// Every candidate gets a key of its own, score first and the lower index next, so "the k largest keys" has one answer
// and the order of threads cannot change it. Up to k = 16 (256 candidates) a thread counts the keys above its own;
// beyond, the k-th largest key is found eight bits at a time. Contract: include/dsv4spec/tree.h.
#include "ints.cuh"

namespace dsv4::cuda {
namespace {

constexpr int kMaxCounted = 16;  // k up to which keys are compared all with all: k^4 compares
constexpr int kRadixThreads = 512;

struct Beam {
  Rows<const float> prob, score;
  Rows<const int64_t> token;
  Rows<float> scores_out, cand_scores;
  Rows<int64_t> parents, cand_tokens;
  int64_t *input_ids, *hidden_rows;
  int64_t cand_a;  // stride of cand_scores' middle dimension
  int64_t first_parent;
  int k;

  // Winner `rank` of request b is candidate (a, c) with this score.
  DSV4_DEVICE void keep(int64_t b, int rank, int a, int c, float x) const {
    input_ids[b * k + rank] = token[b * k + a][c];
    hidden_rows[b * k + rank] = b * k + a;
    scores_out[b][rank] = x;
    parents[b][rank] = a * k + c + first_parent;
  }
  DSV4_DEVICE float product(int64_t b, int a, int c) const { return __fmul_rn(score[b][a], prob[b * k + a][c]); }
  DSV4_DEVICE void record(int64_t b, int a, int c, float x) const {
    cand_scores[b][a * cand_a + c] = x;
    cand_tokens[b][a * k + c] = token[b * k + a][c];
  }
};

// 48 bits that order candidates: 32 of the score (NaN as -inf, -0 as 0), 16 that put the lower index first.
DSV4_DEVICE uint64_t key_of(float x, int index) {
  if (x != x) x = __uint_as_float(0xff800000u);
  const uint32_t bits = x == 0.f ? 0u : __float_as_uint(x);
  const uint32_t ordered = bits & 0x80000000u ? ~bits : bits | 0x80000000u;
  return static_cast<uint64_t>(ordered) << 16 | static_cast<uint32_t>(0xffff - index);
}
DSV4_DEVICE int index_of(uint64_t key) { return 0xffff - static_cast<int>(key & 0xffff); }

__global__ void __launch_bounds__(kMaxTreeNodes) first_step_kernel(Beam v) {
  const int64_t b = blockIdx.x;
  if (threadIdx.x == 0) v.parents[b][0] = -1;
  for (int c = threadIdx.x; c < v.k; c += blockDim.x) {
    const float x = v.prob[b][c];
    const int64_t token = v.token[b][c];
    v.input_ids[b * v.k + c] = v.cand_tokens[b][c] = token;
    v.scores_out[b][c] = v.cand_scores[b][c] = x;
    v.hidden_rows[b * v.k + c] = b;
    v.parents[b][c + 1] = c;
  }
}

// A thread a candidate.
__global__ void __launch_bounds__(kMaxCounted * kMaxCounted) count_kernel(Beam v) {
  __shared__ uint64_t keys[kMaxCounted * kMaxCounted];
  const int64_t b = blockIdx.x;
  const int candidates = v.k * v.k, q = threadIdx.x, a = q / v.k, c = q - a * v.k;
  float x = 0;
  uint64_t key = 0;
  if (q < candidates) {
    x = v.product(b, a, c);
    v.record(b, a, c, x);
    keys[q] = key = key_of(x, q);
  }
  __syncthreads();
  if (q >= candidates) return;
  int rank = 0;
#pragma unroll 4
  for (int i = 0; i < candidates; ++i) rank += keys[i] > key;
  if (rank < v.k) v.keep(b, rank, a, c, x);
}

struct Search {
  int bins[256];
  uint64_t prefix;  // the bits of the k-th largest key that are known
  int wanted;       // how many of the keys with these bits are still to be taken
  int there;        // how many there are
  int kept;
  uint64_t chosen[kMaxTreeNodes];
};

// The bin in which the `wanted`-th largest key lies, by one warp of 8 bins a lane.
DSV4_DEVICE void descend(Search& s, int lane) {
  int own = 0;
#pragma unroll
  for (int i = 0; i < 8; ++i) own += s.bins[lane * 8 + i];
  int above = own;  // of this lane's bins and those of higher lanes
#pragma unroll
  for (int o = 1; o < kWarp; o *= 2) {
    const int more = __shfl_down_sync(kAllLanes, above, o);
    if (lane + o < kWarp) above += more;
  }
  const int wanted = s.wanted;
  __syncwarp();
  above -= own;
  if (above >= wanted || above + own < wanted) return;  // not in this lane's bins; true of all lanes but one
  int bin = lane * 8 + 7;
  for (; above + s.bins[bin] < wanted; --bin) above += s.bins[bin];
  s.prefix = s.prefix << 8 | static_cast<uint32_t>(bin);
  s.wanted = wanted - above;
  s.there = s.bins[bin];
}

// A warp a row of candidates.
__global__ void __launch_bounds__(kRadixThreads) radix_kernel(Beam v) {
  __shared__ Search s;
  const int64_t b = blockIdx.x;
  const int k = v.k, warp = threadIdx.x / kWarp, lane = threadIdx.x % kWarp;
  auto for_each = [&](auto&& visit) {
    for (int a = warp; a < k; a += kRadixThreads / kWarp) {
      const float score = v.score[b][a];
      const float* prob = v.prob[b * k + a];
      for (int c = lane; c < k; c += kWarp) visit(a, c, __fmul_rn(score, prob[c]));
    }
  };
  for_each([&](int a, int c, float x) { v.record(b, a, c, x); });
  if (threadIdx.x == 0) s.prefix = 0, s.wanted = k, s.there = k * k, s.kept = 0;

  int shift = 48;  // low bits of the keys that are not known yet
  do {
    shift -= 8;
    for (int i = threadIdx.x; i < 256; i += kRadixThreads) s.bins[i] = 0;
    __syncthreads();
    const uint64_t prefix = s.prefix;
    for_each([&](int a, int c, float x) {
      const uint64_t key = key_of(x, a * k + c);
      if (key >> (shift + 8) == prefix) atomicAdd(&s.bins[key >> shift & 255], 1);
    });
    __syncthreads();
    if (warp == 0) descend(s, lane);
    __syncthreads();
  } while (s.there > s.wanted);  // ends at the latest where all bits are known: keys differ

  const uint64_t prefix = s.prefix;
  for_each([&](int a, int c, float x) {
    const uint64_t key = key_of(x, a * k + c);
    if (key >> shift >= prefix) s.chosen[atomicAdd(&s.kept, 1)] = key;
  });
  __syncthreads();
  for (int i = threadIdx.x; i < k; i += kRadixThreads) {
    const uint64_t key = s.chosen[i];
    int rank = 0;
#pragma unroll 4
    for (int j = 0; j < k; ++j) rank += s.chosen[j] > key;
    const int q = index_of(key), a = q / k, c = q - a * k;
    v.keep(b, rank, a, c, v.product(b, a, c));
  }
}

int32_t launch_op(const SelectDraftTopkParams& p, const Launch& l) {
  const int k = static_cast<int>(p.k);
  const bool first = p.step == 0;
  const Beam v{rows_of<const float>(p.topk_p), {p.scores.at<const float>(), p.scores.stride[0]},
               rows_of<const int64_t>(p.topk_index), rows_of<float>(p.scores_out), rows_of<float>(p.cand_scores),
               rows_of<int64_t>(p.parents), rows_of<int64_t>(p.cand_tokens), p.input_ids.at<int64_t>(),
               p.hidden_rows.at<int64_t>(), p.cand_scores.stride[1], p.k * p.k * (p.step - 1) + p.k, k};
  const int warps = static_cast<int>(ceil_div(first ? k : k * k, kWarp));
  const unsigned blocks = static_cast<unsigned>(p.B);
  if (first) return status_of(l, launch(first_step_kernel, blocks, warps * kWarp, 0, stream_of(l), v));
  if (k <= kMaxCounted) return status_of(l, launch(count_kernel, blocks, warps * kWarp, 0, stream_of(l), v));
  return status_of(l, launch(radix_kernel, blocks, kRadixThreads, 0, stream_of(l), v));
}

}  // namespace
DSV4_CUDA_KERNEL(select_draft_topk, SelectDraftTopkParams, launch_op)
}  // namespace dsv4::cuda
