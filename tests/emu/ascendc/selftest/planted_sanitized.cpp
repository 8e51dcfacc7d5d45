// SPDX-License-Identifier: Apache-2.0
// Mistakes in a kernel's plain C++, which the sanitizers of the asan flavour name. `plant` 0 is the correct kernel.
#include "selftest.h"

namespace {

SELFTEST(array_index, AIV_ONLY, g) {
  volatile int32_t counts[8] = {};
  counts[g.plant ? g.n : 7] = counts[0];  // n is 8
}
SELFTEST(shift_width, AIV_ONLY, g) {
  volatile int32_t bit = 1 << (g.plant ? g.n * 5 : 30);
  (void)bit;
}

}  // namespace
