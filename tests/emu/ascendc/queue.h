// SPDX-License-Identifier: Apache-2.0
// TPipe, TQue, TQueBind, TBuf, TBufPool, and the flags between pipes.
#pragma once
#include "tensor.h"

namespace AscendC {

namespace emu_detail {
constexpr ascend_emu::Space space_of(TPosition p) {
  switch (p) {
    case TPosition::A1: case TPosition::B1: case TPosition::C1: case TPosition::TSCM: return ascend_emu::kL1;
    case TPosition::A2: return ascend_emu::kL0A;
    case TPosition::B2: return ascend_emu::kL0B;
    case TPosition::CO1: return ascend_emu::kL0C;
    case TPosition::C2: return ascend_emu::kBT;
    case TPosition::C2PIPE2GM: return ascend_emu::kFB;
    default: return ascend_emu::kUB;
  }
}
// The pipe that fills a buffer which is handed over at this position, and the one that empties it.
constexpr ascend_emu::Pipe producer_of(TPosition from) {
  switch (from) {
    case TPosition::GM: case TPosition::VECIN: case TPosition::A1: case TPosition::B1: case TPosition::C1:
    case TPosition::TSCM: return ascend_emu::kMTE2;
    case TPosition::VECOUT: case TPosition::VECCALC: return ascend_emu::kV;
    case TPosition::A2: case TPosition::B2: case TPosition::C2: case TPosition::C2PIPE2GM: return ascend_emu::kMTE1;
    case TPosition::CO1: return ascend_emu::kM;
    default: return ascend_emu::kPipes;
  }
}
constexpr ascend_emu::Pipe consumer_of(TPosition to) {
  switch (to) {
    case TPosition::VECIN: case TPosition::VECCALC: return ascend_emu::kV;
    case TPosition::VECOUT: return ascend_emu::kMTE3;
    case TPosition::A1: case TPosition::B1: case TPosition::C1: case TPosition::TSCM: return ascend_emu::kMTE1;
    case TPosition::A2: case TPosition::B2: case TPosition::C2: return ascend_emu::kM;
    case TPosition::CO1: case TPosition::C2PIPE2GM: return ascend_emu::kFix;
    default: return ascend_emu::kPipes;
  }
}
}  // namespace emu_detail

template <TPosition src, TPosition dst, int32_t depth, auto mask = 0>
class TQueBind {
  static_assert(depth >= 0 && depth <= 8, "rule 5: the depth of a queue is 0 (in place) to 8");
  static_assert(emu_detail::producer_of(src) != ascend_emu::kPipes &&
                    emu_detail::consumer_of(dst) != ascend_emu::kPipes,
                "rule 5: no queue at this position");
  static_assert(emu_detail::producer_of(src) != emu_detail::consumer_of(dst),
                "rule 5: a queue hands over between pipes; use TBuf for a buffer of one pipe");

 public:
  TQueBind()
      : state_{emu_detail::producer_of(src), emu_detail::consumer_of(dst), emu_detail::space_of(dst),
               static_cast<uint8_t>(dst), static_cast<uint8_t>(depth)} {}
  TQueBind(const TQueBind&) = delete;

  template <class T>
  ASCEND_EMU_API LocalTensor<T> AllocTensor() {
    return LocalTensor<T>(ascend_emu::queue_alloc(state_));
  }
  template <class T>
  ASCEND_EMU_API void AllocTensor(LocalTensor<T>& tensor) {
    static_assert(depth == 0, "rule 5: AllocTensor(tensor) is for queues of depth 0");
    tensor = LocalTensor<T>(ascend_emu::queue_alloc(state_));
  }
  template <class T>
  ASCEND_EMU_API bool EnQue(const LocalTensor<T>& tensor) {
    ascend_emu::queue_push(state_, tensor.emu_slice());
    return true;
  }
  template <class T>
  ASCEND_EMU_API LocalTensor<T> DeQue() {
    return LocalTensor<T>(ascend_emu::queue_pop(state_));
  }
  template <class T>
  ASCEND_EMU_API void DeQue(LocalTensor<T>& tensor) {
    static_assert(depth == 0, "rule 5: DeQue(tensor) is for queues of depth 0");
    tensor = LocalTensor<T>(ascend_emu::queue_pop(state_));
  }
  template <class T>
  ASCEND_EMU_API void FreeTensor(LocalTensor<T>& tensor) {
    ascend_emu::queue_free(state_, tensor.emu_slice());
  }
  bool HasTensorInQue() const { return state_.queued > 0; }
  int32_t GetTensorCountInQue() const { return state_.queued; }
  ascend_emu::Queue& emu_state() { return state_; }

 private:
  ascend_emu::Queue state_;
};

template <TPosition pos, int32_t depth, auto mask = 0>
class TQue : public TQueBind<pos, pos, depth, mask> {};

template <TPosition pos = TPosition::LCM>
class TBuf {
 public:
  TBuf() = default;
  TBuf(const TBuf&) = delete;
  template <class T>
  ASCEND_EMU_API LocalTensor<T> Get() const {
    return LocalTensor<T>(slice_);
  }
  template <class T>
  ASCEND_EMU_API LocalTensor<T> Get(uint32_t elements) const {
    LocalTensor<T> t(slice_);
    if (uint64_t{elements} * sizeof(T) > slice_.bytes)
      ascend_emu::violate(19, "TBuf::Get", "expected at most %u bytes, got %u elements of %zu", slice_.bytes,
                          elements, sizeof(T));
    t.SetSize(elements);
    return t;
  }
  template <class T>
  ASCEND_EMU_API LocalTensor<T> GetWithOffset(uint32_t elements, uint32_t offset_bytes) const {
    LocalTensor<T> t(ascend_emu::subslice(slice_, offset_bytes, 1));
    t.SetSize(elements);
    return t;
  }
  ascend_emu::Slice slice_;
};

template <TPosition pos, uint32_t bufIDSize = 4>
class TBufPool {
  static_assert(bufIDSize <= 16, "rule 5: a pool has at most 16 buffers");

 public:
  TBufPool() : state_{emu_detail::space_of(pos), static_cast<uint8_t>(pos), bufIDSize} {}
  TBufPool(const TBufPool&) = delete;
  template <TPosition src, TPosition dst, int32_t depth, auto mask>
  ASCEND_EMU_API bool InitBuffer(TQueBind<src, dst, depth, mask>& queue, uint8_t buffers, uint32_t bytes) {
    static_assert(emu_detail::space_of(dst) == emu_detail::space_of(pos), "rule 5: a queue in the memory of its pool");
    ascend_emu::init_queue_in(state_, queue.emu_state(), buffers, bytes);
    return true;
  }
  template <TPosition position>
  ASCEND_EMU_API bool InitBuffer(TBuf<position>& buffer, uint32_t bytes) {
    static_assert(emu_detail::space_of(position) == emu_detail::space_of(pos),
                  "rule 5: a buffer in the memory of its pool");
    buffer.slice_ = ascend_emu::init_buffer_in(state_, emu_detail::space_of(position), static_cast<uint8_t>(position),
                                               bytes);
    return true;
  }
  ASCEND_EMU_API void Reset() { ascend_emu::reset_pool(state_); }
  ascend_emu::Pool& emu_state() { return state_; }

 private:
  ascend_emu::Pool state_;
};

class TPipe {
 public:
  TPipe() { ascend_emu::set_pipe_object(this); }
  ~TPipe() noexcept(false) { ascend_emu::end_pipe_object(this); }  // waits for all pipes
  TPipe(const TPipe&) = delete;
  template <TPosition src, TPosition dst, int32_t depth, auto mask>
  ASCEND_EMU_API bool InitBuffer(TQueBind<src, dst, depth, mask>& queue, uint8_t buffers, uint32_t bytes) {
    ascend_emu::init_queue(queue.emu_state(), buffers, bytes);
    return true;
  }
  template <TPosition pos>
  ASCEND_EMU_API bool InitBuffer(TBuf<pos>& buffer, uint32_t bytes) {
    buffer.slice_ = ascend_emu::init_buffer(emu_detail::space_of(pos), static_cast<uint8_t>(pos), bytes);
    return true;
  }
  template <class P>
  ASCEND_EMU_API bool InitBufPool(P& pool, uint32_t bytes) {
    ascend_emu::init_pool(pool.emu_state(), bytes, nullptr);
    return true;
  }
  template <class P, class Q>
  ASCEND_EMU_API bool InitBufPool(P& pool, uint32_t bytes, Q& shared) {
    ascend_emu::init_pool(pool.emu_state(), bytes, &shared.emu_state());
    return true;
  }
  ASCEND_EMU_API void Reset() { ascend_emu::reset_buffers(); }
  ASCEND_EMU_API void Destroy() { ascend_emu::end_pipe_object(this); }
  template <HardEvent event>
  ASCEND_EMU_API TEventID AllocEventID() {
    constexpr uint8_t e = static_cast<uint8_t>(event);
    return static_cast<TEventID>(ascend_emu::alloc_event(emu_detail::from_of(e), emu_detail::to_of(e)));
  }
  template <HardEvent event>
  ASCEND_EMU_API void ReleaseEventID(TEventID id) {
    constexpr uint8_t e = static_cast<uint8_t>(event);
    ascend_emu::release_event(emu_detail::from_of(e), emu_detail::to_of(e), id);
  }
  template <HardEvent event>
  ASCEND_EMU_API TEventID FetchEventID() {
    return FetchEventID(event);
  }
  ASCEND_EMU_API TEventID FetchEventID(HardEvent event) {
    const uint8_t e = static_cast<uint8_t>(event);
    return static_cast<TEventID>(ascend_emu::fetch_event(emu_detail::from_of(e), emu_detail::to_of(e)));
  }
};

ASCEND_EMU_API TPipe* GetTPipePtr() { return static_cast<TPipe*>(ascend_emu::pipe_object()); }

template <HardEvent event>
ASCEND_EMU_API void SetFlag(int32_t id) {
  constexpr uint8_t e = static_cast<uint8_t>(event);
  ascend_emu::set_flag(emu_detail::from_of(e), emu_detail::to_of(e), id);
}
template <HardEvent event>
ASCEND_EMU_API void WaitFlag(int32_t id) {
  constexpr uint8_t e = static_cast<uint8_t>(event);
  ascend_emu::wait_flag(emu_detail::from_of(e), emu_detail::to_of(e), id);
}
template <pipe_t pipe>
ASCEND_EMU_API void PipeBarrier() {
  static_assert(pipe != PIPE_S, "rule 10: the scalar pipe orders itself; no PipeBarrier<PIPE_S>");
  ascend_emu::barrier(static_cast<ascend_emu::Pipe>(pipe));
}

}  // namespace AscendC
