/* SPDX-License-Identifier: Apache-2.0
 *
 * dsv4spec: kernels for DeepSeek-V4 MTP / NextN speculative decoding. The public C ABI.
 *
 *   dsv4_mhc_post_args args = {0};
 *   args.struct_size = sizeof args;
 *   args.y = &y; ...
 *   if (dsv4_mhc_post(&args, stream) != DSV4_OK) fprintf(stderr, "%s\n", dsv4_last_error());
 *
 * Conventions: types.h. Each family header is the contract of its ops: formula, shapes, dtypes, ties,
 * NaN and empty rules stand above each struct.
 */
#ifndef DSV4SPEC_H_
#define DSV4SPEC_H_

#include "types.h"

#include "attention.h"
#include "mhc.h"
#include "paging.h"
#include "target.h"
#include "tree.h"
#include "verify.h"

#endif /* DSV4SPEC_H_ */
