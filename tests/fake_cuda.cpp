// SPDX-License-Identifier: Apache-2.0
// A backend "cuda" or "npu" (NAME, DEVICE) for tests on machines without one: one op, whose launch writes down what surrounds it.
#include <cstring>

#include "backend.h"
#include "dsv4spec/types.h"

namespace {
dsv4::Launch g_launch{};

dsv4::BackendTable make_table() {
  dsv4::BackendTable t{dsv4::kPluginAbi, dsv4::kOpCount, NAME, SOURCE_HASH, "a test", "none", DEVICE, nullptr, {}, {}};
  t.launch[dsv4::kOp_mhc_pre] = [](const void*, const dsv4::Launch* l) -> int32_t {
    g_launch = *l;
    std::memset(l->workspace, 7, 640);  // it is memory that can be written
    return DSV4_OK;
  };
  t.workspace[dsv4::kOp_mhc_pre] = [](const void*) -> uint64_t { return 640; };
  return t;
}
}  // namespace

extern "C" __attribute__((visibility("default"))) const dsv4::BackendTable* dsv4_backend_entry(
    const dsv4::HostServices*) {
  static const dsv4::BackendTable table = make_table();
  return &table;
}
extern "C" __attribute__((visibility("default"))) const dsv4::Launch* seen() { return &g_launch; }
