// SPDX-License-Identifier: Apache-2.0
// The entry of the NPU backend, and of its emulation on a CPU: the same kernel sources behind another name.
#include <cstdio>

#include "build_info.h"
#include "dsv4spec/types.h"
#include "registry.h"

#if defined(ASCEND_EMU)
#include "../../tests/emu/ascendc/launch.h"
#else
#include "acl/acl.h"
#include "cann_version.h"
#if defined(DSV4_ASCEND_ACLRT)
#include "tiling/platform/platform_ascendc.h"
#endif
#endif

namespace dsv4::ascend {
namespace {

#if defined(ASCEND_EMU)
constexpr DLDeviceType kDevice = kDLCPU;
const char* why_not() { return nullptr; }
#else
constexpr DLDeviceType kDevice = kDLExtDev;

int g_vector_cores = 0, g_cube_cores = 0;

// Of the first device; all of a machine are alike. CANN 8 does not have these attributes in all its versions.
void count_cores() {
#if defined(DSV4_ASCEND_ACLRT)
  if (auto* platform = platform_ascendc::PlatformAscendCManager::GetInstance()) {
    g_vector_cores = static_cast<int>(platform->GetCoreNumAiv());
    g_cube_cores = static_cast<int>(platform->GetCoreNumAic());
  }
#else
  int64_t vectors = 0, cubes = 0;
  if (aclrtGetDeviceInfo(0, ACL_DEV_ATTR_VECTOR_CORE_NUM, &vectors) == ACL_SUCCESS &&
      aclrtGetDeviceInfo(0, ACL_DEV_ATTR_AICORE_CORE_NUM, &cubes) == ACL_SUCCESS)
    g_vector_cores = static_cast<int>(vectors), g_cube_cores = static_cast<int>(cubes);
#endif
}

// Why this machine cannot run the kernels. Asked once, when the plug-in is loaded.
const char* why_not() {
  static char text[512];
  if (other_cann_version(DSV4_TOOLCHAIN, text, sizeof text)) return text;
  uint32_t devices = 0;
  const aclError error = aclrtGetDeviceCount(&devices);
  if (error != ACL_SUCCESS) {
    std::snprintf(text, sizeof text, "no NPU: CANN's run time counts no devices (ACL error %d); is the driver "
                  "installed, and was torch_npu imported?", static_cast<int>(error));
    return text;
  }
  if (devices == 0) return "no NPU: CANN's run time names no device";
  count_cores();
  return g_vector_cores > 0 && g_cube_cores > 0 ? nullptr : "CANN's run time does not tell the number of cores";
}
#endif

BackendTable& table() {
  static BackendTable t{kPluginAbi, kOpCount, DSV4_BACKEND_NAME, kBuild.source_hash, DSV4_TOOLCHAIN, DSV4_ARCHS,
                        kDevice, &why_not, {}, {}, {}};
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
int vector_cores() { return g_vector_cores; }
int cube_cores() { return g_cube_cores; }
#endif

}  // namespace dsv4::ascend

extern "C" DSV4_API const dsv4::BackendTable* dsv4_backend_entry(const dsv4::HostServices* host) {
  return host->abi == dsv4::kPluginAbi ? &dsv4::ascend::table() : nullptr;
}
