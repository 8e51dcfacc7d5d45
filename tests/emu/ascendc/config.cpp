// SPDX-License-Identifier: Apache-2.0
#include "config.h"

#include <climits>

#include "../common/settings.h"

namespace ascend_emu {
std::string config_problem;

namespace {

constexpr emu::Key<Config> kKeys[] = {{"order", &Config::order, kEager, kEager, kShuffled},
                         {"seed", &Config::seed, 1, 0, INT_MAX},
                         {"cores", &Config::cores, 4, 1, 48},
                         {"check", &Config::check, 1, 0, 1}};

}  // namespace

Config config = emu::from_environment("ASCEND_EMU_", kKeys, config_problem);

bool configure(const char* key, long value) { return emu::configure(config, kKeys, key, value); }

}  // namespace ascend_emu
