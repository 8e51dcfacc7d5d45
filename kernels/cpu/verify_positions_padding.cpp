// SPDX-License-Identifier: Apache-2.0
// verify_positions_padding: packs the group starts of the entries that a verify window emits.
// One serial pass: at most T/r + B entries, a few hundred in practice. Contract: include/dsv4spec/verify.h.
#include <algorithm>

#include "kernel.h"
#include "verify_rows.h"

namespace dsv4::cpu {
namespace {

int32_t launch(const VerifyPositionsPaddingParams& p, const Launch&) {
  int64_t* out = p.out.at<int64_t>();
  const int64_t *positions = p.positions.at<int64_t>(), n = p.n, ratio = p.ratio;
  // A ratio of 0 emits nothing, as 1 does.
  const int64_t count = for_each_emitting_row(
      Ints(p.live_seq_lens), p.B, n, Divisor(std::max<int64_t>(ratio, 1)), [=](int64_t b, int64_t, int64_t j, int64_t place) {
        out[place] = group_start(positions[b * n + j], ratio);
      });
  std::fill(out + count, out + p.out.shape[0], 0);
  return DSV4_OK;
}

}  // namespace
DSV4_CPU_KERNEL(verify_positions_padding, VerifyPositionsPaddingParams, launch)
}  // namespace dsv4::cpu
