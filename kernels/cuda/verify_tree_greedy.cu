// SPDX-License-Identifier: Apache-2.0
// verify_tree_greedy: walks each tree along the target's argmax.
// 40 bytes read and 4 written a node: a launch's latency is the floor. A block a request, a thread a node (n rounded up
// to warps): every node looks for the child it would accept, all at once; then one thread follows these choices from the
// root, one shared load a step. Contract: include/dsv4spec/tree.h.
#include "ints.cuh"

namespace dsv4::cuda {
namespace {

struct Walk {
  Rows<const int64_t> tokens, row, next, sibling, target;
  Rows<int32_t> accepted;
  int32_t *predicts, *count;
  int64_t num_steps;
  int n;
};

struct Scratch {
  int64_t token[kMaxTreeNodes];
  int32_t target[kMaxTreeNodes], row[kMaxTreeNodes];  // row: what accept_index gives
  int32_t predicted[kMaxTreeNodes];
  int16_t next[kMaxTreeNodes], sibling[kMaxTreeNodes], place[kMaxTreeNodes];  // -1: none, or outside the request
  int16_t choice[kMaxTreeNodes], looks[kMaxTreeNodes];  // the accepted child, and the children looked at for it
  int16_t path[kMaxTreeNodes];
  int visited;
};

__global__ void __launch_bounds__(kMaxTreeNodes) walk_kernel(Walk v) {
  __shared__ Scratch s;
  const int64_t b = blockIdx.x;
  const int n = v.n, i = threadIdx.x;
  if (v.next[b][0] == 0) return;  // padding
  auto link = [n](int64_t to) { return static_cast<int16_t>(to > 0 && to < n ? to : -1); };
  int64_t wanted = -1;  // the target's token at node i; one that no candidate is accepted for if negative
  if (i < n) {
    const int64_t row = v.row[b][i];
    wanted = v.target[b][i];
    s.token[i] = v.tokens[b][i];
    s.next[i] = link(v.next[b][i]);
    s.sibling[i] = link(v.sibling[b][i]);
    s.target[i] = static_cast<int32_t>(wanted);
    s.row[i] = static_cast<int32_t>(row);
    s.place[i] = static_cast<int16_t>(row >= b * n && row < (b + 1) * n ? row - b * n : -1);
    s.predicted[i] = -1;
  }
  __syncthreads();
  if (i < n) {
    int child = s.next[i], looks = 1;
    while (child > 0 && looks < n && (wanted < 0 || s.token[child] != wanted)) child = s.sibling[child], ++looks;
    s.choice[i] = static_cast<int16_t>(looks < n ? child : -1);
    s.looks[i] = static_cast<int16_t>(looks);
  }
  __syncthreads();
  if (i == 0) {
    int node = 0, visited = 0;
    // A tree has n - 1 children to look at; more looks than that are a cycle's.
    for (int left = n - 1;;) {
      s.path[visited++] = static_cast<int16_t>(node);
      if (s.place[node] >= 0) s.predicted[s.place[node]] = s.target[node];
      left -= s.looks[node];
      if (visited > v.num_steps || left < 0 || s.choice[node] <= 0) break;
      node = s.choice[node];
    }
    s.visited = visited;
  }
  __syncthreads();
  const int visited = s.visited;
  if (i < n) v.predicts[b * n + i] = s.predicted[i];
  for (int64_t c = i; c <= v.num_steps; c += blockDim.x) v.accepted[b][c] = c < visited ? s.row[s.path[c]] : -1;
  if (i == 0) v.count[b] = visited - 1;
}

int32_t launch_op(const VerifyTreeGreedyParams& p, const Launch& l) {
  const int n = static_cast<int>(p.n);
  const Walk v{rows_of<const int64_t>(p.candidates), rows_of<const int64_t>(p.retrieve_index),
               rows_of<const int64_t>(p.next_token), rows_of<const int64_t>(p.next_sibling),
               rows_of<const int64_t>(p.target_predict), rows_of<int32_t>(p.accept_index), p.predicts.at<int32_t>(),
               p.accept_token_num.at<int32_t>(), p.num_steps, n};
  return status_of(l, launch(walk_kernel, static_cast<unsigned>(p.B), ceil_div(n, kWarp) * kWarp, 0, stream_of(l), v));
}

}  // namespace
DSV4_CUDA_KERNEL(verify_tree_greedy, VerifyTreeGreedyParams, launch_op)
}  // namespace dsv4::cuda
