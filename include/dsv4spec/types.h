/* SPDX-License-Identifier: Apache-2.0
 *
 * Conventions shared by every op of dsv4spec.h (C99; no torch, no CUDA, no CANN words).
 *
 * An op takes one args struct: `struct_size` first, then DLTensor pointers, then scalars. The tensors are
 * borrowed for the length of the call. A pointer may be NULL only where its comment says so.
 *
 * Layout: every stride is honoured (64-bit, in elements, >= 0); the innermost dimension is contiguous
 * unless a comment says otherwise. Size-1 dimensions may carry any stride. Outputs must not overlap
 * themselves, nor an input unless the op says so. An empty problem (0 rows) is legal and writes nothing.
 *
 * -1 is the only skip marker of slots, locations and pages; page 0 is an ordinary page.
 * slot = page * page_size + offset; page ids, page sizes and ratios are below 2^31. CPU workspaces are 64-byte aligned.
 */
#ifndef DSV4SPEC_TYPES_H_
#define DSV4SPEC_TYPES_H_

#include <stddef.h>
#include <stdint.h>

#include "dlpack_abi.h"

#if defined(__GNUC__)
#define DSV4_API __attribute__((visibility("default")))
#else
#define DSV4_API
#endif

#define DSV4_ABI_VERSION 1

typedef enum dsv4_status {
  DSV4_OK = 0,
  DSV4_INVALID_ARGUMENT = 1, /* outside the contract; nothing was written */
  DSV4_NOT_SUPPORTED = 2,    /* the chosen backend has no kernel for this op, dtype or size */
  DSV4_BACKEND_UNAVAILABLE = 3, /* the backend was not built or cannot be loaded here */
  DSV4_INTERNAL_ERROR = 4
} dsv4_status;

/* A CUDA or NPU stream handle; NULL on the CPU. */
typedef void* dsv4_stream;

#ifdef __cplusplus
extern "C" {
#endif

/* DSV4_ABI_VERSION of the library that was loaded. */
DSV4_API int32_t dsv4_abi_version(void);

/* Text of the last failure on this thread ("op: argument: expected RULE, got VALUE"); "" after a success. */
DSV4_API const char* dsv4_last_error(void);

/* Route the ops of the whole process to one backend ("cpu", "cuda", "npu", "cuda_emu", "ascend_emu").
 * "reference" checks the contract and launches nothing (the Python reference runs instead).
 * NULL goes back to the backend of the tensors' device. */
DSV4_API dsv4_status dsv4_use_backend(const char* name);

/* Threads of the CPU backend, the caller's included; the default is the number of usable cores or
 * DSV4SPEC_NUM_THREADS. Both go from 1 to 1024: another n is refused, and another value of the variable keeps the CPU
 * backend from loading. */
DSV4_API dsv4_status dsv4_set_num_threads(int32_t n);
DSV4_API int32_t dsv4_get_num_threads(void);

#ifdef __cplusplus
}
#endif
#endif /* DSV4SPEC_TYPES_H_ */
