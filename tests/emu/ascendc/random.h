// SPDX-License-Identifier: Apache-2.0
#pragma once
#include <random>

namespace ascend_emu {
std::mt19937& random_numbers();  // of the shuffled orders; seeded at every launch
}
