// SPDX-License-Identifier: Apache-2.0
// mhc_post: out[t,i,:] = post[t,i] * y[t,:] + sum_j comb[t,j,i] * residual[t,j,:]
// One token row a work item; the hc output streams of a vector of channels are formed from registers, so the
// residual may be overwritten in place. Bound by memory: (2*hc + 1) * d elements a token, 2*hc*(hc + 1)/2 flops
// per element moved. Contract: include/dsv4spec/mhc.h.
#include "kernel.h"

namespace dsv4::cpu {
namespace {

// One vector of channels of one token. n < W: a tail of n channels.
template <class T, int HC, bool kTail>
inline void mix(const MhcPostParams& p, int64_t t, const float* post, const float* comb, int64_t c, int n) {
  auto get = [&](const T* q) { return kTail ? load_n(q, n) : load(q); };
  vf r[HC];
  for (int j = 0; j < HC; ++j) r[j] = get(p.residual.at<T>(t, j) + c);
  const vf y = get(p.y.at<T>(t) + c);
  for (int i = 0; i < HC; ++i) {
    vf acc = y * post[i];
    for (int j = 0; j < HC; ++j) acc = acc + r[j] * comb[j * HC + i];
    T* q = p.out.at<T>(t, i) + c;
    if (kTail) store_n(q, acc, n);
    else store(q, acc);
  }
}

template <class T, int HC>
void run(const MhcPostParams& p) {
  const int64_t row_bytes = (2 * HC + 1) * p.d * sizeof(T);
  parallel(p.T, grain_for(row_bytes), [&](int64_t begin, int64_t end) {
    for (int64_t t = begin; t < end; ++t) {
      float post[HC], comb[HC * HC];
      for (int i = 0; i < HC; ++i) post[i] = *p.post.at<float>(t, i);
      for (int i = 0; i < HC * HC; ++i) comb[i] = *p.comb.at<float>(t, i / HC, i % HC);
      int64_t c = 0;
      for (; c + W <= p.d; c += W) mix<T, HC, false>(p, t, post, comb, c, W);
      if (c < p.d) mix<T, HC, true>(p, t, post, comb, c, static_cast<int>(p.d - c));
    }
  });
}

template <class T>
int32_t launch_streams(const MhcPostParams& p) {
  switch (p.hc) {
    case 1: run<T, 1>(p); break;
    case 2: run<T, 2>(p); break;
    default: run<T, 4>(p);
  }
  return DSV4_OK;
}

int32_t launch(const MhcPostParams& p, const Launch&) {
  return p.residual.dtype == kF32 ? launch_streams<float>(p) : launch_streams<bf16>(p);
}

}  // namespace
DSV4_CPU_KERNEL(mhc_post, MhcPostParams, launch)
}  // namespace dsv4::cpu
