// SPDX-License-Identifier: Apache-2.0
// Streams and their capture into graphs. A stream runs everything at once, so there is nothing to wait for; what a
// capture forbids is refused with the error code of the real run time, and spoils the capture as it does there.
#pragma once
#include <functional>

#include "core.h"

namespace cuda_emu {

struct Recorded {
  bool done;          // the stream is being captured (or refuses): nothing is to run now
  cudaError_t error;
};
Recorded record(const LaunchInfo& launch);
Recorded record(cudaStream_t stream, std::function<cudaError_t()> node);

// An error, and the end of all captures under way: for calls that no capture allows (malloc, sync of the device).
cudaError_t refuse_in_captures();
// The same for a wait for, or query of, one stream.
cudaError_t refuse_if_captured(cudaStream_t stream);

}  // namespace cuda_emu
