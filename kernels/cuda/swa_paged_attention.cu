// SPDX-License-Identifier: Apache-2.0
// swa_paged_attention: out = sum_k exp(x_k) K_k / (exp(sink) + sum_k exp(x_k)),  x_k = scale * q . K_k
// Query rows x heads of a request make the M side of tensor-core tiles (swa_tiles_bf16.cuh), whatever the rows are:
// decode, verify with or without a tree, extend, prefill. One launch, no workspace, no split over keys. A block holds
// 64 (row, head) pairs at D = 512, as many as the registers of a multiprocessor have room for; few rows are cut into
// blocks of 16 pairs instead, so that more of the chip takes part, and other D always. fp32: swa_exact.cuh.
//
// Up to 16 blocks work on a unit of rows: a request's, or, of more than 16 blocks' worth, an even part. On sm_90 and
// newer they are a cluster, and a key is read once for all of them (swa_copies.cuh). Where there are no clusters, where
// rows of keys do not lie on 16 bytes, and for units that turn out to have rows of several requests, each block reads
// the keys of its own rows, which memory has to give once and the L2 once a block. The bits are the same.
//
// Bytes a request: 2 * D * (keys + 2 * rows * H) in bf16; beyond 16 rows of 64 heads, the window's keys once more every
// 16 rows (6 % of the bytes). Flops: 4 * D * H * rows * keys. Flash (H 64, D 512, 128 keys), floor at 4.8 TB/s and
// 989 TFLOP/s (H200), bound by memory throughout:
//   decode B = 1     0.25 MiB   17 MFLOP   0.05 us: costs a launch and one pass of latencies
//          B = 64      16 MiB  1.1 GFLOP   3.5 us
//          B = 512    128 MiB  8.6 GFLOP    28 us
//   verify of 4 rows, B = 64    40 MiB  4.3 GFLOP  8.8 us
// Shared memory at D = 512: 64 pairs 166,832 bytes (4 tiles of keys), 16 pairs 143,216, fp32 101,876. Registers:
// all 255 for 64 pairs, up to 254 for 16, no spills. Contract: include/dsv4spec/attention.h.
#include <algorithm>

#include "cluster.cuh"
#include "swa_copies.cuh"
#include "swa_exact.cuh"

namespace dsv4::cuda {
namespace {

// What the tiles of keys need to know of a segment.
template <class Block>
DSV4_DEVICE void prepare(Block& b, const SwaView& v) {
  const Work& work = *b.work;
  for (int m = threadIdx.x; m < Block::kPairs; m += Block::kThreads) {
    b.q_at[m] = m < work.pairs ? query_at(v, work, m) : -1;
    int64_t angle_at = 0;
    Sight sight;
    if (m < work.pairs) sight = sight_of(v, work.segment, work.keys, work.row(v, m), &angle_at);
    b.sights[m] = sight, b.angle_at[m] = angle_at;
  }
  for (int i = b.warp; i < Block::kSlots; i += Block::kWarps) b.set_keys(i);
  __syncthreads();
}

// Works through the tiles of keys that the rows of a segment see.
template <int kM, int kStages, int kD>
DSV4_DEVICE void attend(SwaCopies<kM, kStages, kD>& b, const SwaView& v) {
  using Block = SwaCopies<kM, kStages, kD>;
  const Work& work = *b.work;
  prepare(b, v);
  b.start();
  b.begin();
  const int tiles = work.keys.tiles;
  for (int i = 0; i < tiles; ++i) {
    b.await(i);
    float scores[8];
    b.score(i, scores);  // a barrier is in it
    bool poisoned = false;
    if (b.owns_pairs()) {
      const int m = b.pair();
      const uint32_t mine = b.usable[i % Block::kSlots] & b.my_keys();
      poisoned = b.soften(scores, seen(v, work.segment, work.keys, b.sights[m], i * kKeys, mine));
    }
    b.refill(i);
    if (__syncthreads_or(poisoned)) b.clean(b.tile(i));
    b.mix(i);
    b.release(i);
  }

  if (b.owns_pairs() && b.lane % 4 == 0) {
    const int m = b.pair();
    float total = b.sum;
    if (v.sink != nullptr && m < work.pairs) total += exp2f(fmaf(v.sink[work.head(v, m)], kLog2E, -b.top));
    b.inverse[m] = b.sum == 0 ? 0.f : 1 / total;  // no visible key: 0
  }
  b.finish();
  __syncthreads();
  b.round_result();
  __syncthreads();
  for (int i = threadIdx.x; i < work.pairs * (b.D / 8); i += Block::kThreads) {
    const int m = i / (b.D / 8), d = i % (b.D / 8) * 8;
    const bf16* from = b.result() + m * b.pitch + d;
    bf16* to = result_at<bf16>(v, work, m) + d;
    if (v.vector_out) {
      *reinterpret_cast<uint4*>(to) = *reinterpret_cast<const uint4*>(from);
    } else {
#pragma unroll
      for (int e = 0; e < 8; ++e) to[e] = from[e];
    }
  }
  b.leave();
}

template <class Block, class T>
DSV4_DEVICE void attend_all(const SwaView& v) {
  DYN_SMEM(unsigned char, memory);
  Block block(v, memory);
  begin_work(v, block.work, Block::kPairs);
  while (block.work->t < block.work->end) {
    if (!next_segment(v, block.work)) cluster_wait();  // that this block runs is all that the others needed to know
    else if (block.work->segment.b >= 0) attend(block, v);
    else if (v.zero_padding) zero_rows<T, Block::kThreads>(v, *block.work);
  }
}

template <int kM, int kStages, int kD>
__global__ void __launch_bounds__(SwaCopies<kM, kStages, kD>::kThreads, 1)
    swa_paged_attention_bf16_kernel(const __grid_constant__ SwaView v) {
  attend_all<SwaCopies<kM, kStages, kD>, bf16>(v);
}
__global__ void __launch_bounds__(SwaExact::kThreads, 2)
    swa_paged_attention_f32_kernel(const __grid_constant__ SwaView v) {
  attend_all<SwaExact, float>(v);
}

Integers integers(const TensorView& t) { return {t.data, t.stride[0], t.ndim > 1 ? t.stride[1] : 0, t.dtype == kI64}; }

SwaView view_of(const SwaPagedAttentionParams& p) {
  const size_t size = p.q.dtype == kBF16 ? sizeof(bf16) : sizeof(float);
  SwaView v{};
  v.q = p.q.data, v.kv = p.kv_pages.data, v.out = p.out.data;
  v.sink = p.sink.at<float>(), v.cos_sin = p.cos_sin.at<float>(), v.mask = p.tree_mask.at<uint8_t>();
  v.table = integers(p.block_table), v.starts = integers(p.query_start_loc), v.lens = integers(p.seq_lens);
  v.q_t = p.q.stride[0], v.q_h = p.q.stride[1];
  v.kv_page = p.kv_pages.stride[0], v.kv_slot = p.kv_pages.stride[1];
  v.out_t = p.out.stride[0], v.out_h = p.out.stride[1];
  v.mask_b = p.tree_mask.stride[0], v.mask_j = p.tree_mask.stride[1];
  v.angle_row = p.cos_sin.stride[0];
  v.T = p.T, v.B = p.B, v.P = p.P, v.page = p.page, v.maxp = p.maxp, v.window = p.window, v.max_pos = p.max_pos;
  v.H = static_cast<int>(p.H), v.D = static_cast<int>(p.D), v.n = static_cast<int>(p.n);
  v.R = p.max_pos > 0 ? static_cast<int>(p.R) : 0;
  v.scale = p.scale, v.zero_padding = p.zero_padding;
  v.vector_q = aligned16(p.q, size), v.vector_kv = aligned16(p.kv_pages, size), v.vector_out = aligned16(p.out, size);
  return v;
}

constexpr unsigned kMostBlocks = 16;  // of a cluster

// Cuts rows into units: those that a request has on average, or an even part of them where they are more pairs than
// `blocks` blocks hold. A unit that lies in one request has its keys read once.
dim3 cut(SwaView& v, int pairs, unsigned blocks = kMostBlocks) {
  const int64_t average = v.B > 0 ? ceil_div(v.T, v.B) : 1, most = std::max<int64_t>(blocks * pairs / v.H, 1);
  const int64_t least = ceil_div(average, most);
  int64_t parts = least;
  while (average % parts && parts < 2 * least) ++parts;
  v.unit_rows = static_cast<int>(ceil_div(average, average % parts ? least : parts));
  v.unit_blocks = ceil_div(v.unit_rows * v.H, pairs);
  return dim3(static_cast<unsigned>(ceil_div<int64_t>(v.T, v.unit_rows) * v.unit_blocks));
}

template <int kM, int kStages, int kD>
struct Plan {
  using Block = SwaCopies<kM, kStages, kD>;
  static_assert(Block::bytes(512) <= 163 * 1024, "sm_80 has 163 KiB of shared memory a block");
  SwaView v;
  dim3 grid;
  int clusters = 0;  // that the device holds at a time; 0: none for this call

  static constexpr auto kKernel = &swa_paged_attention_bf16_kernel<kM, kStages, kD>;

  explicit Plan(const SwaView& view) : v(view) {
    static KnownClusters known;
    for (unsigned most = kMostBlocks;; most = kPortable) {
      grid = cut(v, kM, most);
      const unsigned blocks = static_cast<unsigned>(v.unit_blocks);
      if (v.vector_kv && blocks > 1 && blocks <= most)
        clusters = clusters_at_once(known, reinterpret_cast<const void*>(kKernel), blocks, Block::kThreads,
                                    Block::bytes(kD ? kD : 512));
      if (clusters > 0 || most == kPortable || blocks <= kPortable) break;
    }
    v.clusters = clusters > 0;
  }
  bool at_once() const { return grid.x <= static_cast<unsigned>(clusters * v.unit_blocks); }
  cudaError_t run(cudaStream_t stream) const {
    if (v.clusters)
      return launch_clusters(kKernel, static_cast<unsigned>(v.unit_blocks), grid, Block::kThreads, Block::bytes(v.D),
                             stream, v);
    return launch(kKernel, grid, Block::kThreads, Block::bytes(v.D), stream, v);
  }
};

// As many blocks of 16 pairs as this still find a multiprocessor each; beyond it, 64 pairs share the reads of a key.
// A pair's result is the same either way, bit for bit.
constexpr unsigned kFewBlocks = 160;

cudaError_t run_flash(const SwaView& v, cudaStream_t stream) {
  const Plan<16, 4, 512> small(v);
  const Plan<64, 4, 512> large(v);
  bool few = small.grid.x <= kFewBlocks;
  if (small.v.clusters) few &= small.at_once() && small.v.unit_rows >= large.v.unit_rows;
  return few ? small.run(stream) : large.run(stream);
}

int32_t launch_op(const SwaPagedAttentionParams& p, const Launch& l) {
  SwaView v = view_of(p);
  const cudaStream_t stream = stream_of(l);
  if (p.q.dtype == kF32) {
    const dim3 grid = cut(v, SwaExact::kPairs);
    return status_of(l, launch(&swa_paged_attention_f32_kernel, grid, SwaExact::kThreads, SwaExact::bytes(v.D),
                               stream, v));
  }
  return status_of(l, v.D == 512 ? run_flash(v, stream) : Plan<16, 4, 0>(v).run(stream));
}

}  // namespace
DSV4_CUDA_KERNEL(swa_paged_attention, SwaPagedAttentionParams, launch_op)
}  // namespace dsv4::cuda
