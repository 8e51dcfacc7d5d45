// SPDX-License-Identifier: Apache-2.0
// move_accepted_kv: copies rows of the pool to other rows of it, all sources read before any destination is written.
// 2 bytes moved a byte of KV, and 16 of slots a row: 8 MB of KV at 4.8 TB/s are 3.5 us, less is a launch's latency.
// The blocks of a cluster own the same 128 bytes of all rows, each those of some rows, by pieces of 16 where alignment
// allows: they gather the sources into shared memory, and after the cluster's barrier write them out, so no cluster
// waits for another: one launch, whatever the sizes. The slots are read once for every 128 bytes: 6 % of what is moved.
// Up to 32 rows a block does it alone; so it does, with 32 bytes of all rows, where devices have no clusters. Many rows go
// by narrower pieces, and beyond what a block's shared memory holds (16384 rows in bf16) by 32 bytes through the
// workspace, where a thread finds again what it has put there: 4 bytes moved a byte of KV.
// Contract: include/dsv4spec/paging.h.
#include <algorithm>

#include "cluster.cuh"
#include "ints.cuh"

namespace dsv4::cuda {
namespace {

constexpr int64_t kMaxShared = 160 * 1024;  // of a block; sm_80 has 163 KB
constexpr int kMaxThreads = 1024;
constexpr int kClusterBlocks = 8;
constexpr int64_t kAlone = 32;  // rows of a block without a cluster

struct Moves {
  const int64_t *src, *dst;
  unsigned char* pool;
  unsigned char* scratch;  // [cluster][row][its bytes of a row]; only where shared memory is too small
  int64_t page_bytes, row_bytes, used_bytes;  // strides of the pool, and what of a row is used
  int64_t M, slots;
  Divisor page;
  int shift;     // a cluster owns 1 << shift pieces of a row
  int64_t each;  // a block's rows of them
  int64_t room;  // int64s in its shared memory for their destinations: a multiple of 16 bytes

  DSV4_DEVICE bool moves(int64_t from, int64_t to) const {
    return from >= 0 && to >= 0 && from < slots && to < slots;
  }
  template <class Piece>
  DSV4_DEVICE Piece* at(int64_t slot, int64_t piece) const {
    return reinterpret_cast<Piece*>(pool + page.quotient(slot) * page_bytes + page.remainder(slot) * row_bytes) + piece;
  }
};

template <class Piece, bool kScratch>
__global__ void __launch_bounds__(kMaxThreads, 1) move_kernel(Moves v) {
  DYN_SMEM(int64_t, to);  // a row's destination, or -1; with scratch it is read again
  const unsigned blocks = cluster_size();
  const int64_t first = static_cast<int64_t>(blockIdx.x / blocks) << v.shift, last = (int64_t{1} << v.shift) - 1;
  const int64_t row0 = cluster_rank() * v.each, pieces = min(v.each, v.M - row0) * (last + 1);  // none: 0 or less
  Piece* held = kScratch ? reinterpret_cast<Piece*>(v.scratch) + first * v.M + (row0 << v.shift)
                         : reinterpret_cast<Piece*>(to + v.room);
  for (int64_t i = threadIdx.x; i < pieces; i += blockDim.x) {
    const int64_t row = i >> v.shift, src = v.src[row0 + row], dst = v.dst[row0 + row];
    const bool moves = v.moves(src, dst);
    if (!kScratch && (i & last) == 0) to[row] = moves ? dst : -1;
    if (moves) held[i] = *v.at<Piece>(src, first + (i & last));
  }
  if (blocks > 1) cluster_sync();
  else __syncthreads();
  for (int64_t i = threadIdx.x; i < pieces; i += blockDim.x) {
    const int64_t row = i >> v.shift, dst = kScratch ? v.dst[row0 + row] : to[row];
    if (kScratch ? v.moves(v.src[row0 + row], dst) : dst >= 0) *v.at<Piece>(dst, first + (i & last)) = held[i];
  }
}

// What a block needs for its rows' destinations, and so many bytes of each row.
constexpr int64_t slot_room(int64_t rows) { return (rows + 1) / 2 * 2; }
constexpr int64_t shared(int64_t rows, int64_t width) { return slot_room(rows) * 8 + rows * width; }

template <class Piece, bool kScratch>
cudaError_t move_by(Moves& v, cudaStream_t stream) {
  static KnownClusters known;
  const auto kernel = &move_kernel<Piece, kScratch>;
  const int64_t pieces = v.used_bytes / static_cast<int64_t>(sizeof(Piece)), most = kMaxThreads;
  const bool clusters = v.M > kAlone && clusters_at_once(known, reinterpret_cast<const void*>(kernel), kClusterBlocks,
                                                         kMaxThreads, kScratch ? 0 : kMaxShared) > 0;
  const unsigned blocks = clusters ? kClusterBlocks : 1;
  v.each = clusters ? ceil_div<int64_t>(v.M, 4 * kClusterBlocks) * 4 : v.M;  // slots by sectors of four
  v.room = slot_room(v.each);
  const auto bytes = [&] { return static_cast<int64_t>(sizeof(Piece)) << v.shift; };
  const auto held = [&](int64_t width) { return kScratch ? 0 : shared(v.each, width); };
  const int64_t width = !kScratch && (clusters || v.M <= kAlone) ? 128 : 32;
  while (bytes() < width && pieces % (2 << v.shift) == 0 && held(bytes() * 2) <= kMaxShared) ++v.shift;
  const unsigned grid = static_cast<unsigned>(pieces >> v.shift) * blocks;
  const unsigned threads = static_cast<unsigned>(std::min(ceil_div<int64_t>(v.each << v.shift, kWarp) * kWarp, most));
  return clusters ? launch_clusters(kernel, blocks, grid, threads, held(bytes()), stream, v)
                  : launch(kernel, grid, threads, held(bytes()), stream, v);
}
template <class Piece>
cudaError_t move(Moves& v, cudaStream_t stream) {
  return v.scratch ? move_by<Piece, true>(v, stream) : move_by<Piece, false>(v, stream);
}

int64_t element_bytes(const MoveAcceptedKvParams& p) { return p.kv_pages.dtype == kF32 ? 4 : 2; }

bool fits_shared(const MoveAcceptedKvParams& p) { return shared(p.M, element_bytes(p)) <= kMaxShared; }

uint64_t workspace(const MoveAcceptedKvParams& p) {
  return fits_shared(p) ? 0 : static_cast<uint64_t>(p.M * p.D * element_bytes(p));
}

int32_t launch_op(const MoveAcceptedKvParams& p, const Launch& l) {
  const int64_t size = element_bytes(p);
  Moves v{p.src_slots.at<const int64_t>(), p.dst_slots.at<const int64_t>(), p.kv_pages.at<unsigned char>(), nullptr,
          p.kv_pages.stride[0] * size, p.kv_pages.stride[1] * size, p.D * size, p.M, p.pages * p.page,
          Divisor(std::max<int64_t>(p.page, 1)), 0, 0, 0};
  if (!fits_shared(p)) v.scratch = static_cast<unsigned char*>(l.workspace);
  // What every piece's address is a multiple of: the base and the strides in use.
  uint64_t bits = reinterpret_cast<uintptr_t>(v.pool) | static_cast<uint64_t>(v.used_bytes);
  if (p.pages > 1) bits |= static_cast<uint64_t>(v.page_bytes);
  if (p.page > 1) bits |= static_cast<uint64_t>(v.row_bytes);
  const auto allows = [&](int64_t piece) { return bits % piece == 0 && (v.scratch || shared(p.M, piece) <= kMaxShared); };
  const cudaStream_t stream = stream_of(l);
  return status_of(l, allows(16)  ? move<uint4>(v, stream)
                      : allows(8) ? move<uint2>(v, stream)
                      : allows(4) ? move<uint32_t>(v, stream)
                                  : move<uint16_t>(v, stream));
}

}  // namespace
DSV4_CUDA_KERNEL_WITH_WORKSPACE(move_accepted_kv, MoveAcceptedKvParams, launch_op, workspace)
}  // namespace dsv4::cuda
