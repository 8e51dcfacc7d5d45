// SPDX-License-Identifier: Apache-2.0
#include "tensors.h"

#include <cstdio>
#include <string>
#include <utility>

#include "fetch.h"

namespace py = pybind11;

namespace dsv4 {
namespace {

// The exchange API of a type, looked up once per type. A process sees one or two tensor types, so the last hit
// is kept; a type object that dies and is reused is caught by the version tag being part of the owner's lookup.
const DLPackExchangeAPI* exchange_api(PyTypeObject* type) {
  static PyTypeObject* last_type = nullptr;
  static const DLPackExchangeAPI* last_api = nullptr;
  if (type == last_type) return last_api;
  static PyObject* attribute = PyUnicode_InternFromString("__dlpack_c_exchange_api__");
  PyObject* capsule = PyObject_GetAttr(reinterpret_cast<PyObject*>(type), attribute);
  const DLPackExchangeAPI* api = nullptr;
  if (!capsule) {
    PyErr_Clear();
  } else {
    if (PyCapsule_IsValid(capsule, "dlpack_exchange_api"))
      api = static_cast<const DLPackExchangeAPI*>(PyCapsule_GetPointer(capsule, "dlpack_exchange_api"));
    Py_DECREF(capsule);
    if (api && (api->header.version.major != DLPACK_MAJOR_VERSION || !api->dltensor_from_py_object_no_sync))
      api = nullptr;
  }
  Py_INCREF(type);  // keeps the address unique for as long as it is remembered
  Py_XDECREF(last_type);
  last_type = type;
  last_api = api;
  return api;
}

[[noreturn]] void refuse(const char* op, const char* argument, const std::string& rule, const std::string& got) {
  throw py::value_error(std::string(op) + ": " + argument + ": expected " + rule + ", got " + got);
}

// The producer will not hand out its memory (meta or sparse tensors, tensors that require a gradient, byte orders...).
[[noreturn]] void refuse_export(const char* op, const char* argument, py::handle object,
                                const py::error_already_set& error) {
  if (!error.matches(PyExc_Exception) || error.matches(PyExc_MemoryError)) throw error;  // an interrupt is no refusal
  std::string why = py::str(error.value());
  why = why.substr(0, why.find('\n'));
  refuse(op, argument, "a tensor that DLPack can share", std::string(Py_TYPE(object.ptr())->tp_name) + " (" + why + ")");
}

// torch's lazily negated views (of conj().imag) keep the sign in the tensor object, not in memory, and DLPack does not show
// it. They step over whole complex numbers, and begin at an imaginary half, which lies off the size of a pair unless memory
// of another library does: only such tensors need to be asked, which takes 60 ns. (torch._neg_view, a private function, can
// negate any tensor, and as_strided can make any view of a negated one.)
bool may_be_negated(const DLTensor& t) {
  if (t.dtype.code != kDLFloat) return false;
  bool by_pairs = t.strides;
  for (int i = 0; by_pairs && i < t.ndim; ++i) by_pairs = t.shape[i] == 1 || t.strides[i] % 2 == 0;
  const uintptr_t at = reinterpret_cast<uintptr_t>(t.data) + t.byte_offset, bytes = t.dtype.bits / 8;
  return by_pairs || at & bytes;
}

bool is_negated(py::handle object) {
  static PyObject* method = PyUnicode_InternFromString("is_neg");
  PyObject* answer = PyObject_CallMethodNoArgs(object.ptr(), method);
  if (!answer) {
    if (!PyErr_ExceptionMatches(PyExc_AttributeError)) throw py::error_already_set();
    PyErr_Clear();  // a library other than torch
    return false;
  }
  const bool negated = answer == Py_True;
  Py_DECREF(answer);
  return negated;
}

// JAX's arrays never change, but their capsules (of DLPack before 1.0) have no place to say so.
bool is_jax(py::handle object) {
  const std::string module = py::str(py::type::handle_of(object).attr("__module__"));
  return module.compare(0, 3, "jax") == 0;
}

bool is_on_device(py::handle object, const char* op, const char* argument) {
  if (!py::hasattr(object, "__dlpack_device__")) return false;
  try {
    return object.attr("__dlpack_device__")().cast<std::pair<int, int>>().first != kDLCPU;
  } catch (const py::error_already_set& e) {
    refuse_export(op, argument, object, e);
  } catch (const py::cast_error&) {
    refuse(op, argument, "two integers from __dlpack_device__", Py_TYPE(object.ptr())->tp_name);
  }
}

}  // namespace

BorrowedTensor::~BorrowedTensor() {
  if (versioned_ && versioned_->deleter) versioned_->deleter(versioned_);
  if (legacy_ && legacy_->deleter) legacy_->deleter(legacy_);
}

void BorrowedTensor::borrow(py::handle object, const char* op, const char* argument, bool written) {
  if (const DLPackExchangeAPI* api = exchange_api(Py_TYPE(object.ptr()))) {
    if (api->dltensor_from_py_object_no_sync(object.ptr(), &storage_) != 0)
      refuse_export(op, argument, object, py::error_already_set());
    if (may_be_negated(storage_) && is_negated(object))
      refuse(op, argument, "a tensor without the negative bit (resolve_neg())", "one with it");
    learn_description(object.ptr(), storage_);
    tensor_ = &storage_;
    return;
  }
  from_protocol(object, op, argument, written);
}

void BorrowedTensor::from_protocol(py::handle object, const char* op, const char* argument, bool written) {
  if (!py::hasattr(object, "__dlpack__"))
    refuse(op, argument, "a tensor (an object with __dlpack__)", Py_TYPE(object.ptr())->tp_name);
  owner_ = [&]() -> py::object {
    py::dict how;
    // Work is launched on the producer's current stream, so that there is nothing to wait for. The CPU has no streams.
    if (is_on_device(object, op, argument)) how["stream"] = -1;
    try {
      return object.attr("__dlpack__")(**how, py::arg("max_version") = py::make_tuple(1, 0));
    } catch (py::error_already_set& e) {
      if (!e.matches(PyExc_TypeError)) refuse_export(op, argument, object, e);
    }
    try {
      return object.attr("__dlpack__")(**how);  // a producer from before DLPack 1.0
    } catch (py::error_already_set& e) {
      refuse_export(op, argument, object, e);
    }
  }();
  PyObject* capsule = owner_.ptr();
  if (PyCapsule_IsValid(capsule, "dltensor_versioned")) {
    auto* managed = static_cast<DLManagedTensorVersioned*>(PyCapsule_GetPointer(capsule, "dltensor_versioned"));
    if (managed->version.major != DLPACK_MAJOR_VERSION)
      refuse(op, argument, "DLPack major version 1", std::to_string(managed->version.major));
    PyCapsule_SetName(capsule, "used_dltensor_versioned");
    versioned_ = managed;
    if (written && (managed->flags & DLPACK_FLAG_BITMASK_READ_ONLY))
      refuse(op, argument, "writable memory", "a read-only tensor");
    if (written && (managed->flags & DLPACK_FLAG_BITMASK_IS_COPIED))
      refuse(op, argument, "the tensor's own memory", "a copy");
    tensor_ = &managed->dl_tensor;
  } else if (PyCapsule_IsValid(capsule, "dltensor")) {
    legacy_ = static_cast<DLManagedTensor*>(PyCapsule_GetPointer(capsule, "dltensor"));
    PyCapsule_SetName(capsule, "used_dltensor");
    if (written && is_jax(object)) refuse(op, argument, "writable memory", "a JAX array, which cannot be changed");
    tensor_ = &legacy_->dl_tensor;
  } else {
    refuse(op, argument, "an unused DLPack capsule", Py_TYPE(capsule)->tp_name);
  }
}

namespace {

// A function of dsv4spec.ops._device, called with a device tensor. Its refusal gets the op's name.
py::object ask_library(const char* function, const char* op, const char* argument, py::handle object,
                       const py::args& more) {
  static py::handle module = py::module_::import("dsv4spec.ops._device").release();
  try {
    return module.attr(function)(object, *more);
  } catch (py::error_already_set& e) {
    if (!e.matches(PyExc_TypeError)) throw;
    throw py::value_error(std::string(op) + ": " + argument + ": " + std::string(py::str(e.value())));
  }
}

}  // namespace

void* current_stream(py::handle object, const char* op, const char* argument, const DLDevice& device) {
  // An NPU's stream is asked for in Python, which also empties the queue before it (ops/_device.py).
  const DLPackExchangeAPI* api = exchange_api(Py_TYPE(object.ptr()));
  if (api && device.device_type != kDLExtDev) {
    void* stream = nullptr;
    if (api->current_work_stream(device.device_type, device.device_id, &stream) != 0) throw py::error_already_set();
    return stream;
  }
  const py::object handle = ask_library("stream_of", op, argument, object, py::args());
  return reinterpret_cast<void*>(handle.cast<uintptr_t>());
}

void expect_stream(py::handle object, py::handle first, const char* op, const char* argument, const DLDevice& device,
                   void* stream) {
  PyTypeObject *type = Py_TYPE(object.ptr()), *other = Py_TYPE(first.ptr());
  if (type == other) return;
  const DLPackExchangeAPI* api = exchange_api(type);
  if (api && api == exchange_api(other)) return;  // a subclass
  auto number = [](void* s) { return reinterpret_cast<uintptr_t>(s); };
  const uintptr_t wanted = number(stream), got = number(current_stream(object, op, argument, device));
  if (wanted == got || (wanted <= 1 && got <= 1 && device.device_type == kDLCUDA)) return;  // 0 and 1: the default stream
  char rule[96], value[96];
  std::snprintf(rule, sizeof rule, "a tensor whose library works on stream 0x%zx, as that of the first", wanted);
  std::snprintf(value, sizeof value, "%s on 0x%zx", type->tp_name, got);
  refuse(op, argument, rule, value);
}

DeviceScratch::DeviceScratch(py::handle object, const char* op, const char* argument, uint64_t bytes) {
  const py::tuple got = ask_library("scratch", op, argument, object, py::make_tuple(bytes));
  owner_ = got[0];
  memory_ = reinterpret_cast<void*>(got[1].cast<uintptr_t>());
}

}  // namespace dsv4
