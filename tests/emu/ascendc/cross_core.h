// SPDX-License-Identifier: Apache-2.0
// Flags between cores.
#pragma once
#include "copy.h"

namespace AscendC {

// Modes: 0 all cores of a kind; 1 the vector cores of a group; 2 the cube core of a group and its vector cores.
template <uint8_t modeId, pipe_t pipe>
ASCEND_EMU_API void CrossCoreSetFlag(uint16_t flagId) {
  static_assert(modeId <= 2, "rule 12: dav-2201 has the modes 0, 1 and 2");
  static_assert(pipe != PIPE_S && pipe != PIPE_ALL, "rule 12: CrossCoreSetFlag takes no PIPE_S or PIPE_ALL");
  ascend_emu::cross_set(modeId, static_cast<ascend_emu::Pipe>(pipe), flagId);
}
// On dav-2201 the wait holds back every later instruction, whatever the template's arguments.
template <uint8_t modeId = 0, pipe_t pipe = PIPE_S>
ASCEND_EMU_API void CrossCoreWaitFlag(uint16_t flagId) {
  ascend_emu::cross_wait(flagId);
}

template <bool isAIVOnly = true>
ASCEND_EMU_API void SyncAll() {
  ascend_emu::sync_all(isAIVOnly);
}
template <bool isAIVOnly = true>
ASCEND_EMU_API void SyncAll(const GlobalTensor<int32_t>& gmWorkspace, const LocalTensor<int32_t>& ubWorkspace,
                            const int32_t usedCores = 0) {
  static_assert(isAIVOnly, "rule 12: the soft SyncAll is for vector kernels");
  ascend_emu::sync_soft(gmWorkspace.emu_address(), ubWorkspace.emu_slice(), usedCores);
}

}  // namespace AscendC
