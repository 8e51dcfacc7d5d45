// SPDX-License-Identifier: Apache-2.0
// nextn_fuse_hidden: out[t,i] = e_proj(enorm(embeds[t])) + h_proj(hnorm(hidden[t,i])). Contract:
// include/dsv4spec/mhc.h.
//
// Few tokens are bound by reading the two [d, d] weights once, many by the products. Flash (d 4096, hc 4) on
// an H200, at 4.8 TB/s and 989 Tflop/s:
//          T    weights bf16 | e4m3    rows in, out    flops     floor bf16 | e4m3
//          1    67.1 | 33.6 MB         0.07 MB          0.17 G   14.0 |  7.0 us   bound by the weights
//         16    67.1 | 33.6 MB         1.2 MB           2.7 G    14.2 |  7.2 us   bound by the weights
//         64    67.1 | 33.6 MB         4.7 MB          10.7 G    15.0 | 10.9 us   e4m3: bound by the products
// Asked of the L2 in all, against every byte once (bf16 | weights of a byte; tests/test_cuda_memory_truth.py):
//          T    1: 1.03 | 1.06    2: 1.05 | 1.05    4: 1.04 | 1.04    8: 1.04 | 1.07    16: 1.07 | 1.10
// Launches: on clusters one (fuse_cluster.cuh), of up to 64 stream rows (16 tokens of 4; of 2 streams 24, of 1 40).
// Blocks of a cluster are the parts of k of neighbouring tiles of channels: they share the rows, which are then read
// once a cluster (Flash: 4 parts x 1 to 4 tiles, 6 to 32 clusters; Pro: 7 x 1 or 2), and make the norms and the sums of
// the parts in their shared memory. The rest is read once. Of more than 32 rows with weights of a byte, tiles have 176
// channels: six clusters read the rows, not eight, which would be 1.15 of every byte once; 36 multiprocessors of 132
// then have no block, and the others' shared memory binds, 2.1 MB a block or about 9 us.
// Where devices have no clusters, and for more rows: up to 8 stream rows a memset and a kernel whose blocks make the
// norms whole, each for itself; beyond, a kernel that makes one float a row, then one for the products. Every 128
// channels have the rows again there, and up to 256 stream rows the parts of k go through L2: 4 x 64 KB a token,
// written and read. Past 256 rows blocks do all parts of k, and the weights come from L2 for every 128 rows. The same
// holds for rows and norm weights that do not lie on 16 bytes, which bulk copies do not take, and for d past 8192.
// Shared memory: on clusters 12 stages of 8 KB and 80 KB of rows, or 7 (five of 11 KB) and 160 KB; else up to 8 rows
// six stages of 16 KB and 2 or 4 KB of rows, so two blocks an SM; else five stages and 32 or 64 KB of rows, one block
// an SM. 45 to 88 KB of weights are under way in every block.
// fp32 rows or weights, and weights that do not lie on 16 bytes, take the exact path: a kernel that makes one
// float a row, and one for the products. Between these and tensor cores the choice goes by the weights and the dtype
// only, and all paths on tensor cores give the same bits, so a row's bits do not depend on its batch.
#include "cluster.cuh"
#include "fuse_cluster.cuh"
#include "fuse_exact.cuh"
#include "fuse_mma.cuh"

namespace dsv4::cuda {
namespace {

using Params = NextnFuseHiddenParams;
constexpr int kFewTiles = 4, kManyTiles = 8;         // of eight rows: on clusters
constexpr int kNarrowRows = 8, kWideRows = 128;      // and without
constexpr int kSplitRows = 256;   // up to here blocks share the parts of k; each chunk then has scratch

int64_t element_size(Dtype dtype) { return dtype == kF32 ? 4 : dtype == kBF16 ? 2 : 1; }

bool on_tensor_cores(const Params& p) {
  const Dtype weight = p.e_proj.dtype;
  return p.embeds.dtype == kBF16 && weight != kF32 && p.d * element_size(weight) % 16 == 0 &&
         aligned16(p.e_proj, element_size(weight)) && aligned16(p.h_proj, element_size(weight));
}

// The scratch and the grid.
struct Plan {
  bool narrow, split;
  int64_t rows, tiles, depth, parts, chunks, row_room;
  uint64_t tickets_at, partials_at, bytes;

  explicit Plan(const Params& p) {
    rows = p.T * p.hc;
    narrow = rows <= kNarrowRows;
    // Flash: 32 tiles x 4 parts, Pro: 56 x 7. Wide models have tiles enough.
    depth = p.d <= 8192 ? 1024 : 1024 * ceil_div<int64_t>(p.d, 4096);
    parts = ceil_div(p.d, depth);
    tiles = ceil_div<int64_t>(p.d, kFuseChannels);
    chunks = narrow ? 1 : ceil_div<int64_t>(rows, kWideRows);
    split = rows <= kSplitRows;
    row_room = std::min<int64_t>(rows, kWideRows);
    tickets_at = (4 * (p.T + rows) + 255) / 256 * 256;
    partials_at = tickets_at + (4 * chunks * tiles + 255) / 256 * 256;
    const uint64_t partials = chunks * tiles * parts * row_room * kFuseChannels;
    bytes = on_tensor_cores(p) && split ? partials_at + 4 * partials : tickets_at;
  }
};

uint64_t workspace_size(const Params& p) { return Plan(p).bytes; }

FuseSide side_of(const TensorView& x, const TensorView& norm, const TensorView& weight,
                 const TensorView& scale) {
  return {x.data, norm.data, weight.data, scale.data, x.stride[0], weight.stride[0],
          scale && scale.ndim == 2 ? scale.stride[0] : 0, aligned16(x, element_size(x.dtype)),
          norm.dtype == kF32, aligned16(norm, element_size(norm.dtype))};
}

FuseView view_of(const Params& p, const Plan& plan, void* workspace) {
  unsigned char* memory = static_cast<unsigned char*>(workspace);
  FuseView v{};
  v.side[0] = side_of(p.embeds, p.enorm_weight, p.e_proj, p.e_proj_scale);
  v.side[1] = side_of(p.hidden, p.hnorm_weight, p.h_proj, p.h_proj_scale);
  v.out = p.out.data, v.out_t = p.out.stride[0], v.out_i = p.out.stride[1];
  v.T = p.T, v.hc_log2 = p.hc == 4 ? 2 : p.hc == 2 ? 1 : 0;
  v.d = static_cast<int>(p.d), v.depth = static_cast<int>(plan.depth);
  v.inverse_rms = reinterpret_cast<float*>(memory);
  v.tickets = reinterpret_cast<unsigned*>(memory + plan.tickets_at);
  v.partials = reinterpret_cast<float*>(memory + plan.partials_at);
  v.eps = static_cast<float>(p.eps);
  v.weight = p.e_proj.dtype;
  v.out_vector = aligned16(p.out, element_size(p.out.dtype));
  return v;
}

template <class X>
cudaError_t launch_rms(const FuseView& v, const Plan& plan, int64_t tickets, cudaStream_t stream) {
  const dim3 grid(static_cast<unsigned>(ceil_div<int64_t>(v.T + plan.rows, kRmsThreads / kWarp)));
  return launch(&fuse_rms_kernel<X>, grid, kRmsThreads, 0, stream, v, static_cast<int>(tickets));
}

template <class X>
cudaError_t launch_exact(const FuseView& v, const Plan& plan, cudaStream_t stream) {
  const cudaError_t e = launch_rms<X>(v, plan, 0, stream);
  if (e != cudaSuccess) return e;
  const dim3 grid(static_cast<unsigned>(ceil_div<int64_t>(plan.rows, kExactRows)),
                  static_cast<unsigned>(ceil_div(v.d, kExactChannels)));
  return launch(&fuse_exact_kernel<X>, grid, kExactThreads, 0, stream, v);
}

template <Dtype kWeight, int NJ>
cudaError_t launch_products(const FuseView& v, const Plan& plan, cudaStream_t stream) {
  using S = FuseShape<kWeight, NJ>;
  const dim3 grid(static_cast<unsigned>(plan.chunks), static_cast<unsigned>(plan.tiles),
                  static_cast<unsigned>(plan.split ? plan.parts : 1));
  const int in_block = plan.split ? 0 : static_cast<int>(plan.parts);
  return launch(&fuse_mma_kernel<kWeight, NJ>, grid, kFuseThreads, S::kSmem + (plan.split ? 0 : S::kSums), stream, v,
                in_block, static_cast<int>(plan.row_room));
}

// All in one launch, on clusters; false if the device has none. As many columns share the rows as keep what clusters
// read of them again below a 16th of the weights.
template <Dtype kWeight, int NJ>
bool run_on_clusters(const FuseView& v, const Plan& plan, cudaStream_t stream, cudaError_t& error) {
  using S = FuseCluster<kWeight, NJ>;
  static KnownClusters known;
  const auto kernel = &fuse_cluster_kernel<kWeight, NJ>;
  const unsigned parts = static_cast<unsigned>(plan.parts), tiles = static_cast<unsigned>(ceil_div(v.d, S::kChannels));
  unsigned columns = 1;
  while (2 * columns * parts <= kFuseBlocks && columns < tiles &&
         16 * (v.T + plan.rows) * tiles > static_cast<int64_t>(v.d) * S::kSize * columns)
    columns *= 2;
  unsigned chosen = 0;  // so many where all clusters run at once; else the most that the device holds
  for (; columns; columns /= 2) {
    const void* code = reinterpret_cast<const void*>(kernel);
    const int clusters = clusters_at_once(known, code, parts * columns, S::kThreads, S::kSmem);
    const unsigned at_once = static_cast<unsigned>(clusters);
    if (at_once && !chosen) chosen = columns;
    if (at_once * columns < tiles) continue;
    chosen = columns;
    break;
  }
  if (!chosen) return false;
  const unsigned blocks = parts * chosen;
  error = launch_clusters(kernel, blocks, ceil_div(tiles, chosen) * blocks, S::kThreads, S::kSmem, stream, v,
                          static_cast<int>(parts));
  return true;
}

// Do the rows fit the kernel on clusters of NJ tiles of eight, and do bulk copies take them?
template <int NJ>
bool fits_clusters(const FuseView& v, const Plan& plan) {
  const auto fill = [](int64_t rows) { return (rows + 7) / 8 * 8; };
  return plan.rows <= NJ * 8 && fill(v.T) + fill(plan.rows) <= NJ * 10 && v.depth <= kFuseDepth &&
         v.side[0].x_vector && v.side[1].x_vector && v.side[0].norm_vector && v.side[1].norm_vector;
}

template <Dtype kWeight>
cudaError_t launch_mma(const FuseView& v, const Plan& plan, cudaStream_t stream) {
  cudaError_t e = cudaSuccess;
  if (fits_clusters<kFewTiles>(v, plan)) {
    if (run_on_clusters<kWeight, kFewTiles>(v, plan, stream, e)) return e;
  } else if (fits_clusters<kManyTiles>(v, plan)) {
    if (run_on_clusters<kWeight, kManyTiles>(v, plan, stream, e)) return e;
  }
  const int64_t tickets = plan.split ? plan.chunks * plan.tiles : 0;
  if (plan.narrow) {
    e = cudaMemsetAsync(v.tickets, 0, 4 * tickets, stream);
    return e == cudaSuccess ? launch_products<kWeight, kNarrowRows / 8>(v, plan, stream) : e;
  }
  e = launch_rms<bf16>(v, plan, tickets, stream);
  return e == cudaSuccess ? launch_products<kWeight, kWideRows / 8>(v, plan, stream) : e;
}

int32_t launch_op(const Params& p, const Launch& l) {
  const Plan plan(p);
  const FuseView v = view_of(p, plan, l.workspace);
  const cudaStream_t stream = stream_of(l);
  if (!on_tensor_cores(p))
    return status_of(l, p.embeds.dtype == kF32 ? launch_exact<float>(v, plan, stream)
                                               : launch_exact<bf16>(v, plan, stream));
  if (v.weight == kBF16) return status_of(l, launch_mma<kBF16>(v, plan, stream));
  if (v.weight == kI8) return status_of(l, launch_mma<kI8>(v, plan, stream));
  return status_of(l, launch_mma<kF8E4M3>(v, plan, stream));
}

}  // namespace
DSV4_CUDA_KERNEL_WITH_WORKSPACE(nextn_fuse_hidden, Params, launch_op, workspace_size)
}  // namespace dsv4::cuda
