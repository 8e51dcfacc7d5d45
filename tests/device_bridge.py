# SPDX-License-Identifier: Apache-2.0
"""Runs the op tests on a device, whose kernels cannot read the tensors that the tests make in the CPU's memory.

Between the ops and the C ABI, every call that is routed to the device has the *storages* of its tensors copied there, is
made with views of the same offsets and strides, and has all storages copied back. So a tensor that shares memory with
another still does, odd strides and alignments reach the kernel, and the guard zones around an output come back as the
kernel left them."""
from __future__ import annotations

import functools
import importlib

import numpy as np
import torch
from dsv4spec import _C
from dsv4spec.ops import _dispatch


class Moved:
    """The storages of one call, here and there."""

    def __init__(self, device):
        self.device, self.storages = torch.device(device), {}

    def view(self, value):
        """The tensor over there; anything that is not a tensor in the CPU's memory as it is."""
        if isinstance(value, np.ndarray) and value.flags.writeable and value.dtype != object:
            value = torch.from_numpy(value)
        if not isinstance(value, torch.Tensor) or value.device.type != "cpu" or value.layout != torch.strided:
            return value
        storage = value.untyped_storage()
        if storage.data_ptr() not in self.storages:
            here = torch.empty(0, dtype=torch.uint8).set_(storage)
            self.storages[storage.data_ptr()] = (here, here.to(self.device, copy=True))
        there = self.storages[storage.data_ptr()][1]
        there = there[:len(there) // value.dtype.itemsize * value.dtype.itemsize].view(value.dtype)
        return there.as_strided(value.shape, value.stride(), value.storage_offset())

    def copy_back(self):
        for here, there in self.storages.values():
            here.copy_(there)


def need(device: str) -> None:
    """End the run in one sentence unless torch and this build both have the device."""
    why = ""
    if device == "npu":
        try:
            importlib.import_module("torch_npu")  # gives torch its device
        except ImportError as error:
            why = (f"torch_npu cannot be imported ({error}): source CANN's set_env.sh and install the torch_npu of this "
                   "torch")
    if not why and not getattr(torch, device).is_available():
        why = f"torch.{device} finds no device"
    if not why:
        why = _C.backends()[device]["why_not"]
    if why:
        raise SystemExit(f"tests on {device}: {why}")


def install(backend: str, device: str | None = None) -> None:
    """Bridge the calls that are routed to ``backend`` by name."""
    for name in _C.op_fields():
        setattr(_C, name, _bridged(getattr(_C, name), backend, device or backend))


def _bridged(function, backend, device):
    @functools.wraps(function)
    def call(*args):
        if _dispatch.current_backend() != backend:
            return function(*args)
        moved = Moved(device)
        try:
            return function(*map(moved.view, args))
        finally:
            moved.copy_back()

    return call
