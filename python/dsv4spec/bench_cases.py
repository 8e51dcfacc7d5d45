# SPDX-License-Identifier: Apache-2.0
"""What ``dsv4spec bench`` measures: for every op the parameters of a call, how its arguments are made, and formulas of the
bytes that it must at least read and write once and of its floating-point operations. Formulas are Python expressions in the
parameters, so that what ``--list`` shows is what is computed. Data are random; their values change no kernel's work."""
from __future__ import annotations

import functools
import json
from dataclasses import dataclass
from types import SimpleNamespace
from typing import Callable, Iterator

import torch

MEMORY, HALF, QUICK = "memory", "half", "quick"  # goals on a GPU, see bench_measure.GOALS
DTYPES = {"bfloat16": torch.bfloat16, "float32": torch.float32}
WEIGHTS = {"bf16": torch.bfloat16, "fp32": torch.float32, "e4m3": torch.float8_e4m3fn, "int8": torch.int8}
KINDS = ("decode", "verify", "tree", "extend")
CHOICES = {"dtype": tuple(DTYPES), "weights": tuple(WEIGHTS), "kind": KINDS}

# d: width; hc: residual streams; H, D, R: heads, their size and rotated part; window, page: tokens; length: committed tokens
# of a request; IH, ID, topk: the indexer's heads, their size, entries chosen; routed, E, experts, inter, shared: experts that
# the router scores, that are in memory here, chosen per row, their width, width of the shared one; V: vocabulary; n: rows of
# a verify window; k, steps: branches, draft steps.
_FLASH = dict(d=4096, hc=4, H=64, D=512, R=64, window=128, page=64, length=2000, IH=64, ID=128, topk=512, routed=256,
              E=8, experts=6, inter=2048, shared=2048, V=129280, n=4, k=1, steps=3, dtype="bfloat16")
SIZES = {
    "flash": _FLASH,
    "pro": _FLASH | dict(d=7168, H=128, topk=1024, routed=384, inter=3072, shared=3072),
    "tiny": _FLASH | dict(d=128, H=2, D=64, R=16, window=16, page=4, length=37, IH=2, ID=32, topk=4, routed=8, E=4, experts=2,
                          inter=32, shared=32, V=300),
}


@dataclass(frozen=True)
class Spec:
    """How one op is measured. ``params`` names what a case of it has; ``label`` shows what distinguishes cases."""

    op: str
    params: tuple[str, ...]
    label: str
    read: str
    write: str
    flops: str                 # of float32 arithmetic, whatever the dtype of the case
    dtype_flops: str           # of products of two operands of the case's dtype
    make: Callable[[SimpleNamespace], tuple[tuple, dict]]


SPECS: dict[str, Spec] = {}


def spec(params: str, label: str, *, read: str, write: str, flops: str = "0", dtype_flops: str = "0"):
    """Register a function ``f(c) -> (args, kwargs)`` as the maker of its op's arguments; ``c`` is a :class:`Values`."""

    def decorate(make):
        SPECS[make.__name__] = Spec(make.__name__, tuple(params.split()), label, read, write, flops, dtype_flops, make)
        return make

    return decorate


class Values(SimpleNamespace):
    """The parameters of a case as attributes, ``device``, and makers of tensors."""

    def random(self, *shape, dtype=None, scale=1.0) -> torch.Tensor:
        """Normal values; of a large tensor a block of them again and again, which is as good for a clock and quicker."""
        dtype = dtype or DTYPES[self.dtype]
        count, block = int(torch.Size(shape).numel()), 1 << 20
        values = (torch.randn(min(count, block), device=self.device) * scale).to(dtype)
        return (values if count <= block else values.repeat(-(-count // block))[:count]).view(shape)

    def f32(self, *shape, scale=1.0) -> torch.Tensor:
        return self.random(*shape, dtype=torch.float32, scale=scale)

    def i32(self, count: int, value: int) -> torch.Tensor:
        return torch.full((count,), value, dtype=torch.int32, device=self.device)

    def arange(self, count: int, dtype=torch.int64) -> torch.Tensor:
        return torch.arange(count, dtype=dtype, device=self.device)

    def order(self, count: int) -> torch.Tensor:
        return torch.randperm(count, device=self.device)

    def angles(self, positions: int) -> torch.Tensor:
        """Cosines and sines, ``[positions, R]``."""
        turns = self.arange(positions)[:, None] * 1e4 ** (-self.arange(self.R // 2) * 2 / self.R)
        return torch.cat((turns.cos(), turns.sin()), 1)


@dataclass(frozen=True)
class Case:
    op: str
    size: str           # flash, pro, tiny, or "file"
    params: dict        # a value for each of the spec's parameters
    goal: str | None = None

    def __str__(self):
        return f"{self.op} {self.size} {self.label}"

    @property
    def spec(self) -> Spec:
        return SPECS[self.op]

    @property
    def label(self) -> str:
        text = self.spec.label.format(**self.params)
        normal = SIZES.get(self.size, _FLASH)
        other = [f"{p}={self.params[p]}" for p in self.spec.params
                 if p in normal and "{" + p + "}" not in self.spec.label and self.params[p] != normal[p]]
        return " ".join([text, *other])

    def make(self, device) -> tuple[tuple, dict]:
        """One set of arguments, in memory of its own."""
        return self.spec.make(Values(**self.params, device=torch.device(device)))

    def _formula(self, text: str) -> int:
        p = self.params
        width, block = WEIGHTS[p["weights"]].itemsize if "weights" in p else 0, -(-p.get("d", 1) // 128)
        scales = {"e4m3": 2 * block * block, "int8": 8 * p.get("d", 0)}.get(p.get("weights"), 0)
        names = p | {"e": DTYPES[p["dtype"]].itemsize, "w": width, "scales": scales}
        return int(eval(_compiled(text), {"__builtins__": {}, "min": min, "max": max, "seen": seen}, names))

    @property
    def read(self) -> int:
        return self._formula(self.spec.read)

    @property
    def write(self) -> int:
        return self._formula(self.spec.write)

    @property
    def bytes(self) -> int:
        return self.read + self.write

    @property
    def flops(self) -> int:
        return sum(self.flops_of.values())

    @property
    def flops_of(self) -> dict[str, int]:
        """The operations by the dtype that they are done in; no dtype of none, but for a case without any."""
        counts = {self.params["dtype"]: self._formula(self.spec.dtype_flops)}
        counts["float32"] = counts.get("float32", 0) + self._formula(self.spec.flops)
        return {dtype: count for dtype, count in counts.items() if count} or {"float32": 0}


def seen(rows: int, length: int, window: int) -> int:
    """Keys that ``rows`` rows behind ``length`` committed tokens see in their windows, together."""
    return sum(min(window, length + j + 1) for j in range(rows))


@functools.cache
def _compiled(text: str):
    return compile(text, "formula", "eval")


def case(op: str, size: str, goal: str | None = None, **given) -> Case:
    values = SIZES.get(size, _FLASH) | dict(weights="bf16", kind="decode") | given
    return Case(op, size, {p: values[p] for p in SPECS[op].params}, goal)


def cases(size: str, dtype: str | None = None) -> Iterator[Case]:
    """The cases of a size, op by op. ``dtype``: of the activations, where another than bfloat16 is asked for."""
    from . import bench_sweep

    given, seen = {"dtype": dtype} if dtype else {}, set()
    for op, goal, params in bench_sweep.sweep(size):
        found = case(op, size, goal, **(params | given))
        if (op, found.label) not in seen:  # a small size has some twice
            seen.add((op, found.label))
            yield found


def read_shapes(path: str, dtype: str | None = None) -> list[Case]:
    """The cases of a JSON file: a list of objects ``{"op": NAME, PARAMETER: VALUE, ...}``; what is left out is as in
    ``"size"`` (flash). ValueError in one sentence for anything else."""
    from . import bench_sweep  # noqa: F401  (fills SPECS)

    with open(path, encoding="utf-8") as file:
        try:
            rows = json.load(file)
        except ValueError as error:
            raise ValueError(f"--shapes: {path}: is not JSON: {error}") from error
    if not isinstance(rows, list) or not rows:
        raise ValueError(f"--shapes: {path}: expected a list of cases, got {type(rows).__name__} "
                         f"{json.dumps(rows)[:60]}")
    return [_row(f"--shapes: {path}: case {i}", row, dtype) for i, row in enumerate(rows)]


def _row(where: str, row, dtype: str | None) -> Case:
    def expect(ok, name, rule, got):
        if not ok:
            raise ValueError(f"{where}: {name}: expected {rule}, got {json.dumps(got)}")

    expect(isinstance(row, dict), "case", "an object", row)
    given = dict(row)
    op, size = given.pop("op", None), given.pop("size", "flash")
    expect(op in SPECS, "op", f"one of {', '.join(sorted(SPECS))}", op)
    expect(size in SIZES, "size", f"one of {', '.join(SIZES)}", size)
    params = SPECS[op].params
    for name, value in given.items():
        expect(name in params, name, f"one of {', '.join(params)}", name)
        if name in CHOICES:
            expect(value in CHOICES[name], name, f"one of {', '.join(CHOICES[name])}", value)
        else:
            whole = isinstance(value, int) and not isinstance(value, bool)
            expect(whole and value >= 1, name, "an integer of at least 1", value)
    known = SIZES[size] | dict(weights="bf16", kind="decode") | given
    for name in params:
        expect(name in known, name, "a value (it has no default)", None)
    if dtype and "dtype" not in given:
        given["dtype"] = dtype
    return Case(op, "file", case(op, size, **given).params)
