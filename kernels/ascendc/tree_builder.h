// SPDX-License-Identifier: Apache-2.0
// The trees of some requests in local memory. Parents are found by the scalar unit, by binary search where
// the chosen candidates ascend, as they should, and one after the other where they do not; so are links,
// depths and positions. A mask row of bytes is its parent's row with one byte more: the scalar unit sets that
// byte, the vector unit joins the rows, ancestors first, the same node of all requests side by side.
#pragma once
#include "build_tree_tiling.h"
#include "ints.h"

namespace dsv4_ascend {

constexpr int64_t kTreeNodes = 256;

struct TreeInputs {
  GM_ADDR bonus;
  GM_ADDR parents;
  GM_ADDR selected;
  GM_ADDR drafts;
  GM_ADDR live;
};

class TreeBuilder {
 public:
  __aicore__ inline void init(const BuildTreeTiling& t, const TreeInputs& in, const Bytes& trees,
                              const Bytes& numbers) {
    t_ = &t;
    in_ = in;
    ids_ = tree_pad(t.n * 8), words_ = tree_pad(t.n * 4);
    list_ = tree_list_bytes(t.n, t.width, t.whole_list);
    node_ = tree_node_pitch(t.n, t.rows);
    Bytes rest = trees;
    selected_at_ = take(rest, t.rows * ids_);
    drafts_at_ = take(rest, t.rows * ids_);
    positions_at_ = take(rest, t.rows * ids_);
    retrieve_at_ = take(rest, t.rows * ids_);
    next_at_ = take(rest, t.rows * ids_);
    sibling_at_ = take(rest, t.rows * ids_);
    parents_at_ = take(rest, t.rows * words_);
    depths_at_ = take(rest, t.rows * words_);
    bonus_at_ = take(rest, t.rows * kBlock);
    lengths_ = {take(rest, t.rows * kBlock), t.live.wide != 0};
    lists_at_ = take(rest, t.rows * list_);
    masks_at_ = rest;
    numbers_ = numbers.ReinterpretCast<int32_t>();
    row_ = numbers[kTreeNodes * 4].ReinterpretCast<int32_t>();
  }
  __aicore__ inline void begin() {
    CreateVecIndex(numbers_, static_cast<int32_t>(0), static_cast<uint32_t>(t_->n));
  }

  // Trees of requests first .. first+count-1, ready for transfers; their masks too if so asked.
  __aicore__ inline void build(int64_t first, int64_t count, bool with_mask) {
    load(first, count);
    prepare(first, count, with_mask);
    for (int64_t r = 0; r < count; ++r)
      if (length(r) > 0) grow(r, with_mask);
    if (with_mask && !bits()) join(count);
    order<HardEvent::S_MTE3>();
    order<HardEvent::V_MTE3>();
    order<HardEvent::MTE2_MTE3>();
    order<HardEvent::V_S>();
  }

  __aicore__ inline int64_t ids_pitch() const { return ids_; }
  __aicore__ inline int64_t node_pitch() const { return node_; }
  __aicore__ inline int64_t bits_pitch() const { return 2 * words_; }
  __aicore__ inline int64_t length(int64_t r) const { return lengths_.at(r); }
  __aicore__ inline Bytes bonus(int64_t r) const { return part(bonus_at_, r * kBlock); }
  __aicore__ inline Bytes drafts(int64_t r) const { return part(drafts_at_, r * ids_); }
  __aicore__ inline Bytes positions(int64_t r) const { return part(positions_at_, r * ids_); }
  __aicore__ inline Bytes retrieve(int64_t r) const { return part(retrieve_at_, r * ids_); }
  __aicore__ inline Bytes next(int64_t r) const { return part(next_at_, r * ids_); }
  __aicore__ inline Bytes sibling(int64_t r) const { return part(sibling_at_, r * ids_); }
  __aicore__ inline Bytes mask_row(int64_t r, int64_t i) const {
    return part(masks_at_, i * node_ + r * tree_pad(t_->n));
  }
  __aicore__ inline Bytes bits_out(int64_t r) const { return part(masks_at_, (2 * r + 1) * words_); }
  __aicore__ inline bool broken(int64_t r) const {
    if (length(r) <= 0) return false;
    for (int64_t i = 1; i < t_->n; ++i)
      if (parent(r, i) < 0) return true;
    return false;
  }

 private:
  __aicore__ inline bool bits() const { return t_->mask_mode == kTreeBits; }
  __aicore__ inline Bytes part(const Bytes& all, int64_t offset) const {
    return all[static_cast<uint32_t>(offset)];
  }
  __aicore__ inline int32_t parent(int64_t r, int64_t i) const {
    return part(parents_at_, r * words_).ReinterpretCast<int32_t>().GetValue(static_cast<uint32_t>(i));
  }
  // The flat number of node i >= 1.
  __aicore__ inline int64_t chosen(int64_t r, int64_t i) const {
    return part(selected_at_, r * ids_).ReinterpretCast<int64_t>().GetValue(static_cast<uint32_t>(i - 1));
  }
  // Which entry of the parent list node i hangs on; -1 without one.
  __aicore__ inline int64_t group(int64_t r, int64_t i) const {
    const int64_t flat = chosen(r, i);
    const int64_t g = flat < 0 || flat > kMaxPageId ? -1 : quotient(flat, t_->topk);
    return g < t_->width || g == 0 ? g : -1;
  }

  __aicore__ inline void load(int64_t first, int64_t count) {
    const int64_t n = t_->n, bytes = int_bytes(t_->live.wide);
    order<HardEvent::S_MTE2>();
    order<HardEvent::V_MTE2>();
    order<HardEvent::MTE3_MTE2>();
    bytes_in(lengths_.data, in_.live + first * bytes, count * bytes);
    rows_in(bonus_at_, in_.bonus + first * 8, 8, count, 8, kBlock);
    rows_in(selected_at_, in_.selected + first * t_->selected_stride, t_->selected_stride, count, (n - 1) * 8,
            ids_);
    rows_in(drafts_at_, in_.drafts + first * t_->draft_stride, t_->draft_stride, count, (n - 1) * 8, ids_);
    if (t_->whole_list)
      rows_in(lists_at_, in_.parents + first * t_->parent_stride, t_->parent_stride, count, t_->width * 8,
              list_);
    order<HardEvent::MTE2_S>();
    if (t_->whole_list) return;
    for (int64_t r = 0; r < count; ++r)  // one entry for each node
      for (int64_t i = 1; length(r) > 0 && i < n; ++i)
        if (group(r, i) > 0)
          bytes_in(part(lists_at_, r * list_ + i * kBlock),
                   in_.parents + (first + r) * t_->parent_stride + group(r, i) * 8, 8);
    order<HardEvent::MTE2_S>();
  }

  // What the scalar unit writes into, and the rows that no tree changes.
  __aicore__ inline void prepare(int64_t first, int64_t count, bool with_mask) {
    order<HardEvent::MTE3_V>();
    order<HardEvent::S_V>();
    fill(next_at_, -1, count * ids_);
    fill(sibling_at_, -1, count * ids_);
    if (with_mask && !bits()) fill(masks_at_, 0, t_->n * node_);
    for (int64_t r = 0; r < count; ++r) {
      vector_step();
      Adds(row_, numbers_, static_cast<int32_t>((first + r) * t_->n), static_cast<int32_t>(t_->n));
      vector_step();
      Cast(retrieve(r).ReinterpretCast<int64_t>(), row_, RoundMode::CAST_NONE, static_cast<uint32_t>(t_->n));
    }
    order<HardEvent::V_S>();
    order<HardEvent::MTE3_S>();
  }

  // The lowest node before node i that has the flat number its group hangs on; 0 the root, -1 none.
  __aicore__ inline int64_t parent_of(int64_t r, int64_t i, bool ascending) const {
    const int64_t g = group(r, i);
    if (g <= 0) return g;
    const int64_t at = t_->whole_list ? g : i * (kBlock / 8);
    const int64_t wanted =
        part(lists_at_, r * list_).ReinterpretCast<int64_t>().GetValue(static_cast<uint32_t>(at));
    int64_t node = 1;
    if (ascending) {
      for (int64_t end = i; node < end;) {
        const int64_t middle = (node + end) / 2;
        if (chosen(r, middle) < wanted)
          node = middle + 1;
        else
          end = middle;
      }
    } else {
      while (node < i && chosen(r, node) != wanted) ++node;
    }
    return node < i && chosen(r, node) == wanted ? node : -1;
  }

  __aicore__ inline void grow(int64_t r, bool with_mask) {
    const int64_t n = t_->n, s = length(r);
    const LocalTensor<int32_t> parents = part(parents_at_, r * words_).ReinterpretCast<int32_t>(),
                               depths = part(depths_at_, r * words_).ReinterpretCast<int32_t>();
    const LocalTensor<int64_t> positions_of = positions(r).ReinterpretCast<int64_t>(),
                               next_of = next(r).ReinterpretCast<int64_t>(),
                               sibling_of = sibling(r).ReinterpretCast<int64_t>();
    bool ascending = true;
    for (int64_t i = 1; i + 1 < n; ++i) ascending = ascending && chosen(r, i) <= chosen(r, i + 1);
    for (int64_t i = 0; i < n; ++i) {
      const uint32_t at = static_cast<uint32_t>(i);
      const int64_t up = i == 0 ? -1 : parent_of(r, i, ascending);
      const int32_t depth = up < 0 ? 0 : depths.GetValue(static_cast<uint32_t>(up)) + 1;
      parents.SetValue(at, static_cast<int32_t>(up));
      depths.SetValue(at, depth);
      positions_of.SetValue(at, wrapping_sum(s, depth));
      if (with_mask && bits()) set_bits(r, i, up);
      if (!with_mask || bits()) continue;
      mask_row(r, i).SetValue(at, static_cast<uint8_t>(1));
      if (up < 0) mask_row(r, i).SetValue(0, static_cast<uint8_t>(1));
    }
    for (int64_t i = n - 1; i > 0; --i) {
      const int32_t up = parents.GetValue(static_cast<uint32_t>(i));
      if (up < 0) continue;
      sibling_of.SetValue(static_cast<uint32_t>(i), next_of.GetValue(static_cast<uint32_t>(up)));
      next_of.SetValue(static_cast<uint32_t>(up), i);
    }
  }
  __aicore__ inline void set_bits(int64_t r, int64_t i, int64_t up) {
    const uint32_t at = static_cast<uint32_t>(i);
    const LocalTensor<uint32_t> rows = part(masks_at_, 2 * r * words_).ReinterpretCast<uint32_t>();
    const uint32_t above = up < 0 ? 1u : rows.GetValue(static_cast<uint32_t>(up)), row = above | 1u << at;
    rows.SetValue(at, row);
    const Bytes out = bits_out(r);
    if (t_->item == 1)
      out.SetValue(at, static_cast<uint8_t>(row));
    else if (t_->item == 2)
      out.ReinterpretCast<uint16_t>().SetValue(at, static_cast<uint16_t>(row));
    else
      out.ReinterpretCast<uint32_t>().SetValue(at, row);
  }

  // Ancestors into the rows of bytes.
  __aicore__ inline void join(int64_t count) {
    const int32_t pairs = static_cast<int32_t>(tree_pad(t_->n) / 2);
    order<HardEvent::S_V>();
    for (int64_t i = 1; i < t_->n; ++i) {
      for (int64_t r = 0; r < count; ++r) {
        const int64_t up = length(r) > 0 ? parent(r, i) : -1;
        if (up < 0) continue;
        const LocalTensor<int16_t> row = mask_row(r, i).ReinterpretCast<int16_t>();
        Or(row, row, mask_row(r, up).ReinterpretCast<int16_t>(), pairs);
      }
      vector_step();
    }
  }

  const BuildTreeTiling* t_ = nullptr;
  TreeInputs in_{};
  int64_t ids_ = 0, words_ = 0, list_ = 0;  // bytes of a request
  int64_t node_ = 0;                        // bytes from node to node of the mask
  Ints lengths_;
  Bytes selected_at_, drafts_at_, positions_at_, retrieve_at_, next_at_, sibling_at_, parents_at_, depths_at_,
      bonus_at_, lists_at_, masks_at_;
  LocalTensor<int32_t> numbers_, row_;
};

}  // namespace dsv4_ascend
