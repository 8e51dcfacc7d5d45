// SPDX-License-Identifier: Apache-2.0
// Settings of the emulator, and its reports.
#pragma once
#include <atomic>
#include <cstddef>
#include <mutex>
#include <string>

#include "core.h"

namespace cuda_emu {

enum Order : long { kFifo, kLifo, kRandom, kWarpPriority };

// Defaults come from the environment: CUDA_EMU_ORDER, CUDA_EMU_SEED, ...
struct Config {
  long order;    // which thread goes on when several could; blocks start in reverse or random order to match
  long seed;     // of the random orders
  long threads;  // OS threads that run blocks
  long poison;   // 1: shared memory starts as NaN bytes
  long defer;    // 1: cp.async copies at the wait, and leaves NaN bytes until then
  long strict;   // 1: what the CUDA documentation leaves undefined is an error, even where today's devices allow it
  long races;    // shadow flavour, 1: look for races and reads of what was never written
  long count;    // shadow flavour, 1: count sectors of memory and conflicts of banks
  long capability;  // compute capability * 10 of the device; below 90 it has no clusters
  long code;     // the architecture * 10 that the kernels' code is of; below 90 those on clusters trap
  long cluster;  // blocks of the largest cluster that the device holds
  long align;    // of the start of cuda_emu_malloc's memory; 1: the end of the memory is the first byte out of reach
};
extern Config config;
extern std::string config_problem;             // what is wrong with the environment; then no launch is run
bool configure(const char* key, long value);  // false: no such key, or a value out of range

constexpr size_t kPage = 4096;
constexpr size_t round_up(size_t n, size_t to) { return (n + to - 1) / to * to; }

// ---- reports ----
void begin_reports();                           // the next report starts the text anew
void add_report(const std::string& text);
void clear_reports();
std::string describe(const Thread& thread);     // kernel, block and thread
std::string kernel_name(const void* function);
std::string source_of(const void* pc);          // " (file:line, from file:line)" of a kernel, or "" if not known
std::string source_of_caller();                 // the same for the innermost frame that is a kernel's
std::string with_source(const std::string& text, const std::string& source);  // unless the text names it already
extern std::atomic<bool> failed;                // the run that is under way

}  // namespace cuda_emu
