// SPDX-License-Identifier: Apache-2.0
// The op-independent half of the public C ABI, and the op registry behind it.
#include <cstring>

#include "backends.h"
#include "build_info.h"
#include "thread_pool.h"

namespace dsv4 {
namespace {

thread_local std::string t_last_error;
const OpDesc* g_descs[kOpCount];

}  // namespace

const OpDesc* op_desc(OpId id) { return g_descs[id]; }

bool register_op(const OpDesc* desc) {
  g_descs[desc->id] = desc;
  return true;
}

dsv4_status guarded(void (*body)(void*), void* ctx) {
  try {
    body(ctx);
    t_last_error.clear();
    return DSV4_OK;
  } catch (const Refusal& r) {
    t_last_error = r.what();
    return r.status;
  } catch (const std::exception& e) {
    t_last_error = std::string("internal error: ") + e.what();
  } catch (...) {
    t_last_error = "internal error";
  }
  return DSV4_INTERNAL_ERROR;
}

}  // namespace dsv4

extern "C" {

int32_t dsv4_abi_version(void) { return DSV4_ABI_VERSION; }

const char* dsv4_version(void) { return dsv4::kBuild.version; }

const char* dsv4_last_error(void) { return dsv4::t_last_error.c_str(); }

dsv4_status dsv4_use_backend(const char* name) {
  return dsv4::guarded([](void* p) { dsv4::use_backend(static_cast<const char*>(p)); }, const_cast<char*>(name));
}

dsv4_status dsv4_check_backend(const char* name, const char* op) {
  const char* names[] = {name, op};
  return dsv4::guarded(
      [](void* p) {
        const char* const* n = static_cast<const char**>(p);
        dsv4::check_backend(n[0], n[1]);
      },
      names);
}

dsv4_status dsv4_set_num_threads(int32_t n) {
  return dsv4::guarded(
      [](void* p) {
        const int32_t count = *static_cast<int32_t*>(p);
        if (count < 1 || count > 1024)
          throw dsv4::Refusal(DSV4_INVALID_ARGUMENT,
                              "set_num_threads: n: expected 1 to 1024, got " + std::to_string(count));
        dsv4::set_num_threads(count);
      },
      &n);
}

int32_t dsv4_get_num_threads(void) { return dsv4::num_threads(); }

}  // extern "C"
