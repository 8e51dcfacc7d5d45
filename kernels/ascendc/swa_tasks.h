// SPDX-License-Identifier: Apache-2.0
// The order in which a group of cores works: units of query rows, in each the segments of a request, in each
// tiles of up to v.pairs (row, head) pairs, in each (where windows are long) the parts of its keys. Cube and
// vector cores walk through the same list.
#pragma once
#include "swa_request.h"

namespace dsv4_ascend {

struct SwaTask {
  int64_t t;                       // the first row in q
  int32_t slot;                    // of the request, see SwaTasks::request
  int32_t number;                  // of the task, from 0
  int32_t row, rows, head, heads;  // of the segment, of q: pair i is row i / heads, head i % heads
  SwaPart part;
  int32_t base;       // of the part's scores and weights: key base + c is column c
  int32_t keys;       // the number of the set of keys, from 0
  bool new_keys;      // a task of these keys is the first
  bool drop_keys;     // it is the last
  bool first, last;   // of the tile's parts
  __aicore__ inline int32_t pairs() const { return rows * heads; }
  __aicore__ inline int32_t count() const { return part.end - part.begin; }
};

enum class SwaNext { Task, Nothing, End };  // Nothing: rows without a key, or padding

class SwaTasks {
 public:
  __aicore__ inline SwaTasks(const SwaTiling& tiling, GM_ADDR table, GM_ADDR starts, GM_ADDR lens, GM_ADDR mask,
                             int64_t group)
      : v(tiling),
        requests_{{tiling, table, starts, lens, mask}, {tiling, table, starts, lens, mask},
                  {tiling, table, starts, lens, mask}} {
    const Share mine = share_of(ceil_div<int64_t>(v.T, v.tile_rows), GetBlockNum(), group);
    row_ = mine.first * v.tile_rows, last_ = min_of((mine.first + mine.count) * v.tile_rows, v.T), end_ = row_;
  }

  // The requests of a task, of the one before and of the one after it are kept.
  __aicore__ inline const SwaRequest& request(const SwaTask& task) const { return requests_[task.slot]; }

  // Nothing: `task` says which rows, and `real` whether they belong to a request.
  __aicore__ inline SwaNext next(SwaTask& task, bool& real) {
    if (tile_row_ < 0) {
      if (row_ >= last_) return SwaNext::End;
      if (row_ >= end_) end_ = min_of(row_ + v.tile_rows, last_);
      const int32_t slot = (slot_ + 1) % kKept;
      SwaRequest& r = requests_[slot];
      real = r.find(row_, end_);
      row_ += r.g.rows;
      part_ = real ? usable_part(r, r.keys.first / kSwaPart) : -1;
      if (part_ < 0) {
        task.t = r.g.t, task.row = 0, task.rows = r.g.rows, task.head = 0, task.heads = v.H;
        return SwaNext::Nothing;
      }
      slot_ = slot, first_part_ = part_, tile_row_ = tile_head_ = 0, fresh_ = true;
    }
    const SwaRequest& r = requests_[slot_];
    task.t = r.g.t, task.slot = slot_, task.number = count_++;
    task.row = tile_row_, task.rows = min_of(v.part_rows, r.g.rows - tile_row_);
    task.head = tile_head_, task.heads = min_of(v.part_heads, v.H - tile_head_);
    task.part = r.part(part_), task.base = part_ * kSwaPart, task.first = part_ == first_part_;
    part_ = usable_part(r, part_ + 1), task.last = part_ < 0;
    if (task.last) next_tile(task, r);
    task.new_keys = fresh_ || v.online, task.drop_keys = tile_row_ < 0 || v.online;
    fresh_ = false;
    if (task.new_keys) ++keys_;
    task.keys = keys_ - 1;
    return SwaNext::Task;
  }

 private:
  static constexpr int32_t kKept = 3;

  __aicore__ inline void next_tile(const SwaTask& task, const SwaRequest& r) {
    part_ = first_part_;
    tile_head_ += task.heads;
    if (tile_head_ < v.H) return;
    tile_head_ = 0, tile_row_ += task.rows;
    if (tile_row_ >= r.g.rows) tile_row_ = -1;
  }
  // The first part from `index` on in which a key has a page; -1: none.
  __aicore__ inline int32_t usable_part(const SwaRequest& r, int32_t index) const {
    for (; index < r.parts(); ++index)
      if (r.part(index).any) return index;
    return -1;
  }

  const SwaTiling& v;
  SwaRequest requests_[kKept];
  int64_t row_, last_, end_;
  int32_t slot_ = 0, tile_row_ = -1, tile_head_ = 0, part_ = 0, first_part_ = 0, count_ = 0, keys_ = 0;
  bool fresh_ = false;
};

}  // namespace dsv4_ascend
