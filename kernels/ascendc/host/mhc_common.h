// SPDX-License-Identifier: Apache-2.0
// The host side that mhc_pre, mhc_post_pre and mhc_head share: tilings, the workspace, and turns of at most
// 4096 tokens, which bound it. The buffers' sizes are written down in mhc_pre.cpp.
#pragma once
#include "../launch.h"
#include "../mhc_tiling.h"

namespace dsv4::ascend::mhc {

constexpr int64_t kTurn = 4096;           // tokens of a pair of launches, at most
constexpr int64_t kTurnBytes = 96 << 20;  // of their residual rows: half of the 192 MB of a 910B
constexpr int64_t kUnified = 184 * 1024 - 256;  // bytes of local memory that are ours
constexpr int64_t kKeepNorm = 8192;       // channels of norm weight that stay in local memory

inline int64_t element_bytes(Dtype t) { return t == kF32 ? 4 : 2; }
inline int32_t norm_kind(const TensorView& norm) { return !norm ? 0 : norm.dtype == kF32 ? 1 : 2; }
inline int64_t slices_of(int64_t d) { return ceil_div<int64_t>(d, kMhcSlice); }

template <class P>
int64_t turn_of(const P& p) {
  const int64_t fit = kTurnBytes / (p.hc * p.d * element_bytes(p.residual.dtype)) / kMhcGroup * kMhcGroup;
  return fit < kTurn ? fit : kTurn;
}
// A turn: `tokens` from `first` on; none behind the last one.
struct Turn {
  int64_t first, tokens;
};
template <class P>
Turn turn_at(const P& p, int64_t first) {
  const int64_t most = turn_of(p);
  return {first, p.T - first < most ? p.T - first : most};
}
inline int64_t partial_floats(int64_t tokens, int64_t d, int64_t columns) {
  return ceil_div<int64_t>(tokens, kMhcGroup) * slices_of(d) * (1 + columns) * kMhcGroup;
}
// Partial sums of a turn, or of one launch with what its cores tell one another behind them.
template <class P>
uint64_t workspace_bytes(const P& p, int64_t columns) {
  const int64_t tokens = turn_at(p, 0).tokens,
                lanes = tokens <= kMhcOnceTokens ? round_up<int64_t>(tokens, kMhcGroup) : 0,
                told = lanes * (p.hc + slices_of(p.d) + 1);
  return static_cast<uint64_t>(partial_floats(tokens, p.d, columns) + told) * sizeof(float);
}

// Bytes of the buffers of MhcProject.
inline int64_t project_bytes(int64_t hc, int64_t columns, int64_t wide, int64_t each, int64_t element,
                             bool mix, bool keep = false) {
  const int64_t pitch = wide * kMhcSlice, row = hc * pitch, cast = element == 4 ? 0 : 4,
                queue = 2 * each * row * element;
  int64_t bytes = columns * row * 4 + 2 * wide * (1 + columns) * kMhcGroup * 4 +
                  wide * each * (1 + columns) * kMhcLanes * 4 + each * row * cast;
  if (mix) bytes += 40 * kMhcGroup * 4 * (2 + 8) + each * pitch * (2 * element + cast);
  if (mix || !keep) bytes += queue;  // of x
  if (mix && !keep) bytes += queue;  // of what is written
  return bytes;
}

// Everything but the strides of mhc_post_pre. Two slices an item give bursts of 512 bytes of a 16-bit stream.
// With few tokens fn is most of the traffic, whose bursts are 512 bytes of one slice, and smaller items split
// it more evenly.
template <class P>
MhcProjectTiling project_tiling(const P& p, const TensorView& residual, int64_t columns, bool mix) {
  MhcProjectTiling v{};
  const int64_t element = element_bytes(residual.dtype), slices = slices_of(p.d);
  const int64_t groups = ceil_div<int64_t>(p.T < turn_of(p) ? p.T : turn_of(p), kMhcGroup);
  v.wide = slices > 1 && groups >= 32 ? 2 : 1;
  v.each = kMhcGroup;
  while (v.wide * v.each > kMhcGroup || project_bytes(p.hc, columns, v.wide, v.each, element, mix) > kUnified)
    v.each /= 2;
  v.hc = static_cast<int32_t>(p.hc), v.d = static_cast<int32_t>(p.d),
  v.columns = static_cast<int32_t>(columns);
  v.slices = static_cast<int32_t>(slices);
  v.residual_t = residual.stride[0], v.residual_i = residual.stride[1], v.fn_c = p.fn.stride[0];
  return v;
}
// Returns the number of blocks, as the next one.
inline int64_t set_tokens(MhcProjectTiling& v, int64_t tokens) {
  v.tokens = static_cast<int32_t>(tokens);
  v.groups = static_cast<int32_t>(ceil_div<int64_t>(tokens, kMhcGroup));
  v.items = ceil_div<int64_t>(v.slices, v.wide) * v.groups;
  return v.items < vector_cores() ? v.items : vector_cores();
}

// Bytes of the buffers of MhcJoin.
inline int64_t join_bytes(int64_t hc, int64_t d, int64_t width, int64_t element, int64_t y_buffers, bool norm,
                          bool kept) {
  const int64_t row = round_up<int64_t>(d, 64);
  int64_t bytes = 2 * 16 * 64 * 4 + 2 * hc * width * element + y_buffers * row * element + kMhcJoinSmall +
                  width * 4 + (element == 4 ? 0 : hc * width * 4);
  if (norm) bytes += 2 * width * 4 + (kept ? row : width) * 4;
  return bytes;
}

template <class P>
MhcFinishTiling finish_tiling(const P& p, const TensorView& residual, const TensorView& y, int64_t columns) {
  MhcFinishTiling v{};
  const int64_t element = element_bytes(residual.dtype);
  v.norm = norm_kind(p.norm_weight), v.norm_kept = v.norm && p.d <= kKeepNorm;
  v.width = static_cast<int32_t>(round_up<int64_t>(p.d < 4096 ? p.d : 4096, kMhcSlice)), v.y_buffers = 2;
  const auto fits = [&] {
    return join_bytes(p.hc, p.d, v.width, element, v.y_buffers, v.norm, v.norm_kept) <= kUnified;
  };
  while (!fits() && v.width > 1024) v.width = static_cast<int32_t>(round_up<int64_t>(v.width / 2, kMhcSlice));
  if (!fits()) v.y_buffers = 1;
  while (!fits() && v.width > kMhcSlice) v.width = static_cast<int32_t>(round_up<int64_t>(v.width / 2, kMhcSlice));
  v.hc = static_cast<int32_t>(p.hc), v.d = static_cast<int32_t>(p.d),
  v.columns = static_cast<int32_t>(columns);
  v.slices = static_cast<int32_t>(slices_of(p.d));
  v.residual_t = residual.stride[0], v.residual_i = residual.stride[1], v.y_t = y.stride[0];
  v.rms_eps = static_cast<float>(p.rms_eps), v.hc_eps = static_cast<float>(p.hc_eps);
  v.mean_row = 1.f / static_cast<float>(p.hc * p.d), v.mean_channels = 1.f / static_cast<float>(p.d);
  return v;
}
// A core makes the coefficients of 64 tokens in about the time of eight rows of
// y.
inline int64_t set_tokens(MhcFinishTiling& v, int64_t tokens, bool mixes) {
  const int64_t cores = vector_cores();
  v.tokens = static_cast<int32_t>(tokens);
  v.groups = static_cast<int32_t>(ceil_div<int64_t>(tokens, kMhcGroup));
  const int64_t some = cores / 8 > 1 ? cores / 8 : 1;
  v.mix_blocks = !mixes ? 0 : static_cast<int32_t>(v.groups < some ? v.groups : some);
  const int64_t others = cores > v.mix_blocks ? cores - v.mix_blocks : 1;
  return v.mix_blocks + (tokens < others ? tokens : others);
}

// One launch whose cores meet (mhc_once.h), as many as 0 blocks where that does not do: more tokens than stay in local
// memory, or a launch that can't wait for room for all of its blocks. (CANN 8's can't: two of them in two streams could
// wait for each other's cores for ever.)
inline int64_t once_blocks(MhcOnceTiling& v, int64_t tokens, int64_t element, bool mix, bool mixes) {
#if defined(DSV4_ASCEND_ACLRT)
  return 0;
#endif
  if (!tokens || tokens > kMhcOnceTokens) return 0;
  set_tokens(v.project, tokens);
  MhcFinishTiling& f = v.finish;
  f.tokens = v.project.tokens, f.groups = v.project.groups;
  const int64_t hc = f.hc, slices = f.slices, lanes = f.groups * kMhcGroup, wanted = slices + (mixes ? f.groups : 0),
                blocks = wanted < vector_cores() ? wanted : vector_cores(), own = ceil_div(slices, blocks);
  // The buffers of steps 2 and 3; the first line's sums are twice 16 slices of whole vectors.
  const auto sums = [](int64_t rows) { return 2 * 16 * round_up<int64_t>(rows * kMhcGroup, kMhcLanes) * 4; };
  const int64_t weights = sums(1 + hc) + 2 * hc * kMhcGroup * 4 + 384 * 4,
                mixing = mixes ? sums(1 + f.columns) + (2560 + 1344 + (1 + f.columns) * kMhcLanes + 8704) * 4 : 0,
                asked = f.norm && slices > hc ? slices : hc,
                joining = (lanes * (asked + hc * 8 + own) + kMhcGroup * kMhcSlice * (1 + hc) + 336) * 4;
  const int64_t least = weights + mixing > joining ? weights + mixing : joining;
  v.kept = static_cast<int32_t>(own * tokens * hc * kMhcSlice * element);
  v.project.wide = 1;
  for (v.project.each = kMhcGroup; v.project.each > 0; v.project.each /= 2) {
    const int64_t projecting = project_bytes(hc, f.columns, 1, v.project.each, element, mix, true);
    v.pool = static_cast<int32_t>(projecting > least ? projecting : least);
    if (v.kept + v.pool <= kUnified) break;
  }
  v.weights = partial_floats(tokens, f.d, f.columns), v.squares = v.weights + lanes * hc;
  v.totals = v.squares + lanes * slices, v.summed = !mixes;
  return v.project.each ? blocks : 0;
}

inline uint8_t* from_token(const TensorView& view, int64_t t) {
  return static_cast<uint8_t*>(view.data) + t * view.stride[0] * element_bytes(view.dtype);
}

}  // namespace dsv4::ascend::mhc
