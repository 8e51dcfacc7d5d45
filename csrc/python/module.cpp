// SPDX-License-Identifier: Apache-2.0
// dsv4spec._C: every op of the C ABI as one Python function, generated from its field list. Arguments are
// positional, in the order of the args struct; None stands for an absent optional tensor.
#include <cxxabi.h>
#include <pybind11/pybind11.h>
#include <unistd.h>

#include <cstring>
#include <memory>
#include <string>
#include <utility>
#include <vector>

#include "../backends.h"
#include "build_info.h"
#include "fetch.h"
#include "host_round.h"
#include "tensors.h"

namespace py = pybind11;

namespace dsv4 {
namespace {

constexpr int kMaxFields = 24;
constexpr size_t kMaxArgsSize = 512;

const OpDesc* op_desc_of(int id) { return dsv4_reflection()->op_desc(static_cast<OpId>(id)); }

[[noreturn]] void raise_status(dsv4_status status) {
  const char* text = dsv4_last_error();
  switch (status) {
    case DSV4_INVALID_ARGUMENT: PyErr_SetString(PyExc_ValueError, text); break;
    case DSV4_NOT_SUPPORTED: PyErr_SetString(PyExc_NotImplementedError, text); break;
    default: PyErr_SetString(PyExc_RuntimeError, text);
  }
  throw py::error_already_set();
}

[[noreturn]] void refuse_scalar(const char* op, const char* argument, const char* rule, py::handle value) {
  PyErr_Clear();
  const std::string got = PyLong_Check(value.ptr()) ? std::string(py::str(value)) : Py_TYPE(value.ptr())->tp_name;
  throw py::value_error(std::string(op) + ": " + argument + ": expected " + rule + ", got " + got);
}

// Scratch of CPU launches: grown here, in the binding, so that kernels and the C ABI never allocate.
void* cpu_workspace(uint64_t bytes) {
  struct Free {
    void operator()(void* p) const { std::free(p); }
  };
  static thread_local std::unique_ptr<void, Free> memory;
  static thread_local uint64_t size = 0;
  if (bytes > size) {
    size = 0;  // of what there is if no memory can be had
    memory.reset(std::aligned_alloc(64, (bytes + 63) / 64 * 64));
    if (!memory) throw std::bad_alloc();
    size = bytes;
  }
  return memory.get();
}

// A daemon thread that comes back while the interpreter shuts down stays here until the process ends, as it does from Python
// 3.14 on. Before, Python ends the thread by unwinding it, and what is unwound here would release tensors without the GIL.
void take_gil_back(PyThreadState* thread) {
  try {
    PyEval_RestoreThread(thread);
  } catch (abi::__forced_unwind&) {
    for (;;) pause();
  }
}

void call_op(const OpDesc& op, PyObject* values) {
  if (PyTuple_GET_SIZE(values) != op.field_count)
    throw py::type_error(std::string(op.name) + ": expected " + std::to_string(op.field_count) +
                         " positional arguments, got " + std::to_string(PyTuple_GET_SIZE(values)));
  alignas(8) char args[kMaxArgsSize] = {};
  const uint64_t struct_size = op.args_size;
  std::memcpy(args, &struct_size, sizeof struct_size);

  for (int i = 0; i < op.field_count; ++i) fetch_owner(PyTuple_GET_ITEM(values, i));
  BorrowedTensor tensors[kMaxFields];
  void* stream = nullptr;
  py::handle on_device;  // the first tensor that is not in the CPU's memory
  const char* on_device_name = nullptr;
  for (int i = 0; i < op.field_count; ++i) {
    const Field& f = op.fields[i];
    py::handle value = PyTuple_GET_ITEM(values, i);
    char* member = args + f.offset;
    switch (f.kind) {
      case ArgKind::kInt: {
        const int64_t n = PyLong_AsLongLong(value.ptr());
        if (n == -1 && PyErr_Occurred()) refuse_scalar(op.name, f.name, "an integer of 64 bits", value);
        std::memcpy(member, &n, sizeof n);
        break;
      }
      case ArgKind::kDouble: {
        const double x = PyFloat_AsDouble(value.ptr());
        if (x == -1.0 && PyErr_Occurred()) refuse_scalar(op.name, f.name, "a number", value);
        std::memcpy(member, &x, sizeof x);
        break;
      }
      default: {
        const bool optional = f.kind == ArgKind::kOptionalIn || f.kind == ArgKind::kOptionalOut;
        if (optional && value.is_none()) break;
        const bool written = f.kind == ArgKind::kOut || f.kind == ArgKind::kOptionalOut;
        tensors[i].borrow(value, op.name, f.name, written);
        const DLTensor* t = tensors[i].get();
        if (t->device.device_type != kDLCPU && on_device) {
          expect_stream(value, on_device, op.name, f.name, t->device, stream);
        } else if (t->device.device_type != kDLCPU) {
          on_device = value;
          on_device_name = f.name;
          stream = current_stream(value, op.name, f.name, t->device);
        }
        std::memcpy(member, &t, sizeof t);
        if (!on_device) fetch_data(*t);
      }
    }
  }
  DeviceScratch scratch;
  if (op.workspace_size) {
    uint64_t bytes = 0;
    if (dsv4_status s = op.workspace_size(args, &bytes)) raise_status(s);
    void* memory = nullptr;
    if (bytes && on_device) {
      scratch = DeviceScratch(on_device, op.name, on_device_name, bytes);
      memory = scratch.memory();
    } else if (bytes) {
      memory = cpu_workspace(bytes);
    }
    std::memcpy(args + op.workspace_offset, &memory, sizeof memory);
    std::memcpy(args + op.workspace_offset + sizeof memory, &bytes, sizeof bytes);
  }
  PyThreadState* thread = PyEval_SaveThread();
  const dsv4_status status = op.call(args, stream);
  take_gil_back(thread);
  // The text is this thread's; read it before another call on this thread can replace it.
  if (status) raise_status(status);
}

// call_op as Python's own kind of function, which takes the caller's tuple as it is: pybind11's copies it and looks through
// its overloads, a tenth of a short call.
template <int kId>
PyObject* call_from_python(PyObject*, PyObject* values) {
  try {
    call_op(*op_desc_of(kId), values);
  } catch (py::error_already_set& error) {
    error.restore();
    return nullptr;
  } catch (const py::builtin_exception& error) {
    error.set_error();
    return nullptr;
  } catch (const std::bad_alloc&) {
    return PyErr_NoMemory();
  } catch (const std::exception& error) {
    PyErr_SetString(PyExc_RuntimeError, error.what());
    return nullptr;
  }
  Py_RETURN_NONE;
}

// What every call of an op asks first; in Python it takes a third of a microsecond. What describes its tensors is fetched
// meanwhile, and until call_op reads it Python has some 0.6 us to do.
PyObject* only_types(PyObject*, PyObject* const* given, Py_ssize_t count) {
  if (count != 3 || !PySet_Check(given[0]) || !PyTuple_Check(given[1]) || !PyDict_Check(given[2])) {
    PyErr_SetString(PyExc_TypeError, "only_types: expected a set, a tuple and a dict");
    return nullptr;
  }
  PyTypeObject* last = nullptr;  // neighbours often are of one type
  auto known = [&](PyObject* value) {
    fetch_description(value);
    for (Py_ssize_t i = 0; PyTuple_CheckExact(value) && i < PyTuple_GET_SIZE(value); ++i)  // out=
      fetch_description(PyTuple_GET_ITEM(value, i));
    if (Py_TYPE(value) == last) return 1;
    last = Py_TYPE(value);
    return PySet_Contains(given[0], reinterpret_cast<PyObject*>(last));
  };
  int all = 1;
  for (Py_ssize_t i = 0; all == 1 && i < PyTuple_GET_SIZE(given[1]); ++i) all = known(PyTuple_GET_ITEM(given[1], i));
  PyObject* value;
  for (Py_ssize_t at = 0; all == 1 && PyDict_Next(given[2], &at, nullptr, &value);) all = known(value);
  return all < 0 ? nullptr : PyBool_FromLong(all);
}

template <int... kIds>
void add_ops(py::module_& m, std::integer_sequence<int, kIds...>) {
  static PyMethodDef functions[] = {{nullptr, &call_from_python<kIds>, METH_VARARGS, nullptr}...};
  for (int i = 0; i < kOpCount; ++i) {
    const OpDesc* op = op_desc_of(i);
    if (!op) continue;
    if (op->field_count > kMaxFields || op->args_size > kMaxArgsSize)
      throw std::runtime_error(std::string(op->name) + ": too many arguments for the binding");
    functions[i].ml_name = op->name;
    PyObject* function = PyCFunction_NewEx(&functions[i], nullptr, m.attr("__name__").ptr());
    if (!function) throw py::error_already_set();
    m.add_object(op->name, function);
  }
}

py::dict backends() {
  py::dict out;
  for (const BackendState& s : dsv4_reflection()->backend_states()) {
    py::dict row;
    row["loadable"] = s.table != nullptr;
    row["why_not"] = s.table ? py::object(py::none()) : py::object(py::str(s.why));
    if (s.table) {
      row["toolchain"] = s.table->toolchain;
      row["archs"] = s.table->archs;
      py::list ops, float16;
      for (int i = 0; i < kOpCount; ++i) {
        if (!s.table->launch[i] || !op_desc_of(i)) continue;
        ops.append(op_desc_of(i)->name);
        if (s.table->takes_f16[i]) float16.append(op_desc_of(i)->name);
      }
      row["ops"] = ops;
      row["float16"] = float16;  // those that take float16 streams
    }
    out[s.name] = row;
  }
  return out;
}

py::dict op_fields() {
  static const char* kinds[] = {"in", "optional_in", "out", "optional_out", "int", "double"};
  py::dict out;
  for (int i = 0; i < kOpCount; ++i) {
    const OpDesc* op = op_desc_of(i);
    if (!op) continue;
    py::list fields;
    for (int j = 0; j < op->field_count; ++j)
      fields.append(py::make_tuple(op->fields[j].name, kinds[static_cast<int>(op->fields[j].kind)]));
    out[op->name] = fields;
  }
  return out;
}

}  // namespace
}  // namespace dsv4

PYBIND11_MODULE(_C, m) {
  using namespace dsv4;
  if (std::strcmp(dsv4_reflection()->source_hash, kBuild.source_hash) != 0)
    throw py::import_error(std::string("dsv4spec: the binding was built from sources ") + kBuild.source_hash +
                           ", libdsv4spec from " + dsv4_reflection()->source_hash + "; rebuild with: pip install .");
  m.doc() = "The C ABI of dsv4spec, one function per op.";
  add_ops(m, std::make_integer_sequence<int, kOpCount>{});
  static PyMethodDef more[] = {
      {"only_types", reinterpret_cast<PyCFunction>(reinterpret_cast<void (*)()>(&only_types)), METH_FASTCALL,
       "only_types(types, args, kwargs): is every value of the tuple and the dict of a type of the set?"},
      {nullptr, nullptr, 0, nullptr}};
  if (PyModule_AddFunctions(m.ptr(), more)) throw py::error_already_set();
  m.def("use_backend", [](py::object name) {
    const std::string text = name.is_none() ? std::string() : std::string(py::str(name));  // refused if it is no name
    if (dsv4_status s = dsv4_use_backend(name.is_none() ? nullptr : text.c_str())) raise_status(s);
  });
  m.def("check_only", dsv4_reflection()->check_only,
        "True: calls of this thread check their contract and launch nothing. Returns what was in force before.");
  m.def("time_kernels", dsv4_reflection()->time_kernels,
        "True: time the kernels that this thread launches from now on. Returns their nanoseconds since the last call.");
  m.def("set_num_threads", [](int32_t n) {
    if (dsv4_status s = dsv4_set_num_threads(n)) raise_status(s);
  });
  m.def("get_num_threads", &dsv4_get_num_threads);
  m.def("backends", &backends, "Per backend: loadable, why not, toolchain, archs, ops.");
  m.def("op_fields", &op_fields, "Per op: (argument, kind) in the order of its C struct.");
  add_host_round(m);
  m.attr("abi_version") = DSV4_ABI_VERSION;
  m.def("cpu_levels", [] {
    py::dict levels;
    for (const CpuLevel& level : dsv4_reflection()->cpu_levels()) levels[level.name] = level.runs_here;
    return levels;
  }, "The CPU levels of this architecture, best first: does this machine run it?");
  m.attr("version") = kBuild.version;
  m.attr("git_hash") = kBuild.git_hash;
  m.attr("source_hash") = kBuild.source_hash;
  m.attr("build_summary") = kBuild.summary;
  m.attr("build_options") = kBuild.options;
  m.attr("compiler") = kBuild.compiler;
}
