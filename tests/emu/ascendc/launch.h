// SPDX-License-Identifier: Apache-2.0
// What stands for kernel<<<blocks, ...>>>(args...), for host code.
#pragma once
#include <cstdint>
#include <tuple>

#ifndef GM_ADDR
#define GM_ADDR uint8_t*
#endif
#ifndef __global__
#define __global__
#define __aicore__
#endif

extern "C" const char* ascend_emu_report(void);

namespace ascend_emu {

struct Kernel {
  const char* name;
  uint32_t blocks;
  bool has_workspace;
  const void* args;
  void (*run)(const void* args);
};
bool launch(const Kernel& kernel);  // false: see ascend_emu_report
// Where the scratch of this thread's next launches lies: filled with NaN bytes, its traffic is counted apart.
void begin_scratch(void* scratch, uint64_t bytes);
int vector_cores();
int cube_cores();

template <class... Params>
struct Call {
  void (*entry)(Params...);
  std::tuple<Params...> values;
  static void run(const void* self) {
    const Call& call = *static_cast<const Call*>(self);
    std::apply(call.entry, call.values);
  }
};
template <class... Params, class... Args>
bool launch(const char* name, void (*entry)(Params...), uint32_t blocks, bool has_workspace, Args... args) {
  const Call<Params...> call{entry, std::tuple<Params...>(static_cast<Params>(args)...)};
  return launch(Kernel{name, blocks, has_workspace, &call, &Call<Params...>::run});
}

}  // namespace ascend_emu
