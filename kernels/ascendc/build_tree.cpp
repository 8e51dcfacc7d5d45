// SPDX-License-Identifier: Apache-2.0
// build_tree: parents, links, positions and attention mask of the chosen draft nodes.
// 16 bytes read and 40 written a node, and the mask: n*n bytes a request, n*(s + n) in mode full, which is
// all that can take longer than a launch. Work: requests in groups of whole output lines over all vector
// cores (as a rule 16 of them), as many at a time as local memory holds; the flat mask of mode full is split
// for itself, by its bytes in whole lines, and a core builds again the trees whose rows it writes, about a
// microsecond each. How a tree is built: tree_builder.h. Contract: include/dsv4spec/tree.h.
//   UB (168.3 KB):  requests 140 | lengths 8 | ones 16 | status 2 | index 2 | a cut row 0.25
#include "tree_builder.h"

namespace dsv4_ascend {
namespace {

class BuildTree {
 public:
  __aicore__ inline BuildTree(const TreeInputs& in, GM_ADDR tokens, GM_ADDR positions, GM_ADDR retrieve,
                              GM_ADDR next, GM_ADDR sibling, GM_ADDR mask, GM_ADDR status,
                              const BuildTreeTiling& t)
      : t_(t), live_(in.live), tokens_(tokens), positions_(positions), retrieve_(retrieve), next_(next),
        sibling_(sibling), mask_(mask), status_(status) {
    pipe_.InitBuffer(buffer_,
                     kTreeBytes + kTreeLengths * 8 + kTreeOnes + kTreeRequests * kBlock + kTreeNodes * 9);
    Bytes rest = buffer_.Get<uint8_t>();
    const Bytes trees = take(rest, kTreeBytes);
    lengths_ = {take(rest, kTreeLengths * 8), t.live.wide != 0};
    ones_ = take(rest, kTreeOnes);
    states_ = take(rest, kTreeRequests * kBlock);
    piece_ = take(rest, kTreeNodes);
    builder_.init(t, in, trees, rest);
  }

  __aicore__ inline void run() {
    builder_.begin();
    const Range mine = share_of(t_.requests, GetBlockIdx());
    for (int64_t b = mine.begin; b < mine.end; b += t_.rows) requests(b, least(t_.rows, mine.end - b));
    if (t_.mask_mode == kTreeFull) full_mask(share_of(t_.mask, GetBlockIdx()));
  }

 private:
  __aicore__ inline void requests(int64_t first, int64_t count) {
    builder_.build(first, count, t_.mask_mode != kTreeFull);
    if (t_.with_status) {
      order<HardEvent::MTE3_S>();
      for (int64_t r = 0; r < count; ++r)
        states_.ReinterpretCast<int32_t>().SetValue(static_cast<uint32_t>(r * (kBlock / 4)),
                                                    builder_.broken(r) ? 1 : 0);
      order<HardEvent::S_MTE3>();
      rows_out(status_ + first * 4, states_, 4, count, 4, kBlock);
    }
    for (int64_t r = 0; r < count;) {  // stretches without padding
      int64_t end = r;
      while (end < count && builder_.length(end) > 0) ++end;
      if (end > r) write(first + r, r, end - r);
      r = end + 1;
    }
  }

  __aicore__ inline void write(int64_t b, int64_t r, int64_t count) {
    const TreeBuilder& v = builder_;
    const int64_t n = t_.n, ids = v.ids_pitch();
    rows_out(tokens_ + b * t_.tokens_stride, v.bonus(r), t_.tokens_stride, count, 8, kBlock);
    rows_out(tokens_ + b * t_.tokens_stride + 8, v.drafts(r), t_.tokens_stride, count, (n - 1) * 8, ids);
    rows_out(positions_ + b * n * 8, v.positions(r), n * 8, count, n * 8, ids);
    rows_out(retrieve_ + b * t_.retrieve_stride, v.retrieve(r), t_.retrieve_stride, count, n * 8, ids);
    rows_out(next_ + b * t_.next_stride, v.next(r), t_.next_stride, count, n * 8, ids);
    rows_out(sibling_ + b * t_.sibling_stride, v.sibling(r), t_.sibling_stride, count, n * 8, ids);
    if (t_.mask_mode == kTreeRows)
      for (int64_t i = 0; i < count; ++i)
        rows_out(mask_ + (b + i) * n * n, v.mask_row(r + i, 0), n, n, n, v.node_pitch());
    else if (t_.mask_mode == kTreeBits)
      rows_out(mask_ + b * n * t_.item, v.bits_out(r), n * t_.item, count, n * t_.item, v.bits_pitch());
  }

  // ---- mode full: bytes `mine` of the mask
  __aicore__ inline void full_mask(const Range& mine) {
    if (mine.begin == mine.end) return;
    fill(ones_, 0x01010101, kTreeOnes);
    order<HardEvent::V_MTE3>();
    const int64_t size = t_.mask.total, n = t_.n, bytes = int_bytes(t_.live.wide);
    int64_t offset =
        0;  // where the request's rows begin; lengths beyond the mask's size are as good as that size
    for (int64_t first = 0; first < t_.B && offset < mine.end; first += kTreeLengths) {
      const int64_t count = least(kTreeLengths, t_.B - first);
      order<HardEvent::S_MTE2>();
      bytes_in(lengths_.data, live_ + first * bytes, count * bytes);
      order<HardEvent::MTE2_S>();
      for (int64_t i = 0; i < count && offset < mine.end; ++i) {
        const int64_t s = lengths_.at(i), prefix = least(most(s, 0), size), end = offset + n * (prefix + n);
        if (s > 0 && end > mine.begin) full_rows(first + i, offset, prefix, mine);
        offset = least(end, size);
      }
    }
  }

  __aicore__ inline void full_rows(int64_t b, int64_t offset, int64_t prefix, const Range& mine) {
    const int64_t n = t_.n, step = prefix + n;
    builder_.build(b, 1, true);
    const bool inside = offset >= mine.begin && offset + n * step <= mine.end;
    if (inside) rows_out(mask_ + offset + prefix, builder_.mask_row(0, 0), step, n, n, builder_.node_pitch());
    int64_t i = offset >= mine.begin ? 0 : (mine.begin - offset) / step;
    for (; i < n && offset + i * step < mine.end; ++i) {
      const int64_t at = offset + i * step, tree = at + prefix;
      const int64_t end = least(tree, mine.end);
      for (int64_t from = most(at, mine.begin); from < end; from += kTreeOnes)
        bytes_out(mask_ + from, ones_, least(kTreeOnes, end - from));
      if (!inside) cut_row(i, tree, most(tree, mine.begin), least(tree + n, mine.end));
    }
  }
  // Bytes from .. end-1 of tree row i, which begins at `tree`.
  __aicore__ inline void cut_row(int64_t i, int64_t tree, int64_t from, int64_t end) {
    if (from >= end) return;
    const Bytes row = builder_.mask_row(0, i);
    if (from == tree) return bytes_out(mask_ + from, row, end - from);
    order<HardEvent::MTE3_S>();  // a transfer begins at a block of local memory
    for (int64_t c = from; c < end; ++c)
      piece_.SetValue(static_cast<uint32_t>(c - from), row.GetValue(static_cast<uint32_t>(c - tree)));
    order<HardEvent::S_MTE3>();
    bytes_out(mask_ + from, piece_, end - from);
  }

  const BuildTreeTiling& t_;
  GM_ADDR live_;
  GM_ADDR tokens_;
  GM_ADDR positions_;
  GM_ADDR retrieve_;
  GM_ADDR next_;
  GM_ADDR sibling_;
  GM_ADDR mask_;
  GM_ADDR status_;
  TPipe pipe_;
  TBuf<TPosition::VECIN> buffer_;
  Ints lengths_;
  Bytes ones_, states_, piece_;
  TreeBuilder builder_;
};

}  // namespace
}  // namespace dsv4_ascend

extern "C" DSV4_VECTOR_KERNEL void dsv4_build_tree_aiv(GM_ADDR bonus, GM_ADDR parents, GM_ADDR selected,
                                                       GM_ADDR drafts, GM_ADDR live, GM_ADDR tokens,
                                                       GM_ADDR positions, GM_ADDR retrieve, GM_ADDR next,
                                                       GM_ADDR sibling, GM_ADDR mask, GM_ADDR status,
                                                       BuildTreeTiling tiling) {
  KERNEL_TASK_TYPE_DEFAULT(KERNEL_TYPE_AIV_ONLY);
  const dsv4_ascend::TreeInputs in{bonus, parents, selected, drafts, live};
  dsv4_ascend::BuildTree(in, tokens, positions, retrieve, next, sibling, mask, status, tiling).run();
}
