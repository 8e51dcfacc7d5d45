// SPDX-License-Identifier: Apache-2.0
// The entry of the CUDA backend, and of its emulation on a CPU: the same kernel sources behind another name.
#include "build_info.h"
#include "kernel.cuh"

namespace dsv4::cuda {
namespace {

BackendTable& table() {
  static BackendTable t{kPluginAbi, kOpCount, DSV4_BACKEND_NAME, kBuild.source_hash, DSV4_TOOLCHAIN, DSV4_ARCHS, {}, {}};
  return t;
}

}  // namespace

bool add_kernel(OpId id, LaunchFn launch, WorkspaceFn workspace) {
  table().launch[id] = launch;
  table().workspace[id] = workspace;
  return true;
}

}  // namespace dsv4::cuda

extern "C" DSV4_API const dsv4::BackendTable* dsv4_backend_entry(const dsv4::HostServices* host) {
  return host->abi == dsv4::kPluginAbi ? &dsv4::cuda::table() : nullptr;
}
