// SPDX-License-Identifier: Apache-2.0
// For the tests of the emulator: kernels with a planted bug and without it, and memory to run them on. Each number is
// one bug; tests/test_emu_cuda.py says which flavour has to find it.
#pragma once
#include <vector>

#include "kernel.cuh"

namespace selftest {

using namespace dsv4::cuda;

// Device memory that lives as long as this; its last byte is the last one in reach if `count` fills whole 256 bytes.
template <class T>
struct Device {
  T* data = nullptr;
  size_t count;
  explicit Device(size_t n) : count(n) { cudaMalloc(reinterpret_cast<void**>(&data), n * sizeof(T)); }
  explicit Device(const std::vector<T>& values) : Device(values.size()) {
    cudaMemcpy(data, values.data(), count * sizeof(T), cudaMemcpyHostToDevice);
  }
  Device(const Device&) = delete;
  ~Device() { cudaFree(data); }
  std::vector<T> read() const {
    std::vector<T> values(count);
    cudaMemcpy(values.data(), data, count * sizeof(T), cudaMemcpyDeviceToHost);
    return values;
  }
};

inline std::vector<float> ramp(size_t n) {
  std::vector<float> v(n);
  for (size_t i = 0; i < n; ++i) v[i] = static_cast<float>(i % 251 + 1);
  return v;
}

// -1: the launch failed. Otherwise how many values are wrong; a NaN is.
template <class T>
long verdict(cudaError_t error, const Device<T>& got, const std::vector<T>& expected) {
  if (error != cudaSuccess) return -1;
  const std::vector<T> values = got.read();
  long wrong = 0;
  for (size_t i = 0; i < expected.size(); ++i) wrong += !(values[i] == expected[i]);
  return wrong;
}

using Planted = long (*)(bool bug);
bool add(int number, Planted run);

}  // namespace selftest

// PLANTED(7, name) { ... launch(bug ? ... : ...); return verdict(...); }
#define PLANTED(number, name)                                             \
  static long name(bool bug);                                             \
  static const bool name##_added = ::selftest::add(number, &name);        \
  static long name(bool bug)
