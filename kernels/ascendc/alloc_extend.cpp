// SPDX-License-Identifier: Apache-2.0
// alloc_extend: slots of newly cached tokens, from the old partial page and from fresh pages.
// 8 bytes written a token, 16 to 24 read a request (by every core, from L2), a page id a page: a launch's
// latency is the floor up to some hundred thousand tokens. Work: tokens in groups of whole output lines, 512
// at least, over all vector cores. Every core adds up all requests for itself (alloc_sums.h; other lengths
// and page sizes by the scalar unit) and knows then whether there are pages enough and where its tokens
// begin. Slots within a page are neighbours: long stretches below 2^31 are an index plus a number, widened by
// the vector unit. Contract: include/dsv4spec/paging.h.
//   UB (46.1 KB):  prefix, final lengths, last slots 12 | page ids 2 | slots 16, before them the sums' work
//   rows | index 8 | work 8 | sums, results 0.1
#include "alloc_extend_tiling.h"
#include "alloc_sums.h"

namespace dsv4_ascend {
namespace {

constexpr int64_t kRequests = 512, kPages = 256, kTile = 2048;  // in local memory
constexpr int64_t kLargest = 0x7fffffffffffffff;
constexpr int64_t kStretch = 32;  // slots from which the vector unit forms them

class AllocExtend {
 public:
  __aicore__ inline AllocExtend(GM_ADDR prefix, GM_ADDR seq, GM_ADDR last, GM_ADDR pages, GM_ADDR slots,
                                GM_ADDR num_new_pages, GM_ADDR status, const AllocExtendTiling& t)
      : t_(t), prefix_(prefix), seq_(seq), last_(last), pages_(pages), slots_(slots),
        num_new_pages_(num_new_pages), status_(status) {
    pipe_.InitBuffer(buffer_, kRequests * 24 + kPages * 8 + kTile * 16 + 4 * kBlock);
    Bytes rest = buffer_.Get<uint8_t>();
    prefixes_ = {take(rest, kRequests * 8), t.prefix_wide != 0};
    lengths_ = {take(rest, kRequests * 8), t.seq_wide != 0};
    lasts_ = {take(rest, kRequests * 8), true};
    ids_ = {take(rest, kPages * 8), t.pages_wide != 0};
    out_ = take(rest, kTile * 8).ReinterpretCast<int64_t>();
    index_ = take(rest, kTile * 4).ReinterpretCast<int32_t>();
    work_ = take(rest, kTile * 4).ReinterpretCast<int32_t>();
    results_ = take(rest, 2 * kBlock).ReinterpretCast<int32_t>();
    sums_.init(out_.ReinterpretCast<uint8_t>(), rest, kRequests);
  }

  __aicore__ inline void run() {
    const Range mine = share_of(t_.tokens, GetBlockIdx());
    CreateVecIndex(index_, static_cast<int32_t>(0), static_cast<uint32_t>(kTile));
    Cursor start{0, 0, 0};
    const Need total = add_up(mine.begin, start);
    const bool enough = total.tokens <= t_.tokens.total && total.pages <= t_.free_count;
    if (GetBlockIdx() == 0) report(total, enough);
    if (!enough) return;
    for (int64_t at = mine.begin; at < mine.end; at += kTile)
      tile(start, at, least(at + kTile, mine.end), total.tokens);
  }

 private:
  struct Need {
    int64_t tokens, pages;
  };
  // Positions begin .. begin + tokens - 1, those of pages >= first_page on new ones.
  struct Request {
    int64_t begin, first_page;
    Need need;
  };
  struct Cursor {
    int64_t b, tokens, pages;  // a request, and what those in front of it need
  };

  __aicore__ inline Request request(int64_t b) {
    const int64_t first = b / kRequests * kRequests;
    if (first != loaded_) load(first);
    const int64_t i = b - first, seq = lengths_.at(i), prefix = prefixes_.at(i);
    if (seq <= 0 || prefix < 0 || prefix > seq) return {0, 0, {0, 0}};  // the last two: as padding
    const int64_t first_page = rounded_up(prefix, t_.page);
    return {prefix, first_page, {seq - prefix, rounded_up(seq, t_.page) - first_page}};
  }
  __aicore__ inline void load(int64_t first) {
    const int64_t count = least(kRequests, t_.B - first);
    order<HardEvent::S_MTE2>();
    order<HardEvent::V_MTE2>();
    bytes_in(prefixes_.data, prefix_ + first * int_bytes(t_.prefix_wide), count * int_bytes(t_.prefix_wide));
    bytes_in(lengths_.data, seq_ + first * int_bytes(t_.seq_wide), count * int_bytes(t_.seq_wide));
    bytes_in(lasts_.data, last_ + first * 8, count * 8);
    order<HardEvent::MTE2_S>();
    order<HardEvent::MTE2_V>();
    loaded_ = first;
  }

  // What all need, bounded by one more than there is, which keeps the sums from overflowing; and the request
  // in which token `begin` lies.
  __aicore__ inline Need add_up(int64_t begin, Cursor& start) {
    const int64_t most_tokens = t_.tokens.total + 1, most_pages = t_.free_count + 1;
    if (t_.vector) return add_groups(begin, start);
    Need sum{0, 0};
    for (int64_t b = 0; b < t_.B; ++b) {
      const Need need = request(b).need;
      if (sum.tokens <= begin) start = {b, sum.tokens, sum.pages};
      sum.tokens = least(sum.tokens + least(need.tokens, most_tokens), most_tokens);
      sum.pages = least(sum.pages + least(need.pages, most_pages), most_pages);
    }
    return sum;
  }

  // The same by the vector unit; the request is then the first of 64.
  __aicore__ inline Need add_groups(int64_t begin, Cursor& start) {
    Need sum{0, 0};
    for (int64_t first = 0; first < t_.B; first += kRequests) {
      const int64_t count = least(kRequests, t_.B - first);
      load(first);
      sums_.add_up(prefixes_.data.ReinterpretCast<int32_t>(), lengths_.data.ReinterpretCast<int32_t>(),
                   t_.page.shift, static_cast<int32_t>(t_.tokens.total + 1), static_cast<int32_t>(count));
      for (int64_t i = 0; i < count; i += kSumGroup) {
        if (sum.tokens <= begin) start = {first + i, sum.tokens, sum.pages};
        sum.tokens += sums_.tokens(i / kSumGroup);
        sum.pages += sums_.pages(i / kSumGroup);
      }
    }
    return sum;
  }

  __aicore__ inline void report(const Need& total, bool enough) {
    results_.SetValue(0, enough ? 0 : 1);
    results_.SetValue(kBlock / 4, static_cast<int32_t>(total.pages));
    order<HardEvent::S_MTE3>();
    if (t_.with_status) bytes_out(status_, results_.ReinterpretCast<uint8_t>(), 4);
    if (enough) bytes_out(num_new_pages_, results_[kBlock / 4].ReinterpretCast<uint8_t>(), 4);
  }

  // Tokens at .. end-1; `c` is the request of the first one and becomes that of the one behind the last.
  __aicore__ inline void tile(Cursor& c, int64_t at, int64_t end, int64_t all) {
    const int64_t first = at;
    order<HardEvent::S_V>();
    order<HardEvent::MTE3_V>();
    fill(out_.ReinterpretCast<uint8_t>(), -1, (end - first) * 8);
    order<HardEvent::V_S>();
    while (at < end && at < all) {
      const Request r = request(c.b);
      if (at >= c.tokens + r.need.tokens) {
        c = {c.b + 1, c.tokens + r.need.tokens, c.pages + r.need.pages};
        continue;
      }
      const int64_t position = r.begin + at - c.tokens, index = quotient(position, t_.page);
      int64_t count = least(end, c.tokens + r.need.tokens) - at;
      if (index < r.first_page) {  // the old page
        count = least(count, r.first_page * t_.page.value - position);
        const int64_t last = lasts_.at(c.b % kRequests);
        if (last >= -1 && last != kLargest && remainder(last + 1, t_.page) == remainder(r.begin, t_.page))
          stretch(at - first, count, wrapping_sum(last + 1, position - r.begin));
      } else {
        const int64_t within = position - index * t_.page.value;
        count = least(count, t_.page.value - within);
        const int64_t id = page_id(c.pages + index - r.first_page);
        if (id >= 0 && id <= kMaxPageId) stretch(at - first, count, id * t_.page.value + within);
      }
      at += count;
    }
    order<HardEvent::S_MTE3>();
    order<HardEvent::V_MTE3>();
    bytes_out(slots_ + first * 8, out_.ReinterpretCast<uint8_t>(), (end - first) * 8);
    order<HardEvent::MTE3_S>();
  }

  __aicore__ inline int64_t page_id(int64_t i) {
    const int64_t first = i / kPages * kPages, size = int_bytes(t_.pages_wide);
    if (first != pages_loaded_) {
      order<HardEvent::S_MTE2>();
      bytes_in(ids_.data, pages_ + first * size, least(kPages, t_.free_count - first) * size);
      order<HardEvent::MTE2_S>();
      pages_loaded_ = first;
    }
    return ids_.at(i - first);
  }

  // Places at .. at+count-1 become slot, slot+1, ..
  __aicore__ inline void stretch(int64_t at, int64_t count, int64_t slot) {
    const int64_t end = at + count;
    if (count >= kStretch && slot <= kMaxPageId - count) {
      const int64_t begin = (at + 3) / 4 * 4, whole = end / 4 * 4;  // blocks of 32 bytes
      const int32_t body = static_cast<int32_t>(whole - begin);
      scalars(at, begin, slot);
      vector_step();
      Adds(work_, index_, static_cast<int32_t>(slot + begin - at), body);
      vector_step();
      Cast(out_[static_cast<uint32_t>(begin)], work_, RoundMode::CAST_NONE, static_cast<uint32_t>(body));
      scalars(whole, end, slot + whole - at);
    } else {
      scalars(at, end, slot);
    }
  }
  __aicore__ inline void scalars(int64_t at, int64_t end, int64_t slot) {
    for (; at < end; ++at, slot = wrapping_sum(slot, 1)) out_.SetValue(static_cast<uint32_t>(at), slot);
  }

  const AllocExtendTiling& t_;
  GM_ADDR prefix_;
  GM_ADDR seq_;
  GM_ADDR last_;
  GM_ADDR pages_;
  GM_ADDR slots_;
  GM_ADDR num_new_pages_;
  GM_ADDR status_;
  TPipe pipe_;
  TBuf<TPosition::VECIN> buffer_;
  Ints prefixes_, lengths_, lasts_, ids_;
  LocalTensor<int64_t> out_;
  LocalTensor<int32_t> index_, work_, results_;
  NeedSums sums_;
  int64_t loaded_ = -1, pages_loaded_ = -1;  // the first request and page in local memory
};

}  // namespace
}  // namespace dsv4_ascend

extern "C" DSV4_VECTOR_KERNEL void dsv4_alloc_extend_aiv(GM_ADDR prefix, GM_ADDR seq, GM_ADDR last,
                                                         GM_ADDR pages, GM_ADDR slots,
                                                         GM_ADDR num_new_pages, GM_ADDR status,
                                                         AllocExtendTiling tiling) {
  KERNEL_TASK_TYPE_DEFAULT(KERNEL_TYPE_AIV_ONLY);
  dsv4_ascend::AllocExtend(prefix, seq, last, pages, slots, num_new_pages, status, tiling).run();
}
