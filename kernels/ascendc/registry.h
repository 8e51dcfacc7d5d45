// SPDX-License-Identifier: Apache-2.0
// What the backend's table knows of its kernels, and what they know of the device. No word of CANN.
#pragma once
#include "backend.h"

namespace dsv4::ascend {

bool add_kernel(OpId id, LaunchFn launch, WorkspaceFn workspace);
bool add_float16(OpId id);

// Cores of the device. Kernels split over at most so many blocks; results do not depend on the number.
int vector_cores();
int cube_cores();

}  // namespace dsv4::ascend
