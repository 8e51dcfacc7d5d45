/* SPDX-License-Identifier: Apache-2.0
 *
 * mHC (manifold hyper-connections) and the NextN input fusion.
 * R is the residual stream [T, hc, d], stream-major: element i*d + j of a row is stream i, channel j.
 */
#ifndef DSV4SPEC_MHC_H_
#define DSV4SPEC_MHC_H_

#include "types.h"

#ifdef __cplusplus
extern "C" {
#endif

/* mhc_post: closes a sub-layer.
 *   out[t,i,:] = post[t,i] * y[t,:] + sum_j comb[t,j,i] * residual[t,j,:]     (first index of comb is summed)
 * fp32 arithmetic, one rounding to the stream dtype. hc is 1, 2 or 4. */
typedef struct dsv4_mhc_post_args {
  uint64_t struct_size;
  const DLTensor* y;        /* [T, d]      f32 | bf16 */
  const DLTensor* residual; /* [T, hc, d]  as y */
  const DLTensor* post;     /* [T, hc]     f32 */
  const DLTensor* comb;     /* [T, hc, hc] f32 */
  const DLTensor* out;      /* [T, hc, d]  as y; written; may be `residual` itself */
} dsv4_mhc_post_args;
DSV4_API dsv4_status dsv4_mhc_post(const dsv4_mhc_post_args* args, dsv4_stream stream);

#ifdef __cplusplus
}
#endif
#endif /* DSV4SPEC_MHC_H_ */
