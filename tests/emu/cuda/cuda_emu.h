// SPDX-License-Identifier: Apache-2.0
// CUDA for one's CPU: kernels/cuda/*.cu compiled as plain C++ with this header run here, thread by thread. The types
// come from the real CUDA headers. See README.md for what this can show and what it cannot.
#pragma once
#include <cuda_bf16.h>
#include <cuda_fp16.h>
#include <cuda_fp8.h>
#include <cuda_runtime.h>

#include "core.h"

#undef __global__
#undef __device__
#undef __host__
#undef __constant__
#undef __shared__
#undef __launch_bounds__
#undef __forceinline__
#undef __grid_constant__
#define __global__
#define __device__
#define __host__
#define __constant__ static
#define __shared__ thread_local  // at block scope it is static too: one copy an OS thread is one copy a block
#define __launch_bounds__(...)
#define __forceinline__ inline
#define __grid_constant__

#define threadIdx (::cuda_emu::current().index)
#define blockIdx (::cuda_emu::current_block().index)
#define blockDim (::cuda_emu::current_block().dim)
#define gridDim (::cuda_emu::current_block().grid)
static constexpr int warpSize = 32;

#include "atomics.h"
#include "instructions.h"
#include "intrinsics.h"
#include "launch.h"
#include "warp.h"

#define DYN_SMEM(T, name) T* name = ::cuda_emu::dynamic_shared<T>()

// The text of all reports since the last clear, "" if none.
extern "C" __attribute__((visibility("default"))) const char* cuda_emu_report(void);
