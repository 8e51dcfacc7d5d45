# SPDX-License-Identifier: Apache-2.0
"""Runs the cases of emu_cases.py on an emulated device, tensors in its guarded memory, against the reference."""
from __future__ import annotations

import contextlib
import importlib

import torch
from emu_cases import CASES, HALF
from mhc_cases import close
from util import bits, sentinel

from dsv4spec import ops, use_backend
from dsv4spec.ops import OPS

COPIES = {"move_accepted_kv"}  # floats that are moved, not computed


def structure(value, leaf):
    if isinstance(value, torch.Tensor):
        return leaf(value)
    if isinstance(value, dict):
        return {k: structure(v, leaf) for k, v in value.items()}
    return tuple(structure(v, leaf) for v in value) if isinstance(value, (tuple, list)) else value


def tensors(value) -> list[torch.Tensor]:
    found = []
    structure(value, found.append)
    return found


class Guarded:
    """Tensors in an emulator's memory. ``exact``: they start at any multiple of their elements and end with their memory;
    else at a multiple of 16 bytes, as kernels want them for wide accesses. A subclass takes the memory."""

    def __init__(self, emulator):
        self.emulator, self.exact, self.kept = emulator, False, []

    def memory(self, size: int, element: int):
        """`size` bytes as a NumPy array; its address goes into `kept`."""
        raise NotImplementedError

    def release(self, address: int) -> None:
        raise NotImplementedError

    def empty(self, shape, stride, dtype) -> torch.Tensor:
        size = torch.empty(0, dtype=dtype).element_size()
        count = 1 + sum((n - 1) * s for n, s in zip(shape, stride)) if all(shape) else 0
        if not count:
            return torch.empty(shape, dtype=dtype)
        memory = torch.from_numpy(self.memory(count * size, size)).view(dtype)
        return memory.fill_(sentinel(dtype)).as_strided(shape, stride)

    def copy(self, t: torch.Tensor) -> torch.Tensor:
        return self.empty(t.shape, t.stride(), t.dtype).copy_(t)

    def free(self) -> None:
        for address in self.kept:
            self.release(address)
        self.kept = []

    @contextlib.contextmanager
    def outputs(self):
        """What ops allocate lies there too."""
        def new(like, shape, dtype=None):
            meta = torch.empty(shape, dtype=getattr(torch, dtype) if dtype else like.dtype, device="meta")
            return self.empty(meta.shape, meta.stride(), meta.dtype)

        modules = [importlib.import_module(f"dsv4spec.ops.{m}") for m in sorted({o.family for o in OPS.values()} | {"_dispatch"})]
        before = [m.new for m in modules]
        for m in modules:
            m.new = new
        try:
            yield
        finally:
            for m, function in zip(modules, before):
                m.new = function


def results(op, args, kwargs, call) -> list[torch.Tensor]:
    """What a call gives: results, and everything it was given, which may have been written."""
    return [t.clone() for t in tensors(call(*args, **kwargs))] + [t.clone() for t in tensors((args, kwargs))]


def reference(op, args, kwargs, change=torch.clone):
    args, kwargs = structure(args, change), structure(kwargs, change)
    call = getattr(importlib.import_module(f"dsv4spec.reference.{OPS[op].family}"), op)
    if change is torch.clone:
        with use_backend("reference"):
            return results(op, args, kwargs, getattr(ops, op))
    return results(op, args, {k: v for k, v in kwargs.items() if k != "out"}, call)


def wide(t: torch.Tensor) -> torch.Tensor:
    return t.double() if t.dtype in (torch.float32, torch.bfloat16, torch.float16) else t.clone()


def compare(op, got, plain, exact) -> None:
    assert len(got) == len(plain)
    for i, (g, p) in enumerate(zip(got, plain)):
        if not g.dtype.is_floating_point or g.element_size() < 2 or op in COPIES or exact is None:
            assert bits(g).equal(bits(p)), f"{op}: tensor {i} differs from the reference"
        else:
            close(g, exact[i], p, f"{op}: tensor {i}")


class Runner:
    """``orders``: settings of the emulator, the first of which gives what is compared with the reference."""

    def __init__(self, backend: str, memory: Guarded, orders: list[dict]):
        self.backend, self.memory, self.emulator, self.orders = backend, memory, memory.emulator, orders

    def once(self, op, args, kwargs) -> list[torch.Tensor]:
        placed = structure(args, self.memory.copy), structure(kwargs, self.memory.copy)
        try:
            with use_backend(self.backend), self.memory.outputs():
                return results(op, *placed, getattr(ops, op))
        except Exception as error:  # its frames hold tensors whose memory goes now, and pytest prints what frames hold
            raise type(error)(*error.args) from None
        finally:
            self.memory.free()

    def case(self, name: str, only: slice = slice(None)) -> None:
        op, args, kwargs = (CASES | HALF)[name]()
        plain = reference(op, args, kwargs)
        given = kwargs.get("out")
        exact = reference(op, args, kwargs, wide) if any(t.is_floating_point() for t in plain) else None
        if exact is not None and given is not None:  # the references write their results, not `out`
            exact = exact[:len(tensors(given))] + [wide(t) for t in plain[len(tensors(given)):]]
            exact = [torch.where(p.isnan() | (p == k), p.double(), e) if p.shape == k.shape else e
                     for p, e, k in zip(plain, exact, tensors(given))] + exact[len(tensors(given)):]
        for self.memory.exact in (False, True):
            first = None
            orders = self.orders[only]
            for order in orders[:2] if self.memory.exact else orders:
                with self.emulator.settings(**order):
                    got = self.once(op, args, kwargs)
                if first is None:
                    first = got
                    compare(op, got, plain, exact)
                same = all(bits(a).equal(bits(b)) for a, b in zip(first, got))
                assert same, f"{name}: {order} gives other bits"
