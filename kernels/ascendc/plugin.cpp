// SPDX-License-Identifier: Apache-2.0
// The entry of the NPU backend, and of its emulation on a CPU: the same kernel sources behind another name.
#include "build_info.h"
#include "launch.h"

namespace dsv4::ascend {
namespace {

#if defined(ASCEND_EMU)
constexpr DLDeviceType kDevice = kDLCPU;
const char* why_not() { return nullptr; }
#else
constexpr DLDeviceType kDevice = kDLExtDev;

// Why this machine cannot run the kernels.
const char* why_not() {
  uint32_t devices = 0;
  if (aclrtGetDeviceCount(&devices) != ACL_SUCCESS) return "no NPU: the run time of CANN names no device";
  return devices ? nullptr : "no NPU";
}
#endif

BackendTable& table() {
  static BackendTable t{kPluginAbi, kOpCount, DSV4_BACKEND_NAME, kBuild.source_hash, DSV4_TOOLCHAIN, DSV4_ARCHS,
                        kDevice, &why_not, {}, {}};
  return t;
}

}  // namespace

bool add_kernel(OpId id, LaunchFn launch, WorkspaceFn workspace) {
  table().launch[id] = launch;
  table().workspace[id] = workspace;
  return true;
}

bool add_float16(OpId id) {
  return table().takes_f16[id] = true;
}

#if defined(ASCEND_EMU)
int vector_cores() { return ascend_emu::vector_cores(); }
int cube_cores() { return ascend_emu::cube_cores(); }
#else
namespace {
int cores_of(aclrtDevAttr kind, int otherwise) {
  int32_t device = 0;
  int64_t cores = 0;
  const bool known = aclrtGetDevice(&device) == ACL_SUCCESS &&
                     aclrtGetDeviceInfo(static_cast<uint32_t>(device), kind, &cores) == ACL_SUCCESS && cores > 0;
  return known ? static_cast<int>(cores) : otherwise;
}
}  // namespace
int vector_cores() { return cores_of(ACL_DEV_ATTR_VECTOR_CORE_NUM, 40); }
int cube_cores() { return cores_of(ACL_DEV_ATTR_CUBE_CORE_NUM, 20); }
#endif

}  // namespace dsv4::ascend

extern "C" DSV4_API const dsv4::BackendTable* dsv4_backend_entry(const dsv4::HostServices* host) {
  return host->abi == dsv4::kPluginAbi ? &dsv4::ascend::table() : nullptr;
}
