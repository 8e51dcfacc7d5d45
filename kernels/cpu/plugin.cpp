// SPDX-License-Identifier: Apache-2.0
// The CPU backend's entry: one plug-in library per instruction-set level, all from the same sources.
#include "build_info.h"
#include "kernel.h"

namespace dsv4::cpu {

const HostServices* g_host = nullptr;

namespace {
BackendTable& table() {
  static BackendTable t{kPluginAbi, kOpCount, "cpu", kBuild.source_hash, kBuild.compiler, DSV4_CPU_LEVEL,
                        kDLCPU, nullptr, {}, {}, {}};
  return t;
}
}  // namespace

bool add_kernel(OpId id, LaunchFn launch, WorkspaceFn workspace) {
  table().launch[id] = launch;
  table().workspace[id] = workspace;
  return true;
}

}  // namespace dsv4::cpu

extern "C" DSV4_API const dsv4::BackendTable* dsv4_backend_entry(const dsv4::HostServices* host) {
  if (host->abi != dsv4::kPluginAbi) return nullptr;
  dsv4::cpu::g_host = host;
  return &dsv4::cpu::table();
}
