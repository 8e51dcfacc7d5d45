/* SPDX-License-Identifier: Apache-2.0 */
#ifndef DSV4SPEC_TARGET_H_
#define DSV4SPEC_TARGET_H_

#include "types.h"

#ifdef __cplusplus
extern "C" {
#endif

#ifdef __cplusplus
}
#endif
#endif /* DSV4SPEC_TARGET_H_ */
