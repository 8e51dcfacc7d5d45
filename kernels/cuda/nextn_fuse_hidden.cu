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
// Besides, from 9 to 256 stream rows the parts of k go through L2: 4 x 64 KB a token, written and read.
// Launches: up to 8 stream rows one kernel, in which the parts of k are the blocks of a cluster: each makes its part of
// the norms, and both these and the sums go through the cluster's shared memory. Where devices have no clusters, a
// memset and a kernel whose blocks make the norms whole, each for itself. Beyond 8 rows, a kernel that makes one float
// a row, then one for the products. Past 256 rows its blocks do all parts of k, and the weights come from L2 for every
// 128 rows.
// Shared memory: up to 8 rows six stages of 16 KB and 2 or 4 KB of rows, so two blocks an SM; else five stages
// and 32 or 64 KB of rows, one block an SM. 80 or 64 KB of weights are under way in every block.
// fp32 rows or weights, and weights that do not lie on 16 bytes, take the exact path: a kernel that makes one
// float a row, and one for the products. The path depends on the weights and the dtype only, so a row's bits
// do not depend on its batch.
#include "cluster.cuh"
#include "fuse_exact.cuh"
#include "fuse_mma.cuh"

namespace dsv4::cuda {
namespace {

using Params = NextnFuseHiddenParams;
constexpr int kNarrowRows = 8, kWideRows = 128;
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

template <Dtype kWeight>
cudaError_t launch_mma(const FuseView& v, const Plan& plan, cudaStream_t stream) {
  const int64_t tickets = plan.split ? plan.chunks * plan.tiles : 0;
  if (plan.narrow) {
    if (plan.parts > 1) {
      static KnownClusters known;
      const auto kernel = &fuse_mma_kernel<kWeight, kNarrowRows / 8>;
      constexpr size_t kSmem = FuseShape<kWeight, kNarrowRows / 8>::kSmem;
      const unsigned parts = static_cast<unsigned>(plan.parts);
      if (clusters_at_once(known, reinterpret_cast<const void*>(kernel), parts, kFuseThreads, kSmem))
        return launch_clusters(kernel, parts, dim3(parts, static_cast<unsigned>(plan.tiles)), kFuseThreads, kSmem, stream,
                               v, 0, 0);
    }
    const cudaError_t e = cudaMemsetAsync(v.tickets, 0, 4 * tickets, stream);
    return e == cudaSuccess ? launch_products<kWeight, kNarrowRows / 8>(v, plan, stream) : e;
  }
  const cudaError_t e = launch_rms<bf16>(v, plan, tickets, stream);
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
