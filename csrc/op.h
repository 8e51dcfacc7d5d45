// SPDX-License-Identifier: Apache-2.0
// What every csrc/ops/<op>.cpp is made of: a field list (the args struct as data, for the Python binding), a
// `fill` function (checks -> params) and DSV4_DEFINE_OP, which emits the public C functions.
#pragma once
#include <cstddef>
#include <cstring>

#include "backend.h"
#include "check.h"
#include "dsv4spec/dsv4spec.h"
#include "params.h"

namespace dsv4 {

enum class ArgKind : uint8_t { kIn, kOptionalIn, kOut, kOptionalOut, kInt, kDouble };

struct Field {
  const char* name;
  ArgKind kind;
  uint16_t offset;
};

struct OpDesc {
  OpId id;
  const char* name;
  size_t args_size;
  const Field* fields;
  int field_count;
  dsv4_status (*call)(const void* args, dsv4_stream stream);
  // nullptr, or for ops whose args end in {void* workspace; uint64_t workspace_size}:
  dsv4_status (*workspace_size)(const void* args, uint64_t* bytes);
  uint16_t workspace_offset;
};

// Every op of this library, indexed by OpId (nullptr where not yet defined).
const OpDesc* op_desc(OpId id);
bool register_op(const OpDesc* desc);

// Runs `body`, turning exceptions into a status and the thread's last-error text.
dsv4_status guarded(void (*body)(void* ctx), void* ctx);

// Finds the backend of the checked tensors' device (or the routed one) and launches; returns without launching on
// "reference". Refuses float16 tensors where the backend's kernel does not take them.
void launch(OpId id, const char* op, const Checker& checked, const void* params, dsv4_stream stream, void* workspace,
            uint64_t workspace_size);
uint64_t workspace_bytes(OpId id, const char* op, const Checker& checked, const void* params);

// The size with which an args struct was first published. Where a later ABI version appends members, it specialises this
// with the old size.
template <class Args>
constexpr uint64_t kFirstSize = sizeof(Args);
constexpr uint64_t kMostStructSize = 4096;

// The rule of struct_size (types.h): members that the caller's struct does not have yet are 0 here (`room` then holds the
// whole struct); those that this library does not know must be 0.
template <class Args>
const Args& whole_args(const char* op, const Args* args, Args& room) {
  auto refuse = [op](const char* name, const std::string& rule) {
    throw Refusal(DSV4_INVALID_ARGUMENT, std::string(op) + ": " + name + ": expected " + rule);
  };
  if (!args) refuse("args", "a struct, got NULL");
  const uint64_t size = args->struct_size;
  if (size == sizeof(Args)) return *args;
  if (size < kFirstSize<Args> || size > kMostStructSize)
    refuse("struct_size", std::to_string(kFirstSize<Args>) + " to " + std::to_string(kMostStructSize) + ", got " +
                              std::to_string(size));
  const char* bytes = reinterpret_cast<const char*>(args);
  if (size < sizeof(Args)) {
    std::memcpy(&room, bytes, size);
    return room;
  }
  for (uint64_t i = sizeof(Args); i < size; ++i)
    if (bytes[i])
      refuse("struct_size", std::to_string(sizeof(Args)) + " or zeros from there on (this library is of ABI version " +
                                std::to_string(DSV4_ABI_VERSION) + "), got " + std::to_string(size) +
                                " with something at byte " + std::to_string(i));
  return *args;
}

// The scratch of an op whose args have any.
struct Workspace {
  void* memory = nullptr;
  uint64_t size = 0;
};
template <class Args>
auto workspace_of(const Args& args, int) -> decltype(args.workspace_size, Workspace{}) {
  return {args.workspace, args.workspace_size};
}
template <class Args>
Workspace workspace_of(const Args&, long) {
  return {};
}

template <class Args, class Params, bool (*Fill)(Checker&, const Args&, Params&)>
dsv4_status run_op(OpId id, const char* op, const Args* args, dsv4_stream stream) {
  struct Ctx {
    OpId id;
    const char* op;
    const Args* args;
    dsv4_stream stream;
  } ctx{id, op, args, stream};
  return guarded(
      [](void* p) {
        auto& c = *static_cast<Ctx*>(p);
        Args room{};
        const Args& args = whole_args(c.op, c.args, room);
        Checker check(c.op);
        Params params{};
        if (!Fill(check, args, params)) return;
        const Workspace scratch = workspace_of(args, 0);
        launch(c.id, c.op, check, &params, c.stream, scratch.memory, scratch.size);
      },
      &ctx);
}

template <class Args, class Params, bool (*Fill)(Checker&, const Args&, Params&)>
dsv4_status query_workspace(OpId id, const char* op, const Args* args, uint64_t* bytes) {
  struct Ctx {
    OpId id;
    const char* op;
    const Args* args;
    uint64_t* bytes;
  } ctx{id, op, args, bytes};
  return guarded(
      [](void* p) {
        auto& c = *static_cast<Ctx*>(p);
        Args room{};
        const Args& args = whole_args(c.op, c.args, room);
        if (!c.bytes) throw Refusal(DSV4_INVALID_ARGUMENT, std::string(c.op) + ": bytes: expected a pointer, got NULL");
        Checker check(c.op);
        Params params{};
        *c.bytes = Fill(check, args, params) ? workspace_bytes(c.id, c.op, check, &params) : 0;
      },
      &ctx);
}

}  // namespace dsv4

// Field lists: DSV4_IN(y) names a member of the args struct `Args`, in struct order.
#define DSV4_FIELD(member, kind) ::dsv4::Field{#member, ::dsv4::ArgKind::kind, offsetof(Args, member)}
#define DSV4_IN(member) DSV4_FIELD(member, kIn)
#define DSV4_OPTIONAL_IN(member) DSV4_FIELD(member, kOptionalIn)
#define DSV4_OUT(member) DSV4_FIELD(member, kOut)
#define DSV4_OPTIONAL_OUT(member) DSV4_FIELD(member, kOptionalOut)
#define DSV4_INT(member) DSV4_FIELD(member, kInt)
#define DSV4_DOUBLE(member) DSV4_FIELD(member, kDouble)

// Emits dsv4_<op> (DSV4_API again: inside a namespace the header's is forgotten) and registers the op. Expects in
// scope: `using Args`, `using Params`, `kFields`, and
// `bool fill(Checker&, const Args&, Params&)`, which returns false when there is nothing to do.
#define DSV4_DEFINE_OP(op)                                                                                  \
  extern "C" DSV4_API dsv4_status dsv4_##op(const dsv4_##op##_args* args, dsv4_stream stream) {             \
    return ::dsv4::run_op<Args, Params, fill>(::dsv4::kOp_##op, #op, args, stream);                         \
  }                                                                                                         \
  static const ::dsv4::OpDesc kDesc{                                                                        \
      ::dsv4::kOp_##op, #op, sizeof(Args), kFields, static_cast<int>(sizeof(kFields) / sizeof(kFields[0])), \
      [](const void* a, dsv4_stream s) { return dsv4_##op(static_cast<const Args*>(a), s); }, nullptr, 0};  \
  static const bool kRegistered = ::dsv4::register_op(&kDesc);

// The same for an op whose args end in {void* workspace; uint64_t workspace_size}; also emits
// dsv4_<op>_workspace_size.
#define DSV4_DEFINE_OP_WITH_WORKSPACE(op)                                                                   \
  extern "C" DSV4_API dsv4_status dsv4_##op(const dsv4_##op##_args* args, dsv4_stream stream) {             \
    return ::dsv4::run_op<Args, Params, fill>(::dsv4::kOp_##op, #op, args, stream);                         \
  }                                                                                                         \
  extern "C" DSV4_API dsv4_status dsv4_##op##_workspace_size(const dsv4_##op##_args* args, uint64_t* bytes) {\
    return ::dsv4::query_workspace<Args, Params, fill>(::dsv4::kOp_##op, #op, args, bytes);                 \
  }                                                                                                         \
  static const ::dsv4::OpDesc kDesc{                                                                        \
      ::dsv4::kOp_##op, #op, sizeof(Args), kFields, static_cast<int>(sizeof(kFields) / sizeof(kFields[0])), \
      [](const void* a, dsv4_stream s) { return dsv4_##op(static_cast<const Args*>(a), s); },               \
      [](const void* a, uint64_t* n) { return dsv4_##op##_workspace_size(static_cast<const Args*>(a), n); }, \
      offsetof(Args, workspace)};                                                                           \
  static const bool kRegistered = ::dsv4::register_op(&kDesc);
