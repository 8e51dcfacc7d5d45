// SPDX-License-Identifier: Apache-2.0
// verify_metadata: positions and destinations of the C4 and C128 entries that a verify window emits, start
// and used rows of each request. 20 bytes read and 16 written an entry, at most T/4 + B and T/128 + B of
// them, plus 16 bytes a request: a launch's latency is the floor. Work: each of the three outputs is split by
// itself, C128 from the last core downward. Packing, and UB: verify_rows.h; 12 KB more for lengths and the
// two outputs a request. Contract: include/dsv4spec/verify.h.
#include "verify_rows.h"

namespace dsv4_ascend {
namespace {

constexpr int64_t kWindowRequests = 512;  // at a time
constexpr uint32_t kWindowBytes = kWindowRequests * (8 + 2 * 4);

// start_pos = max(s, 0), seqused = s > 0 ? n : 0 of requests `mine`.
__aicore__ inline void write_window(const WindowTiling& w, GM_ADDR live, GM_ADDR start_pos, GM_ADDR seqused,
                                    const Range& mine, const Bytes& memory) {
  const Ints lengths{memory, w.live.wide != 0};
  const LocalTensor<int32_t> start = memory[kWindowRequests * 8].ReinterpretCast<int32_t>(),
                             used = memory[kWindowRequests * 12].ReinterpretCast<int32_t>();
  const int64_t size = int_bytes(w.live.wide);
  const int32_t n = static_cast<int32_t>(w.n);
  for (int64_t first = mine.begin; first < mine.end; first += kWindowRequests) {
    const int64_t count = least(kWindowRequests, mine.end - first);
    const int32_t m = static_cast<int32_t>(count);
    order<HardEvent::S_MTE2>();
    order<HardEvent::V_MTE2>();
    bytes_in(memory, live + first * size, count * size);
    if (w.live.wide) {  // no vector comparison takes int64
      order<HardEvent::MTE2_S>();
      order<HardEvent::MTE3_S>();
      for (int64_t i = 0; i < count; ++i) {
        const int64_t s = lengths.at(i);
        start.SetValue(static_cast<uint32_t>(i), s > 0 ? static_cast<int32_t>(s) : 0);
        used.SetValue(static_cast<uint32_t>(i), s > 0 ? n : 0);
      }
      order<HardEvent::S_MTE3>();
    } else {
      order<HardEvent::MTE2_V>();
      order<HardEvent::MTE3_V>();
      Maxs(start, memory.ReinterpretCast<int32_t>(), static_cast<int32_t>(0), m);
      vector_step();
      Mins(used, start, static_cast<int32_t>(1), m);
      vector_step();
      Muls(used, used, n, m);
      order<HardEvent::V_MTE3>();
    }
    bytes_out(start_pos + first * 4, start.ReinterpretCast<uint8_t>(), count * 4);
    bytes_out(seqused + first * 4, used.ReinterpretCast<uint8_t>(), count * 4);
  }
}

}  // namespace
}  // namespace dsv4_ascend

extern "C" DSV4_VECTOR_KERNEL void dsv4_verify_metadata_aiv(GM_ADDR positions, GM_ADDR live,
                                                            GM_ADDR c4_table, GM_ADDR c128_table,
                                                            GM_ADDR c4_positions, GM_ADDR c128_positions,
                                                            GM_ADDR start_pos, GM_ADDR seqused,
                                                            GM_ADDR c4_loc, GM_ADDR c128_loc,
                                                            VerifyMetadataTiling tiling) {
  KERNEL_TASK_TYPE_DEFAULT(KERNEL_TYPE_AIV_ONLY);
  using namespace dsv4_ascend;
  TPipe pipe;
  TBuf<TPosition::VECIN> buffer;
  pipe.InitBuffer(buffer, kPackBytes + kWindowBytes);
  const Bytes memory = buffer.Get<uint8_t>();
  const int64_t core = GetBlockIdx(), last = GetBlockNum() - 1;
  write_window(tiling.window, live, start_pos, seqused, share_of(tiling.requests, core), memory[kPackBytes]);
  Packer packer(tiling.window, positions, live, memory);
  packer.pack(tiling.c4, c4_table, c4_positions, c4_loc, share_of(tiling.c4.entries, core));
  packer.pack(tiling.c128, c128_table, c128_positions, c128_loc, share_of(tiling.c128.entries, last - core));
}
