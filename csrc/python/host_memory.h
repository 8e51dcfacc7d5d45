// SPDX-License-Identifier: Apache-2.0
// What the host's part of a round (host_round.cpp) reads and writes.
#pragma once
#include <pybind11/pybind11.h>

#include <string>
#include <type_traits>
#include <vector>

#include "tensors.h"

namespace dsv4 {

// A NumPy array's memory, held as long as this object lives.
template <class T>
struct Array {
  pybind11::buffer_info info;
  T* data = nullptr;
  int64_t count = 0, columns = 1;

  explicit Array(const pybind11::handle& array) : info(pybind11::reinterpret_borrow<pybind11::buffer>(array).request()) {
    int64_t dense = sizeof(T);
    for (pybind11::ssize_t i = info.ndim; i-- > 0; dense *= info.shape[i])
      if (info.shape[i] > 1 && info.strides[i] != dense) throw pybind11::value_error("host round: array: expected C order");
    if (info.itemsize != sizeof(T)) throw pybind11::value_error("host round: array: expected items of another size");
    data = static_cast<T*>(info.ptr);
    count = info.size;
    if (info.ndim) columns = info.shape[info.ndim - 1];
  }
};

// A tensor of the CPU in C order.
template <class T>
struct Tensor {
  BorrowedTensor owner;
  T* data = nullptr;
  int64_t count = 1;

  // `expected` values, or any number (-1).
  Tensor(pybind11::handle object, const char* op, const char* argument, int64_t expected = -1) {
    owner.borrow(object, op, argument, true);
    const DLTensor& t = *owner.get();
    constexpr bool real = std::is_floating_point<T>::value;
    bool good = t.device.device_type == kDLCPU && t.dtype.code == (real ? kDLFloat : kDLInt) && t.dtype.bits == 8 * sizeof(T);
    for (int i = t.ndim; i-- > 0; count *= t.shape[i]) good &= t.shape[i] <= 1 || !t.strides || t.strides[i] == count;
    if (!good || (expected >= 0 && count != expected))
      throw pybind11::value_error(std::string(op) + ": " + argument + ": expected " +
                            (expected < 0 ? "" : std::to_string(expected) + " ") + (real ? "float32" : "int64") +
                            " values in C order on the CPU, got another tensor of " + std::to_string(count));
    data = reinterpret_cast<T*>(static_cast<char*>(t.data) + t.byte_offset);
  }
};

// The integers of a list or tuple.
inline std::vector<int64_t> integers(const pybind11::object& sequence) {
  const int64_t count = PySequence_Fast_GET_SIZE(sequence.ptr());
  std::vector<int64_t> values(count);
  for (int64_t i = 0; i < count; ++i) {
    values[i] = PyLong_AsLongLong(PySequence_Fast_ITEMS(sequence.ptr())[i]);
    if (values[i] == -1 && PyErr_Occurred()) throw pybind11::error_already_set();
  }
  return values;
}

}  // namespace dsv4
