// SPDX-License-Identifier: Apache-2.0
// The plug-in ABI: a backend is a shared library that exports `dsv4_backend_entry`. The CPU instruction-set
// levels, CUDA, Ascend and the emulators are all plug-ins, so the core links none of their run times, and code
// compiled for one instruction set can never be picked for another by the linker.
#pragma once
#include <cstdint>

namespace dsv4 {

enum OpId : int32_t {
#define DSV4_OP(name) kOp_##name,
#include "ops.def"
#undef DSV4_OP
  kOpCount
};

constexpr uint32_t kPluginAbi = 3;

// What the core offers to a plug-in.
struct HostServices {
  uint32_t abi;
  // Runs fn(ctx, begin, end) over [0, n) in ranges of at least `grain`; returns when all are done.
  void (*parallel_for)(int64_t n, int64_t grain, void (*fn)(void* ctx, int64_t begin, int64_t end), void* ctx);
  int32_t (*num_threads)();
};

// The surroundings of one launch.
struct Launch {
  void* stream;
  int32_t device;           // number of the tensors' device
  void* workspace;          // at least workspace(params) bytes, 64-byte aligned; nullptr if that is 0
  char* error;              // room for the text of a refusal: "argument: expected RULE, got VALUE"
  uint64_t error_size;
};

using LaunchFn = int32_t (*)(const void* params, const Launch* launch);  // returns a dsv4_status
using WorkspaceFn = uint64_t (*)(const void* params);

struct BackendTable {
  uint32_t abi;
  int32_t op_count;
  const char* name;         // "cpu", "cuda", ...
  const char* build_hash;   // source hash; must equal the core's
  const char* toolchain;    // compiler and version
  const char* archs;        // what it was compiled for
  int32_t device_type;      // DLDeviceType of the tensors that its kernels can read
  const char* (*why_not)(); // one sentence why no kernel can run here, or nullptr; nullptr as a whole: always can
  LaunchFn launch[kOpCount];        // nullptr: not supported
  WorkspaceFn workspace[kOpCount];  // nullptr: needs none
  bool takes_f16[kOpCount];         // float16 streams too; else the core refuses them and the kernel never sees one
};

using BackendEntryFn = const BackendTable* (*)(const HostServices* host);

}  // namespace dsv4
