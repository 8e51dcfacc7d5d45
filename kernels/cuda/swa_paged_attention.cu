// SPDX-License-Identifier: Apache-2.0
// swa_paged_attention: out = sum_k exp(x_k) K_k / (exp(sink) + sum_k exp(x_k)),  x_k = scale * q . K_k
// Query rows x heads of a request make the M side of tensor-core tiles (swa_tiles_bf16.cuh), whatever the rows are:
// decode, verify with or without a tree, extend, prefill. One launch, no workspace, no split over keys. A block holds
// 64 (row, head) pairs at D = 512, as many as the registers of a multiprocessor have room for, and reads each key once
// for all of them; few rows are cut into blocks of 16 pairs instead, so that more of the chip takes part, and other D
// always. fp32: swa_exact.cuh.
//
// Four rows of 64 heads are 256 pairs, whose sums are 512 KB in fp32: twice the registers of a multiprocessor. So the
// blocks of a request share its keys through the L2, which has them from memory once. Blocks of a cluster that handed
// tiles on through each other's shared memory would move the same bytes between multiprocessors instead.
//
// Bytes a request: 2 * D * (keys + 2 * rows * H) in bf16, if the keys are read from memory once; blocks of one request
// beyond the first read them from L2. Flops: 4 * D * H * rows * keys. Flash (H 64, D 512, 128 keys), floor at
// 4.8 TB/s and 989 TFLOP/s (H200), bound by memory throughout:
//   decode B = 1     0.25 MiB   17 MFLOP   0.05 us: costs a launch and one pass of latencies
//          B = 64      16 MiB  1.1 GFLOP   3.5 us
//          B = 512    128 MiB  8.6 GFLOP    28 us
//   verify of 4 rows, B = 64    40 MiB  4.3 GFLOP  8.8 us; keys from L2: 4 * 128 KiB a request
// Shared memory at D = 512: 64 pairs 166,520 bytes (4 tiles of keys), 16 pairs 143,096, fp32 101,852. Registers:
// all 255 for 64 pairs, up to 254 for 16, no spills. Contract: include/dsv4spec/attention.h.
#include "swa_exact.cuh"
#include "swa_tiles_bf16.cuh"

namespace dsv4::cuda {
namespace {

// What the tiles of keys need to know of a segment; its queries and first tiles are on their way afterwards.
template <int kM, int kStages, int kD>
DSV4_DEVICE void prepare(SwaTiles<kM, kStages, kD>& b, const SwaView& v) {
  using Tiles = SwaTiles<kM, kStages, kD>;
  const Segment& g = b.work->segment;
  const int heads = b.work->heads, pairs = g.rows * heads;
  for (int m = threadIdx.x; m < kM; m += Tiles::kThreads) {
    b.q_at[m] = m < pairs ? (g.t + m / heads) * v.q_t + (b.work->h0 + m % heads) * v.q_h : -1;
    int64_t angle_at = 0;
    Sight sight;
    if (m < pairs) sight = sight_of(v, g, b.work->keys, m / heads, &angle_at);
    b.sights[m] = sight, b.angle_at[m] = angle_at;
  }
  for (int i = b.warp; i < Tiles::kSlots; i += Tiles::kWarps) b.set_keys(i);
  __syncthreads();
  load_rows<bf16, Tiles::kThreads>(b.queries(), b.pitch, v.q, b.q_at, kM, b.D, v.vector_q);
#pragma unroll
  for (int i = 0; i < kStages - 1; ++i) {
    if (i == Tiles::kFree) b.template read_queries<Tiles::kFree - 1>();  // they came with tile 0, and free their stages
    if (i < b.work->keys.tiles) b.load_tile(i);
    cp_async_commit();
  }
  if (Tiles::kFree >= kStages - 1) b.template read_queries<kStages - 2>();
}

// Works through the tiles of keys that the rows of a segment see, loads running kStages - 1 tiles ahead.
template <int kM, int kStages, int kD>
DSV4_DEVICE void attend(SwaTiles<kM, kStages, kD>& b, const SwaView& v) {
  using Tiles = SwaTiles<kM, kStages, kD>;
  prepare(b, v);
  b.begin();
  const int tiles = b.work->keys.tiles;
  for (int i = 0; i < tiles; ++i) {
    cp_async_wait<kStages - 2>();
    __syncthreads();  // tile i is here, and every warp is done with tile i - 1
    if (i + kStages - 1 < tiles) b.load_tile(i + kStages - 1);
    cp_async_commit();
    if (b.warp == Tiles::kWarps - 1 && i > 0 && i + Tiles::kSlots - 1 < tiles) b.set_keys(i + Tiles::kSlots - 1);
    float scores[8];
    b.score(i, scores);
    bool poisoned = false;
    if (b.owns_pairs()) {
      const int m = b.pair(), row = m / b.work->heads;
      const uint32_t mine = b.usable[i % Tiles::kSlots] & b.my_keys();
      poisoned = b.soften(scores, seen(v, b.work->segment, b.work->keys, b.sights[m], row, i * kKeys, mine));
    }
    if (__syncthreads_or(poisoned)) b.clean(b.tile(i));
    b.mix(i);
  }

  const int h0 = b.work->h0, heads = b.work->heads, pairs = b.work->segment.rows * heads;
  if (b.owns_pairs() && b.lane % 4 == 0) {
    const int m = b.pair();
    float total = b.sum;
    if (v.sink != nullptr && m < pairs) total += exp2f(fmaf(v.sink[h0 + m % heads], kLog2E, -b.top));
    b.inverse[m] = b.sum == 0 ? 0.f : 1 / total;  // no visible key: 0
  }
  cp_async_wait<0>();
  __syncthreads();
  b.round_result();
  __syncthreads();
  const int64_t t = b.work->segment.t;
  for (int i = threadIdx.x; i < pairs * (b.D / 8); i += Tiles::kThreads) {
    const int m = i / (b.D / 8), d = i % (b.D / 8) * 8;
    const bf16* from = b.result() + m * b.pitch + d;
    bf16* to = static_cast<bf16*>(v.out) + (t + m / heads) * v.out_t + (h0 + m % heads) * v.out_h + d;
    if (v.vector_out) {
      *reinterpret_cast<uint4*>(to) = *reinterpret_cast<const uint4*>(from);
    } else {
#pragma unroll
      for (int e = 0; e < 8; ++e) to[e] = from[e];
    }
  }
}

template <class Block, class T>
DSV4_DEVICE void attend_all(const SwaView& v) {
  DYN_SMEM(unsigned char, memory);
  Block block(v, memory);
  begin_work(v, block.work);
  while (block.work->t < block.work->end) {
    next_segment(v, block.work);
    if (block.work->segment.b >= 0) attend(block, v);
    else if (v.zero_padding) zero_rows<T, Block::kThreads>(v, *block.work);
  }
}

template <int kM, int kStages, int kD>
__global__ void __launch_bounds__(SwaTiles<kM, kStages, kD>::kThreads, 1)
    swa_paged_attention_bf16_kernel(const __grid_constant__ SwaView v) {
  attend_all<SwaTiles<kM, kStages, kD>, bf16>(v);
}
__global__ void __launch_bounds__(SwaExact::kThreads, 2)
    swa_paged_attention_f32_kernel(const __grid_constant__ SwaView v) {
  attend_all<SwaExact, float>(v);
}

// As many blocks of 16 pairs as this still find a multiprocessor each; beyond it, 64 pairs share the reads of a key.
// A pair's result is the same either way, bit for bit.
constexpr int64_t kFewBlocks = 160;

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

// Gives every block up to `pairs` (row, head) pairs: all heads of the rows that a request has on average, or, where a
// row alone has more heads, an even part of them.
dim3 cut(SwaView& v, int pairs) {
  v.head_tiles = ceil_div(v.H, pairs);
  v.tile_heads = ceil_div(v.H, v.head_tiles);
  const int64_t average = v.B > 0 ? ceil_div(v.T, v.B) : 1, most = pairs / v.tile_heads;
  v.tile_rows = static_cast<int>(average < most ? average : most);
  return dim3(static_cast<unsigned>(ceil_div<int64_t>(v.T, v.tile_rows) * v.head_tiles));
}

template <int kM, int kStages, int kD>
cudaError_t launch_tiles(SwaView& v, cudaStream_t stream) {
  using Block = SwaTiles<kM, kStages, kD>;
  static_assert(Block::bytes(512) <= 163 * 1024, "sm_80 has 163 KiB of shared memory a block");
  const dim3 grid = cut(v, kM);
  return launch(&swa_paged_attention_bf16_kernel<kM, kStages, kD>, grid, Block::kThreads, Block::bytes(v.D), stream, v);
}

int32_t launch_op(const SwaPagedAttentionParams& p, const Launch& l) {
  SwaView v = view_of(p);
  const cudaStream_t stream = stream_of(l);
  if (p.q.dtype == kF32) {
    const dim3 grid = cut(v, SwaExact::kM);
    return status_of(l, launch(&swa_paged_attention_f32_kernel, grid, SwaExact::kThreads, SwaExact::bytes(v.D),
                               stream, v));
  }
  if (v.D != 512) return status_of(l, launch_tiles<16, 4, 0>(v, stream));
  const bool few = v.T * ceil_div(v.H, 16) <= kFewBlocks;
  return status_of(l, few ? launch_tiles<16, 4, 512>(v, stream) : launch_tiles<64, 4, 512>(v, stream));
}

}  // namespace
DSV4_CUDA_KERNEL(swa_paged_attention, SwaPagedAttentionParams, launch_op)
}  // namespace dsv4::cuda
