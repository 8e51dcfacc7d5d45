# SPDX-License-Identifier: Apache-2.0
"""Calls of the C ABI on fixed memory, and graphs captured from them: by the CUDA emulator, or by torch on a GPU."""
from __future__ import annotations

import ctypes
import importlib
from pathlib import Path

import pytest
import torch
from emu_util import Emulator, library
from util import bits, sentinel

from dsv4spec import _C, ops
from dsv4spec.ops import OPS

LIBRARY = ctypes.CDLL(str(Path(_C.__file__).parent / "lib" / "libdsv4spec.so"))
LIBRARY.dsv4_last_error.restype = ctypes.c_char_p
_pointer_of = ctypes.pythonapi.PyCapsule_GetPointer
_pointer_of.restype, _pointer_of.argtypes = ctypes.c_void_p, [ctypes.py_object, ctypes.c_char_p]
ALIGNED = 64


class Call:
    """One call of dsv4_<op> and all its memory, on ``machine``. What the op allocates itself starts as poison."""

    def __init__(self, machine, op: str, args, kwargs):
        self.op, self.machine = op, machine
        given = {a.data_ptr() for a in (*args, *kwargs.values()) if isinstance(a, torch.Tensor)}
        values = []
        with pytest.MonkeyPatch.context() as patch:  # the op's own way from its arguments to those of the C struct
            patch.setattr(importlib.import_module(f"dsv4spec.ops.{OPS[op].family}"), "kernel",
                          lambda name, *struct: values.extend(struct))
            getattr(ops, op)(*args, **kwargs)
        fields = _C.op_fields()[op]
        assert len(values) == len(fields)
        members, self.tensors = [("struct_size", ctypes.c_uint64)], {}
        for (name, kind), value in zip(fields, values):
            if isinstance(value, torch.Tensor):
                if "out" in kind and value.data_ptr() not in given:
                    value.fill_(sentinel(value.dtype))
                self.tensors[name] = machine.tensor(value)
            members.append((name, {"int": ctypes.c_int64, "double": ctypes.c_double}.get(kind, ctypes.c_void_p)))
        self.query = getattr(LIBRARY, f"dsv4_{op}_workspace_size", None)
        if self.query:
            members += [("workspace", ctypes.c_void_p), ("workspace_size", ctypes.c_uint64)]
        self.args = type("Args", (ctypes.Structure,), {"_fields_": members})()
        self.args.struct_size = ctypes.sizeof(self.args)
        self.outputs = [name for name, kind in fields if name in self.tensors and "out" in kind]
        self.capsules = []
        for (name, _), value in zip(fields, values):
            if name in self.tensors:
                self.capsules.append(self.tensors[name].__dlpack__())
                value = _pointer_of(self.capsules[-1], b"dltensor")  # a DLManagedTensor begins with its DLTensor
            setattr(self.args, name, value)
        if self.query:
            needed = ctypes.c_uint64()
            self._check(self.query(ctypes.byref(self.args), ctypes.byref(needed)))
            self.scratch = machine.scratch(needed.value)
            self.args.workspace, self.args.workspace_size = self.scratch, needed.value

    def _check(self, status: int) -> None:
        assert status == 0, LIBRARY.dsv4_last_error().decode()

    def run(self, stream=None) -> None:
        self._check(getattr(LIBRARY, "dsv4_" + self.op)(ctypes.byref(self.args), ctypes.c_void_p(stream)))

    def reading(self, **tensors) -> "Call":
        """The same call on another's tensors."""
        for name, t in tensors.items():
            self.tensors[name] = t
            self.capsules.append(t.__dlpack__())
            setattr(self.args, name, _pointer_of(self.capsules[-1], b"dltensor"))
        return self

    def load(self, other: "Call") -> None:
        """The other call's values, into this call's memory: inputs and what the outputs held before."""
        for name, t in self.tensors.items():
            t.copy_(other.tensors[name])

    def same(self, other: "Call") -> None:
        for name, t in self.tensors.items():
            assert bits(t).equal(bits(other.tensors[name])), f"{self.op}: {name}"


class EmulatedGraph:
    def __init__(self, machine, exec_, nodes: int):
        self.machine, self.exec, self.nodes = machine, exec_, nodes

    def replay(self) -> None:
        self.machine.do("cudaGraphLaunch", self.exec, self.machine.stream)


class Emulated:
    name, backend = "emulated", "cuda_emu"

    def __init__(self):
        self.emulator = Emulator(library("dsv4spec_cuda_emu"))
        self.stream = ctypes.c_void_p()
        self.do("cudaStreamCreateWithFlags", ctypes.byref(self.stream), 1)

    def do(self, function: str, *args) -> None:
        error = getattr(self.emulator.lib, function)(*args)
        assert error == 0, f"{function}: error {error}. {self.emulator.report()}"

    def scratch(self, size: int):
        return self.emulator.array((-(-max(size, 1) // ALIGNED) * ALIGNED,), "uint8").ctypes.data if size else None

    def tensor(self, t: torch.Tensor) -> torch.Tensor:
        """A copy that ends at a page out of reach."""
        size = t.numel() * t.element_size()
        if not size:
            return t.clone()
        raw = self.emulator.array((size,), "uint8")
        return torch.from_numpy(raw).view(t.dtype).view(t.shape).copy_(t)

    def capture(self, calls) -> EmulatedGraph:
        self.do("cudaStreamBeginCapture", self.stream, 0)
        graph, exec_, nodes = ctypes.c_void_p(), ctypes.c_void_p(), ctypes.c_size_t()
        try:
            for call in calls:
                call.run(self.stream.value)
        finally:
            error = self.emulator.lib.cudaStreamEndCapture(self.stream, ctypes.byref(graph))
        assert error == 0, f"the capture broke: error {error}"
        self.do("cudaGraphGetNodes", graph, None, ctypes.byref(nodes))
        self.do("cudaGraphInstantiate", ctypes.byref(exec_), graph, ctypes.c_ulonglong(0))
        return EmulatedGraph(self, exec_, nodes.value)


class Gpu:
    name, backend = "gpu", None

    def scratch(self, size: int):
        if not size:
            return None
        self.kept = [*getattr(self, "kept", []), torch.empty(size, dtype=torch.uint8, device="cuda")]
        return self.kept[-1].data_ptr()

    def tensor(self, t: torch.Tensor) -> torch.Tensor:
        return t.cuda()

    def capture(self, calls) -> torch.cuda.CUDAGraph:
        graph = torch.cuda.CUDAGraph()
        with torch.cuda.graph(graph):
            for call in calls:
                call.run(torch.cuda.current_stream().cuda_stream)
        return graph


MACHINES = [Emulated] + [Gpu] * torch.cuda.is_available()
