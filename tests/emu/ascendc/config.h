// SPDX-License-Identifier: Apache-2.0
// Settings, reports and counters of the emulator.
#pragma once
#include <cstddef>
#include <cstdint>
#include <stdexcept>
#include <string>

namespace ascend_emu {

enum Order : long { kEager, kLazy, kShuffled };

// Defaults come from the environment: ASCEND_EMU_ORDER, ASCEND_EMU_SEED, ...
struct Config {
  long order;    // when instructions are executed: at once, when something waits for them, or shuffled
  long seed;     // of the shuffled order
  long cores;    // vector cores that kernels split their work over; half as many cube cores
  long check;    // 0: no hazards and no never-written reads are looked for
};
extern Config config;
extern std::string config_problem;
bool configure(const char* key, long value);

struct Violation : std::runtime_error {
  using std::runtime_error::runtime_error;
};

const char* rule_name(int rule);
void add_report(const std::string& text);
void clear_reports();
void begin_reports();                         // the next report starts the text anew
uint32_t reports_of_launch();
const char* report();

std::string source_of(const void* pc);        // "file.cpp:12, from file.cpp:40", or "" if that is no kernel's
std::string source_of_caller();

std::string describe_core();                  // "kernel, cube core 3"

std::string counters();                       // JSON, since the last clear
void clear_counters();

void* allocate(size_t bytes);                 // NaN bytes between guard zones
bool release(void* memory);
// Is [address, address + bytes) wholly inside an allocation, or near none? Otherwise says what is wrong.
std::string describe_outside(const void* address, uint64_t bytes);

}  // namespace ascend_emu
