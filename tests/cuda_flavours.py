# SPDX-License-Identifier: Apache-2.0
"""Runs the cases of cuda_cases.py on the CUDA emulator, all tensors in memory that ends at a page out of reach, against the
reference. ``python cuda_flavours.py FLAVOUR`` does so in a process of its own, a line a case."""
from __future__ import annotations

import contextlib
import importlib
import sys
import traceback

import torch
from cuda_cases import CASES
from emu_util import FIFO, LIFO, RANDOM, WARP_PRIORITY, Emulator, library
from mhc_cases import close
from util import bits, sentinel

from dsv4spec import ops, use_backend
from dsv4spec.ops import OPS

ORDERS = [(FIFO, 1), (LIFO, 1), (RANDOM, 1), (RANDOM, 2), (WARP_PRIORITY, 1), (WARP_PRIORITY, 2)]
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
    """Tensors in the emulator's memory. ``exact``: their last byte is the last one in reach, so that they start at any
    multiple of their elements; else at 16 bytes, as kernels want them for wide accesses."""

    def __init__(self, emulator: Emulator):
        self.emulator, self.exact, self.kept = emulator, False, []

    def empty(self, shape, stride, dtype) -> torch.Tensor:
        size = torch.empty(0, dtype=dtype).element_size()
        count = 1 + sum((n - 1) * s for n, s in zip(shape, stride)) if all(shape) else 0
        if not count:
            return torch.empty(shape, dtype=dtype)
        with self.emulator.settings(align=size if self.exact else 16):
            raw = self.emulator.array(count * size, "uint8")
        self.kept.append(raw.ctypes.data)
        memory = torch.from_numpy(raw).view(dtype)
        return memory.fill_(sentinel(dtype)).as_strided(shape, stride)

    def copy(self, t: torch.Tensor) -> torch.Tensor:
        return self.empty(t.shape, t.stride(), t.dtype).copy_(t)

    def free(self) -> None:
        for address in self.kept:
            self.emulator.lib.cuda_emu_free(address)
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
    return t.double() if t.dtype in (torch.float32, torch.bfloat16) else t.clone()


def compare(op, got, plain, exact) -> None:
    assert len(got) == len(plain)
    for i, (g, p) in enumerate(zip(got, plain)):
        if not g.dtype.is_floating_point or g.element_size() < 2 or op in COPIES or exact is None:
            assert bits(g).equal(bits(p)), f"{op}: tensor {i} differs from the reference"
        else:
            close(g, exact[i], p, f"{op}: tensor {i}")


class Runner:
    def __init__(self, flavour: str = ""):
        self.emulator = Emulator(library("dsv4spec_cuda_emu", flavour))
        self.memory = Guarded(self.emulator)

    def once(self, op, args, kwargs) -> list[torch.Tensor]:
        placed = structure(args, self.memory.copy), structure(kwargs, self.memory.copy)
        try:
            with use_backend("cuda_emu"), self.memory.outputs():
                return results(op, *placed, getattr(ops, op))
        finally:
            self.memory.free()

    def case(self, name: str, orders=ORDERS[:1]) -> None:
        op, args, kwargs = CASES[name]()
        plain = reference(op, args, kwargs)
        given = kwargs.get("out")
        exact = reference(op, args, kwargs, wide) if any(t.is_floating_point() for t in plain) else None
        if exact is not None and given is not None:  # the references write their results, not `out`
            exact = exact[:len(tensors(given))] + [wide(t) for t in plain[len(tensors(given)):]]
            exact = [torch.where(p.isnan() | (p == k), p.double(), e) if p.shape == k.shape else e
                     for p, e, k in zip(plain, exact, tensors(given))] + exact[len(tensors(given)):]
        for self.memory.exact in (False, True):
            first = None
            for order, seed in orders if not self.memory.exact else orders[:2]:
                with self.emulator.settings(order=order, seed=seed):
                    got = self.once(op, args, kwargs)
                if first is None:
                    first = got
                    compare(op, got, plain, exact)
                same = all(bits(a).equal(bits(b)) for a, b in zip(first, got))
                assert same, f"{name}: order {order}, seed {seed} gives other bits"


def main(flavour: str) -> int:
    runner = Runner(flavour)
    if flavour == "shadow":
        runner.emulator.configure(count=0)
    failures = 0
    for name in CASES:
        print(f"case {name}", flush=True)  # what ends the process at once leaves this behind
        try:
            runner.case(name)
            print(f"ok {name}", flush=True)
        except Exception:  # the list of cases goes on
            failures += 1
            print(f"failed {name}: {traceback.format_exc()[-3000:]}", flush=True)
    with open("/proc/self/maps") as maps:
        assert f"emu_{flavour}/libdsv4spec_cuda_emu.so" in maps.read(), "another flavour was run"
    return failures


if __name__ == "__main__":
    sys.exit(main(sys.argv[1]) != 0)
