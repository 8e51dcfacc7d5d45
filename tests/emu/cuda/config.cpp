// SPDX-License-Identifier: Apache-2.0
#include "config.h"

#include <climits>

#include "../common/settings.h"

namespace cuda_emu {
std::string config_problem;

namespace {

constexpr emu::Key<Config> kKeys[] = {
    {"order", &Config::order, kFifo, kFifo, kWarpPriority}, {"seed", &Config::seed, 1, 0, INT_MAX},
    {"threads", &Config::threads, 1, 1, 64},                {"poison", &Config::poison, 1, 0, 1},
    {"defer", &Config::defer, 1, 0, 1},                     {"strict", &Config::strict, 1, 0, 1},
    {"races", &Config::races, 1, 0, 1},                     {"count", &Config::count, 1, 0, 1},
    {"align", &Config::align, 16, 1, 256},                  {"capability", &Config::capability, 90, 80, 120},
    {"code", &Config::code, 90, 80, 120},                   {"cluster", &Config::cluster, 16, 8, 16},
};

}  // namespace

Config config = emu::from_environment("CUDA_EMU_", kKeys, config_problem);

bool configure(const char* key, long value) { return emu::configure(config, kKeys, key, value); }

}  // namespace cuda_emu
