# SPDX-License-Identifier: Apache-2.0
"""Tensors that say they are on a GPU (or, with ``kind`` NPU, on one of those), while their memory is the CPU's: of a library with the DLPack C exchange API (as
torch has it), and of a stand-in for CuPy. For tests of the way from a tensor to a launch; no kernel may touch them."""
from __future__ import annotations

import contextlib
import ctypes
import sys
import types

import torch

CUDA, NPU, DEVICE_ID = 2, 12, 3
kind = CUDA
DEVICE_AT = 8  # of the device in a DLTensor, whose data pointer comes first
python = ctypes.pythonapi
python.PyCapsule_GetPointer.restype = ctypes.c_void_p
python.PyCapsule_GetPointer.argtypes = [ctypes.py_object, ctypes.c_char_p]
python.PyCapsule_New.restype = ctypes.py_object
NAME = b"dlpack_exchange_api"  # a capsule keeps the address of its name, not a copy
python.PyCapsule_New.argtypes = [ctypes.c_void_p, ctypes.c_char_p, ctypes.c_void_p]


def _move(dl_tensor: int) -> None:
    (ctypes.c_int32 * 2).from_address(dl_tensor + DEVICE_AT)[:] = kind, DEVICE_ID


# ------------------------------------------------------------------------------------------ the C exchange API
Export = ctypes.PYFUNCTYPE(ctypes.c_int, ctypes.py_object, ctypes.c_void_p)
Stream = ctypes.PYFUNCTYPE(ctypes.c_int, ctypes.c_int, ctypes.c_int32, ctypes.POINTER(ctypes.c_void_p))
TORCH = python.PyCapsule_GetPointer(torch.Tensor.__dlpack_c_exchange_api__, NAME)
HEADER = 16  # version and a pointer, before five functions
_torch_export = Export(ctypes.c_void_p.from_address(TORCH + HEADER + 24).value)
stream = 0x5150  # what the library's current stream is


def _export(tensor, out) -> int:
    failed = _torch_export(tensor.inner, out)
    if not failed:
        _move(out)
    return failed


def _current_stream(device_type, device_id, out) -> int:
    assert (device_type, device_id) == (CUDA, DEVICE_ID)
    out[0] = stream
    return 0


_callbacks = Export(_export), Stream(_current_stream)
_api = (ctypes.c_char * (HEADER + 40)).from_buffer_copy(ctypes.string_at(TORCH, HEADER + 40))
for at, callback in zip((24, 32), _callbacks):
    ctypes.c_void_p.from_buffer(_api, HEADER + at).value = ctypes.cast(callback, ctypes.c_void_p).value


class Tensor:
    __dlpack_c_exchange_api__ = python.PyCapsule_New(ctypes.addressof(_api), NAME, None)

    def __init__(self, inner: torch.Tensor):
        self.inner = inner


# --------------------------------------------------------------------------------------------- the protocol alone
class Array:
    """An array of the stand-in; ``asked`` lists the streams that its memory was asked for."""

    device = contextlib.nullcontext()
    asked: list = []

    def __init__(self, inner: torch.Tensor):
        self.inner = inner

    def __dlpack_device__(self):
        return kind, DEVICE_ID

    def __dlpack__(self, *, stream=None, max_version=None):
        self.asked.append(stream)
        capsule = self.inner.__dlpack__()
        _move(python.PyCapsule_GetPointer(capsule, b"dltensor"))
        return capsule


class Memory:
    freed = 0

    def __init__(self, size: int):
        self.inner = torch.empty(size, dtype=torch.uint8)
        self.ptr = self.inner.data_ptr()

    def __del__(self):
        Memory.freed += 1


def install_cupy() -> None:
    """Make ``Array`` one of CuPy's."""
    cupy = types.ModuleType("cupy")
    cupy.cuda = types.SimpleNamespace(alloc=Memory, get_current_stream=lambda: types.SimpleNamespace(ptr=stream))
    sys.modules["cupy"] = cupy
    Array.__module__ = "cupy._core.core"
