/* SPDX-License-Identifier: Apache-2.0
 *
 * Conventions shared by every op of dsv4spec.h (C99; no torch, no CUDA, no CANN words).
 *
 * An op takes one args struct: `struct_size` first, then DLTensor pointers, then scalars. The tensors are borrowed
 * for the length of the call: the DLTensor structs, shapes and strides may be freed when it returns, their memory
 * when the work on the stream is done. A pointer may be NULL only where its comment says so.
 *
 * struct_size is the size that the caller was compiled with (sizeof). Zero the struct first: later versions only
 * append members, and 0 or NULL in them means what their absence meant. So a shorter struct of an older header is
 * taken as if padded with zeros, and a longer one of a newer header is taken if all that this library does not know
 * is 0; anything else is refused (DSV4_INVALID_ARGUMENT), as is a size below the first published one.
 *
 * Layout: every stride is honoured (64-bit, in elements, >= 0; NULL strides mean C-contiguous); the innermost
 * dimension is contiguous unless a comment says otherwise. Size-1 dimensions and empty tensors may carry any stride. Outputs
 * must not overlap themselves, nor an input unless the op says so. An empty problem (0 rows) is legal and writes nothing.
 *
 * -1 is the only skip marker of slots, locations and pages; page 0 is an ordinary page. slot = page * page_size +
 * offset; page ids are below 2^31, and so are all integer members but window.
 *
 * Scratch: an op whose struct ends in {workspace, workspace_size} has a dsv4_<op>_workspace_size(args, &bytes). It
 * reads shapes, dtypes and scalars only (no data), launches nothing and ignores the two members. The memory is the
 * caller's, on the tensors' device, aligned to 64 bytes, with any contents; NULL and 0 will do if 0 bytes are asked
 * for. It may be used again by later work of the same stream. No op allocates on a device, or keeps a pointer after
 * its work is done.
 *
 * Streams: a launch is queued on `stream` and not waited for; results are there when the stream has worked it off. On
 * the CPU an op has finished when it returns, and `stream` is not looked at. Nothing is read back from a device, so
 * that calls on it can be captured into a graph; that also means that the contents of device tensors are not checked:
 * each op says what it does with values outside its contract.
 *
 * Threads: all functions may be called from any threads at the same time; dsv4_use_backend and dsv4_set_num_threads
 * change the whole process. No function throws, aborts or prints. A fork()ed child may go on with tensors in the
 * CPU's memory.
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

/* Counts up with each addition to the ABI. What is there keeps its meaning and its layout: what would change is given
 * a new name. So a program runs with every library whose dsv4_abi_version() is at least its own. */
#define DSV4_ABI_VERSION 1

typedef enum dsv4_status {
  DSV4_OK = 0,
  DSV4_INVALID_ARGUMENT = 1, /* outside the contract; nothing was written */
  DSV4_NOT_SUPPORTED = 2,    /* the chosen backend has no kernel for this op, dtype or size */
  DSV4_BACKEND_UNAVAILABLE = 3, /* the backend was not built or cannot be loaded here */
  DSV4_INTERNAL_ERROR = 4
} dsv4_status;

/* A cudaStream_t of the tensors' device (NULL or 1: the legacy default stream, 2: the per-thread one, as CUDA and DLPack
 * number them), or an aclrtStream (NULL: the context's default stream). Not looked at on the CPU. */
typedef void* dsv4_stream;

#ifdef __cplusplus
extern "C" {
#endif

/* DSV4_ABI_VERSION of the library that was loaded. */
DSV4_API int32_t dsv4_abi_version(void);

/* Release of the library that was loaded, such as "0.1.0". */
DSV4_API const char* dsv4_version(void);

/* Text of the last failure on this thread ("op: argument: expected RULE, got VALUE"); "" after a success. Never NULL;
 * valid until this thread's next call of any function that returns a dsv4_status. */
DSV4_API const char* dsv4_last_error(void);

/* Route the ops of the whole process to one backend ("cpu", "cuda", "npu", "cuda_emu", "ascend_emu").
 * "reference" checks the contract and launches nothing (the Python reference runs instead).
 * NULL goes back to the backend of the tensors' device. */
DSV4_API dsv4_status dsv4_use_backend(const char* name);

/* Can backend `name` run op `op` ("mhc_post", or NULL: any) here? Loads it, and changes no route. DSV4_OK: yes;
 * DSV4_BACKEND_UNAVAILABLE: dsv4_last_error() says why it is not built or cannot be loaded; DSV4_NOT_SUPPORTED: it has no
 * kernel for the op. "reference" checks every op's contract and has no kernels here. */
DSV4_API dsv4_status dsv4_check_backend(const char* name, const char* op);

/* Threads of the CPU backend, the caller's included; the default is the number of usable cores or
 * DSV4SPEC_NUM_THREADS. Both go from 1 to 1024: another n is refused, and another value of the variable keeps the CPU
 * backend from loading. */
DSV4_API dsv4_status dsv4_set_num_threads(int32_t n);
DSV4_API int32_t dsv4_get_num_threads(void);

#ifdef __cplusplus
}
#endif
#endif /* DSV4SPEC_TYPES_H_ */
