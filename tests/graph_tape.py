# SPDX-License-Identifier: Apache-2.0
"""Graph capture without a device: a tape of what a function does to tensors, frozen as a CUDA graph freezes it.

Capture notes every torch operator and every call of the C ABI with the very tensors and numbers it was given. Replay
does them again into the same results; Python does not run, so that a number read from a tensor, a list, a length or a
temporary of the capture run shows as a wrong result. As a CUDA capture does, it refuses what would wait for the device
or copy from ordinary host memory. All memory that the capture run made is poisoned before a replay.
"""
from __future__ import annotations

import contextlib
from types import FunctionType, MethodType

import torch
from torch.utils._python_dispatch import TorchDispatchMode

from dsv4spec.ops import _dispatch
from util import sentinel

# Operators that read values on the host, or whose result's shape depends on values; and data taken from Python.
REFUSED = {"_local_scalar_dense", "item", "nonzero", "masked_select", "_unique2", "unique_dim", "unique_consecutive",
           "equal", "is_nonzero", "lift_fresh"}
# They read memory of the host without an operator.
METHODS = ("tolist", "numpy", "cpu", "__array__", "__dlpack__")


class HostAccess(RuntimeError):
    """Something that a graph capture must not hold."""


class Tape:
    """See :class:`dsv4spec.spec.captured.Capture`."""

    def __init__(self):
        self.recordings: list[_Recording] = []

    def warm_up(self, function):
        with _refusals(), _Notes(_Recording()):
            return function()

    def capture(self, function):
        recording = _Recording()
        # meta: where tensors go that are made without a word on their device
        with _refusals(), torch.device("meta"), _Notes(recording), _c_abi_noted(recording):
            result = function()
        recording.owned = storages(function)
        recording.check_inputs()
        self.recordings.append(recording)
        return result, recording.replay


class _Recording:
    def __init__(self):
        self.steps = []                            # (function, args, kwargs, results)
        self.made: dict[int, torch.Tensor] = {}    # storages that the capture run made
        self.inputs: dict[int, tuple[torch.Tensor, str]] = {}  # other storages that it touched, and where first
        self.owned: set[int] = set()
        self.replays = 0

    def note(self, function, args, kwargs, results) -> None:
        name = getattr(function, "name", lambda: function.__name__)()
        for tensor in tensors((args, kwargs)):
            key = storage(tensor)
            if key not in self.made:
                self.inputs.setdefault(key, (tensor, name))
        for tensor in tensors(results):
            key = storage(tensor)
            if key not in self.inputs:
                self.made.setdefault(key, tensor)
        self.steps.append((function, args, kwargs, results))

    def check_inputs(self) -> None:
        """What a replay reads must outlive the capture: weights, pools, static buffers."""
        for key, (tensor, name) in self.inputs.items():
            if key not in self.owned and tensor.numel():
                raise HostAccess(f"{name} was given a tensor {list(tensor.shape)} {tensor.dtype} that nobody keeps")

    def replay(self) -> None:
        self.replays += 1
        for tensor in self.made.values():
            whole = torch.empty(0, dtype=tensor.dtype).set_(tensor.untyped_storage())
            whole.fill_(sentinel(tensor.dtype))
        for function, args, kwargs, results in self.steps:
            if isinstance(function, torch._ops.OpOverload) and "empty" in function.name():
                continue
            again = function(*args, **kwargs)
            for old, new in zip(tensors(results), tensors(again)):
                if storage(old) != storage(new):
                    old.copy_(new)


class _Notes(TorchDispatchMode):
    def __init__(self, recording):
        super().__init__()
        self.recording = recording

    def __torch_dispatch__(self, function, types, args=(), kwargs=None):
        name = function.overloadpacket.__name__
        if name in REFUSED or ("index" in name and any(t.dtype == torch.bool for t in tensors(args[1:2]))):
            raise HostAccess(f"{function.name()} inside a capture")  # indexing by a mask counts its true values
        if any(t.is_meta for t in tensors((args, kwargs))):
            raise HostAccess(f"{function.name()} inside a capture takes a tensor made without a device")
        results = function(*args, **(kwargs or {}))
        self.recording.note(function, args, kwargs or {}, results)
        return results


@contextlib.contextmanager
def _refusals():
    def refuse(name):
        def refused(*args, **kwargs):
            raise HostAccess(f"Tensor.{name} inside a capture")
        return refused

    before = {name: getattr(torch.Tensor, name) for name in METHODS}
    from_numpy, torch.from_numpy = torch.from_numpy, refuse("from_numpy")
    try:
        for name in METHODS:
            setattr(torch.Tensor, name, refuse(name))
        yield
    finally:
        torch.from_numpy = from_numpy
        for name, method in before.items():
            setattr(torch.Tensor, name, method)


@contextlib.contextmanager
def _c_abi_noted(recording):
    """Calls of the C ABI do not pass torch's dispatcher."""
    real = _dispatch._C

    class Noted:
        def __getattr__(self, name):
            function = getattr(real, name)
            if name not in _dispatch.OPS:
                return function

            def call(*args):
                function(*args)
                checking = real.check_only(True)  # such a call launches nothing: the op's reference runs
                real.check_only(checking)
                if not checking:
                    recording.note(function, args, {}, ())

            return call

    _dispatch._C = Noted()
    try:
        yield
    finally:
        _dispatch._C = real


def storage(tensor: torch.Tensor) -> int:
    return tensor.untyped_storage().data_ptr()


def tensors(value):
    """The tensors of nested tuples, lists and dicts."""
    if isinstance(value, torch.Tensor):
        yield value
    elif isinstance(value, (tuple, list)):
        for item in value:
            yield from tensors(item)
    elif isinstance(value, dict):
        yield from tensors(list(value.values()))


def storages(*roots) -> set[int]:
    """Storages of every tensor that can be reached from objects of this project, containers and closures."""
    seen, found, todo = set(), set(), list(roots)
    while todo:
        value = todo.pop()
        if id(value) in seen:
            continue
        seen.add(id(value))
        if isinstance(value, torch.Tensor):
            found.add(storage(value))
        elif isinstance(value, dict):
            todo += value.values()
        elif isinstance(value, (tuple, list, set, frozenset)):
            todo += value
        elif isinstance(value, MethodType):
            todo += [value.__self__, value.__func__]
        elif isinstance(value, FunctionType):
            todo += [cell.cell_contents for cell in value.__closure__ or ()]
        elif type(value).__module__.startswith(("dsv4spec", "test_", "helped")):
            todo += [getattr(value, name) for kind in type(value).__mro__ for name in getattr(kind, "__slots__", ())
                     if hasattr(value, name)]
            todo += getattr(value, "__dict__", {}).values()
    return found
