// SPDX-License-Identifier: Apache-2.0
// The closing mix of mhc_post and mhc_post_pre, for channels of one token:
//   out[i] = post[i] * y + sum_j comb[j,i] * residual[j]
// The hc output streams of a vector of channels are formed from registers, so residual may be overwritten in place.
#pragma once
#include "kernel.h"
#include "pairs.h"

namespace dsv4::cpu {

template <int HC>
struct MixCoefficients {
  float post[HC], comb[HC * HC];
  MixCoefficients(const TensorView& post_view, const TensorView& comb_view, int64_t t) {
    for (int i = 0; i < HC; ++i) post[i] = *post_view.at<const float>(t, i);
    for (int i = 0; i < HC * HC; ++i) comb[i] = *comb_view.at<const float>(t, i / HC, i % HC);
  }
};

template <class T, int HC, bool Stream = false>
inline void mix_channels(const TensorView& y, const TensorView& residual, const TensorView& out,
                         const MixCoefficients<HC>& k, int64_t t, int64_t c0, int64_t n) {
  const T *from[HC], *sublayer = y.at<const T>(t) + c0;  // in locals: after a store of a vector GCC would read the views again
  T* to[HC];
  for (int i = 0; i < HC; ++i) from[i] = residual.at<const T>(t, i) + c0, to[i] = out.at<T>(t, i) + c0;
  for_pairs(n, [&](int64_t c, int count) {
    Pair r[HC];
    for (int j = 0; j < HC; ++j) r[j] = load_pair<T>(from[j] + c, count);
    const Pair v = load_pair<T>(sublayer + c, count);
    for (int i = 0; i < HC; ++i) {
      Pair sum{};  // every product is added to a sum: GCC may fuse either of two products
      sum.a += v.a * k.post[i], sum.b += v.b * k.post[i];
      for (int j = 0; j < HC; ++j) sum.a += r[j].a * k.comb[j * HC + i], sum.b += r[j].b * k.comb[j * HC + i];
      store_pair<Stream>(to[i] + c, sum, count);
    }
  });
}

}  // namespace dsv4::cpu
