// SPDX-License-Identifier: Apache-2.0
// How queries and tiles of keys come into a block's shared memory, kStages - 1 tiles or more ahead of their use.
// A block by itself copies every key of its segment through cp.async. Blocks of a cluster that share a segment share
// its tiles: a key is read once, by a bulk copy of one of them into the same place of all. Each block's mbarrier of the
// stage waits for the bytes of all keys that have a page; the others it zeroes itself. The cluster's barrier says when
// all blocks are done with a stage: they arrive behind the last use and wait just before it is filled again.
#pragma once
#include "swa_tiles_bf16.cuh"

namespace dsv4::cuda {

template <int kM, int kStages, int kD>
struct SwaCopies : SwaTiles<kM, kStages, kD> {
  using Tiles = SwaTiles<kM, kStages, kD>;
  using Tiles::kFree;
  using Tiles::kThreads;
  using Tiles::kWarps;
  using Tiles::landed;
  using Tiles::lane;
  using Tiles::pitch;
  using Tiles::usable;
  using Tiles::v;
  using Tiles::warp;
  using Tiles::work;

  DSV4_DEVICE SwaCopies(const SwaView& view, unsigned char* memory) : Tiles(view, memory) {
    if (!view.clusters) return;
    if (threadIdx.x == 0) {
#pragma unroll
      for (int i = 0; i < kStages; ++i) mbarrier_init(landed + i, 1);
      mbarrier_fence();
    }
    cluster_arrive();  // whoever copies into this block waits for it
  }

  DSV4_DEVICE bool shared() const { return DSV4_CLUSTERS && work->shared; }
  DSV4_DEVICE const int64_t* keys_at(int i) const { return this->key_at + i % Tiles::kSlots * kKeys; }
  DSV4_DEVICE void load_tile(int i) {
    if (i < work->keys.tiles)
      load_rows<bf16, kThreads>(this->tile(i), pitch, v.kv, keys_at(i), kKeys, this->D, v.vector_kv);
    cp_async_commit();
  }
  // This block's share of a tile, to all blocks. The stage is free in all of them.
  DSV4_DEVICE void send_tile(int i) {
    if (i >= work->keys.tiles) return;
    const uint32_t have = usable[i % Tiles::kSlots];
    if (warp == 0) {
      const unsigned blocks = cluster_size();
      const uint32_t bytes = this->D * sizeof(bf16);
      uint64_t* barrier = landed + i % kStages;
      if (lane == 0) mbarrier_arrive(barrier, __popc(have) * bytes);
      if ((have >> lane & 1) && lane % blocks == cluster_rank())
        copy_bulk(this->tile(i) + lane * pitch, static_cast<const bf16*>(v.kv) + keys_at(i)[lane], bytes, barrier,
                  static_cast<uint16_t>((1u << blocks) - 1));
    }
#pragma unroll 1
    for (int k = warp; k < kKeys; k += kWarps)
      if (!(have >> k & 1)) this->zero_key(this->tile(i) + k * pitch);
  }

  // Waits until at most kPending of the thread's groups of copies are under way; afterwards their stages are free.
  template <int kPending>
  DSV4_DEVICE void read_queries() {
    cp_async_wait<kPending>();
    __syncthreads();
    this->take_queries();
    __syncthreads();
  }
  // Queries into registers, and the first tiles on their way.
  DSV4_DEVICE void start() {
    load_rows<bf16, kThreads>(this->queries(), pitch, v.q, this->q_at, kM, this->D, v.vector_q);
    if (shared()) {
      cp_async_commit();
      cluster_wait();  // all blocks run, and have their mbarriers
#pragma unroll
      for (int i = 0; i < kFree; ++i) send_tile(i);
      read_queries<0>();
      if (work->keys.tiles <= kFree) return;
      proxy_fence();
      cluster_arrive();
      cluster_wait();
#pragma unroll
      for (int i = kFree; i < kStages; ++i) send_tile(i);
      return;
    }
#pragma unroll
    for (int i = 0; i < kStages - 1; ++i) {
      if (i == kFree) read_queries<kFree - 1>();  // they came with tile 0, and free their stages
      load_tile(i);
    }
    if (kFree >= kStages - 1) read_queries<kStages - 2>();
  }
  // Waits for tile i.
  DSV4_DEVICE void await(int i) {
    if (shared()) {
      mbarrier_wait(landed + i % kStages, i / kStages & 1);
    } else {
      cp_async_wait<kStages - 2>();
      __syncthreads();  // and every warp is done with tile i - 1
      load_tile(i + kStages - 1);
    }
  }
  // Every warp is done with tile i - 1.
  DSV4_DEVICE void refill(int i) {
    const int tiles = work->keys.tiles;
    if (warp == kWarps - 1 && i > 0 && i + Tiles::kSlots - 1 < tiles) this->set_keys(i + Tiles::kSlots - 1);
    if (!shared() || i == 0 || i + kStages - 1 >= tiles) return;
    cluster_wait();  // as is every block
    send_tile(i + kStages - 1);
  }
  // The warp is done with tile i.
  DSV4_DEVICE void release(int i) {
    if (!shared() || i + kStages >= work->keys.tiles) return;
    proxy_fence();
    cluster_arrive();
  }
  // The warp is done with all tiles: the stages are the block's own, for its result.
  DSV4_DEVICE void finish() {
    cp_async_wait<0>();
    if (shared()) cluster_arrive();
  }
  // Copies of this block into others may be under way until they have their last tile.
  DSV4_DEVICE void leave() {
    if (shared()) cluster_wait();
  }
};

}  // namespace dsv4::cuda
