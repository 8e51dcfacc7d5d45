// SPDX-License-Identifier: Apache-2.0
// Python objects -> borrowed DLTensors: the DLPack C exchange API where the type offers it (torch 2.10+), else
// the `__dlpack__` protocol (NumPy, JAX, CuPy, ...).
#pragma once
#include <pybind11/pybind11.h>

#include "dsv4spec/dlpack_abi.h"

namespace dsv4 {

// A tensor argument for the length of one call.
class BorrowedTensor {
 public:
  BorrowedTensor() = default;
  BorrowedTensor(const BorrowedTensor&) = delete;
  ~BorrowedTensor();

  // `what` ("op: argument") heads the error text. `written`: refuse read-only exports.
  void borrow(pybind11::handle object, const char* op, const char* argument, bool written);
  const DLTensor* get() const { return tensor_; }

 private:
  void from_protocol(pybind11::handle object, const char* op, const char* argument, bool written);

  DLTensor storage_{};
  const DLTensor* tensor_ = nullptr;
  pybind11::object owner_;  // the consumed capsule's source
  DLManagedTensorVersioned* versioned_ = nullptr;
  DLManagedTensor* legacy_ = nullptr;
};

// The current stream of `device` in the library that owns the device tensor `object`.
void* current_stream(pybind11::handle object, const char* op, const char* argument, const DLDevice& device);

// A later device tensor of a call that is launched on `stream`, the current one of the library of `first`: the library of
// `object`, if it is another, must be working on it too. Else one side would read or write too early.
void expect_stream(pybind11::handle object, pybind11::handle first, const char* op, const char* argument,
                   const DLDevice& device, void* stream);

// Memory on the device of `object`, from the allocator of its library, for the length of one call.
class DeviceScratch {
 public:
  DeviceScratch() = default;
  DeviceScratch(pybind11::handle object, const char* op, const char* argument, uint64_t bytes);
  void* memory() const { return memory_; }

 private:
  pybind11::object owner_;
  void* memory_ = nullptr;
};

}  // namespace dsv4
