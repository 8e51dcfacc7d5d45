// SPDX-License-Identifier: Apache-2.0
// What the API's headers call. Every function checks its arguments against the rules, orders the access and then
// runs it, or queues it for its pipe.
#pragma once
#include "types.h"

namespace ascend_emu {

// ---- rules (README.md lists them). A violation ends the launch.
[[noreturn]] void violate(int rule, const char* api, const char* format, ...) __attribute__((format(printf, 3, 4)));
void check_slice(const char* api, const Slice& s);  // alive, of this core

// ---- scalar unit
void* scalar_read(const Slice& s, uint64_t offset, uint32_t bytes);   // returns where the value is
void scalar_write(const Slice& s, uint64_t offset, const void* value, uint32_t bytes);
void scalar_read_gm(const void* address, void* value, uint32_t bytes);
void scalar_write_gm(void* address, const void* value, uint32_t bytes);
void clean_cache(const void* address, bool entire);
bfloat16_t scalar_bf16(float value);
float scalar_float(bfloat16_t value);
Slice subslice(const Slice& s, uint64_t offset, uint32_t element);

// ---- flags
void set_flag(Pipe from, Pipe to, int id);
void wait_flag(Pipe from, Pipe to, int id);
void barrier(Pipe pipe);
int alloc_event(Pipe from, Pipe to);
int fetch_event(Pipe from, Pipe to);
void release_event(Pipe from, Pipe to, int id);

// ---- buffers and queues
struct Queue {
  Pipe producer, consumer;
  Space space;
  uint8_t position, depth, count = 0;
  uint8_t first = 0;                 // slot of the first buffer
  uint8_t cursor = 0, head = 0, queued = 0;
  uint8_t ring[8] = {};
};
void init_queue(Queue& q, uint32_t buffers, uint32_t bytes);
Slice queue_alloc(Queue& q);
void queue_push(Queue& q, const Slice& s);
Slice queue_pop(Queue& q);
void queue_free(Queue& q, const Slice& s);
Slice init_buffer(Space space, uint8_t position, uint32_t bytes);
// A part of a memory that buffers are taken from; pools may share it, one after the other.
struct Pool {
  Space space;
  uint8_t position;
  uint8_t most;                      // buffers
  uint32_t begin = 0, end = 0, used = 0, buffers = 0;
  Pool* first = nullptr;             // of those that share the memory
  Pool* holder = nullptr;            // of the first: the one whose buffers are in use
  uint64_t slots = 0;                // a bit a slot of the core
};
void init_pool(Pool& pool, uint32_t bytes, Pool* shared);
void init_queue_in(Pool& pool, Queue& q, uint32_t buffers, uint32_t bytes);
Slice init_buffer_in(Pool& pool, Space space, uint8_t position, uint32_t bytes);
void reset_pool(Pool& pool);
void set_pipe_object(void* pipe);
void end_pipe_object(void* pipe);
void* pipe_object();
void reset_buffers();

// ---- vector unit
enum class Math : uint8_t {
  Add, Sub, Mul, Div, Max, Min, And, Or, MulAddDst,                             // of two tensors
  Abs, Exp, Ln, Sqrt, Rsqrt, Reciprocal, Relu, Not, Copy,                       // of one
  Adds, Muls, Maxs, Mins, ShiftLeft, ShiftRight, Axpy, LeakyRelu, Duplicate     // with a scalar
};
// src0, src1: nullptr where the instruction has none. A scalar in the source's type, as its bytes.
void elementwise(const char* api, Math op, Type dst_type, Type src_type, const Slice& dst, const Slice* src0,
                 const Slice* src1, uint64_t scalar, const Shape& shape);
void cast(const Slice& dst, Type dst_type, const Slice& src, Type src_type, int mode, const Shape& shape);
enum class Reduction : uint8_t { Sum, Max, Min };
// The whole of `count` (or mask and repeats) into one value.
void reduce(const char* api, Reduction op, Type type, const Slice& dst, const Slice& src, const Slice& work,
            const Shape& shape, bool with_index);
// One result a repeat (`group` 256 bytes), a block (32) or a pair.
void reduce_groups(const char* api, Reduction op, Type type, const Slice& dst, const Slice& src, const Shape& shape,
                   uint32_t group, int order);
void compare(const char* api, Type type, const Slice& dst, const Slice& src0, const Slice* src1, uint64_t scalar,
             int mode, const Shape& shape);
void select(Type type, const Slice& dst, const Slice& mask, const Slice& src0, const Slice* src1, uint64_t scalar,
            int mode, const Shape& shape);
void gather(Type type, const Slice& dst, const Slice& src, const Slice& offsets, uint32_t base, const Shape& shape);
void broadcast_blocks(Type type, const Slice& dst, const Slice& src, uint32_t repeat, uint32_t dst_block,
                      uint32_t dst_repeat);
void create_index(Type type, const Slice& dst, uint64_t first, const Shape& shape);
void transpose16(const Slice& dst, const Slice& src);
uint64_t gather_mask(Type type, const Slice& dst, const Slice& src, const Slice* bits, uint32_t pattern, bool counter,
                     uint32_t mask, uint32_t repeats, uint32_t src_block, uint32_t src_repeat, uint32_t bits_repeat);
void set_mask(uint64_t high, uint64_t low);
void set_mask_mode(bool counter);
Shape shape_of_mask(uint64_t mask, uint32_t element, uint32_t repeat);  // lanes [0, mask) of every repeat
Shape shape_of_register(uint32_t element, uint32_t repeat);             // what SetVectorMask left

// ---- copies
struct CopyShape {
  uint32_t blocks;            // how many
  uint32_t bytes;             // of each
  int64_t src_gap, dst_gap;   // bytes between the end of one and the start of the next
};
void copy_in(const char* api, const Slice& dst, const void* src, const CopyShape& shape);
void copy_out(const char* api, void* dst, const Slice& src, const CopyShape& shape);
void copy_local(const char* api, const Slice& dst, const Slice& src, const CopyShape& shape);
struct Padding {
  bool on;
  uint32_t left, right;  // bytes
  uint64_t value;
};
void pad_in(const Slice& dst, const void* src, const CopyShape& shape, uint32_t element, const Padding& padding);
void pad_out(void* dst, const Slice& src, const CopyShape& shape, uint32_t element);
void count_bytes(const char* api, uint64_t count, uint32_t element);  // rule 2
void check_copy_params(const char* api, uint64_t blocks, uint64_t length, uint64_t src_gap, uint64_t dst_gap);

// What a copy to global memory does with what stands there.
enum class Atomic : uint8_t { None, Add, Max, Min };
void set_atomic(Atomic op, Type type);

// ---- cores
enum class KernelType : uint8_t { None, AivOnly, AicOnly, MixAiv10, MixAic10, MixAic11, MixAic12 };
void set_kernel_type(KernelType type);
bool on_vector_core();
int64_t block_index();
int64_t block_count();
int64_t sub_block_index();
int64_t sub_block_count();
void sync_all(bool vector_only);
void sync_soft(int32_t* gm, const Slice& ub, int32_t used);
void cross_set(int mode, Pipe pipe, uint32_t id);
void cross_wait(uint32_t id);

}  // namespace ascend_emu
