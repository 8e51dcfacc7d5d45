// SPDX-License-Identifier: Apache-2.0
// What kernels include. Found before the vendor's by the include path.
#pragma once
#define ASCEND_EMU 1
#include "cross_core.h"
#include "cube.h"
