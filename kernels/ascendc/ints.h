// SPDX-License-Identifier: Apache-2.0
// What the integer kernels share on the device: order between pipes, rows in and out of the unified buffer,
// tensors of either index dtype, division, a core's share of the work. Lengths, slots and tokens are int64 or
// must be computed in int64, for which dav-2201 has no vector arithmetic: these numbers go through the scalar
// unit, a few to a request.
#pragma once
#include "ints_tiling.h"
#include "kernel.h"

namespace dsv4_ascend {

using Bytes = LocalTensor<uint8_t>;

constexpr int64_t kMaxPageId = 2147483647;
constexpr int64_t kMaxTransfers = 4095;  // of one DataCopyPad

// What the second pipe does from here on comes after all that the first one has been given.
template <HardEvent event>
__aicore__ inline void order() {
  const TEventID id = GetTPipePtr()->FetchEventID(event);
  SetFlag<event>(id);
  WaitFlag<event>(id);
}
// Vector instructions run one into the other on dav-2201.
__aicore__ inline void vector_step() { PipeBarrier<PIPE_V>(); }

__aicore__ inline int64_t least(int64_t a, int64_t b) { return a < b ? a : b; }
__aicore__ inline int64_t most(int64_t a, int64_t b) { return a > b ? a : b; }
__aicore__ inline int64_t padded(int64_t bytes) { return (bytes + kBlock - 1) / kBlock * kBlock; }
// a + b for any numbers: two's complement, as the references have it.
__aicore__ inline int64_t wrapping_sum(int64_t a, int64_t b) {
  return static_cast<int64_t>(static_cast<uint64_t>(a) + static_cast<uint64_t>(b));
}

__aicore__ inline int64_t quotient(int64_t x, const Division& d) {
  return d.shift >= 0 ? x >> d.shift : x / d.value;
}
__aicore__ inline int64_t remainder(int64_t x, const Division& d) {
  return d.shift >= 0 ? x & (d.value - 1) : x % d.value;
}
__aicore__ inline int64_t rounded_up(int64_t x, const Division& d) {
  return quotient(x, d) + (remainder(x, d) != 0);
}

struct Range {
  int64_t begin, end;
};
// A core's items: whole groups, their number the same on all cores or one more on the first ones.
__aicore__ inline Range share_of(const LineSplit& s, int64_t core) {
  const Share groups = share_of(s.groups, GetBlockNum(), core);
  const int64_t first = groups.first, last = first + groups.count;
  if (first == last) return {0, 0};
  return {first == 0 ? 0 : least(s.total, s.lead + first * s.unit), least(s.total, s.lead + last * s.unit)};
}

// `rows` rows of `bytes` bytes: `stride` bytes apart in global memory, `pitch` (whole blocks) in local
// memory.
__aicore__ inline void rows_in(const Bytes& local, GM_ADDR memory, int64_t stride, int64_t rows,
                               int64_t bytes, int64_t pitch) {
  if (bytes == 0) return;
  const int64_t gap = stride - bytes;
  const bool together = gap >= 0 && gap <= 0xffffffff;
  for (int64_t done = 0; done < rows;) {
    const int64_t count = together ? least(rows - done, kMaxTransfers) : 1;
    DataCopyPad(local[static_cast<uint32_t>(done * pitch)], global<uint8_t>(memory + done * stride),
                DataCopyExtParams(static_cast<uint16_t>(count), static_cast<uint32_t>(bytes),
                                  count > 1 ? static_cast<uint32_t>(gap) : 0,
                                  static_cast<uint32_t>((pitch - padded(bytes)) / kBlock), 0),
                DataCopyPadExtParams<uint8_t>(false, 0, 0, 0));
    done += count;
  }
}
__aicore__ inline void rows_out(GM_ADDR memory, const Bytes& local, int64_t stride, int64_t rows,
                                int64_t bytes, int64_t pitch) {
  if (bytes == 0) return;
  const int64_t gap = stride - bytes;
  const bool together = gap >= 0 && gap <= 0xffffffff;
  for (int64_t done = 0; done < rows;) {
    const int64_t count = together ? least(rows - done, kMaxTransfers) : 1;
    DataCopyPad(global<uint8_t>(memory + done * stride), local[static_cast<uint32_t>(done * pitch)],
                DataCopyExtParams(static_cast<uint16_t>(count), static_cast<uint32_t>(bytes),
                                  static_cast<uint32_t>((pitch - padded(bytes)) / kBlock),
                                  count > 1 ? static_cast<uint32_t>(gap) : 0, 0));
    done += count;
  }
}
__aicore__ inline void bytes_in(const Bytes& local, GM_ADDR memory, int64_t bytes) {
  rows_in(local, memory, bytes, 1, bytes, padded(bytes));
}
__aicore__ inline void bytes_out(GM_ADDR memory, const Bytes& local, int64_t bytes) {
  rows_out(memory, local, bytes, 1, bytes, padded(bytes));
}

// Numbers in local memory that are int32 or int64.
struct Ints {
  Bytes data;
  bool wide;
  __aicore__ inline int64_t at(int64_t i) const {
    const uint32_t index = static_cast<uint32_t>(i);
    return wide ? data.ReinterpretCast<int64_t>().GetValue(index)
                : data.ReinterpretCast<int32_t>().GetValue(index);
  }
};
__aicore__ inline int64_t int_bytes(int32_t wide) { return wide ? 8 : 4; }

// The next bytes of `rest`.
__aicore__ inline Bytes take(Bytes& rest, int64_t bytes) {
  const Bytes taken = rest;
  rest = rest[static_cast<uint32_t>(bytes)];
  return taken;
}

// `bytes` bytes of 0 or of ones (-1 in every width), by the vector unit; whole blocks.
__aicore__ inline void fill(const Bytes& local, int32_t value, int64_t bytes) {
  Duplicate(local.ReinterpretCast<int32_t>(), value, static_cast<int32_t>(padded(bytes) / 4));
}

}  // namespace dsv4_ascend
