# SPDX-License-Identifier: Apache-2.0
"""What an emulated backend's counters say of a case of ``dsv4spec bench``: bytes and cycles, never a time of the machine
that emulates. Counts do not depend on the data. A result that is not the reference's is refused here too."""
from __future__ import annotations

import contextlib
import ctypes
import json
import os
import time
from dataclasses import dataclass
from pathlib import Path

import torch

from . import ops, use_backend
from .bench_cases import Case
from .bench_check import difference

# Documented by Ascend C's guide for one chip with 48 vector cores ("Analysing performance data"): 1.8 TB/s between global
# memory and all cores, 11.06 TOPS of float on the vector cores. 48 cores of 64 lanes, a multiply and an add each, make
# that at 1.8 GHz: one repeat (256 bytes) a cycle; slower instructions are counted by the table "Theoretical performance
# of vector instructions". The cube does 16 x 16 x 16 multiply-adds a cycle in 16 bit and
# 16 x 16 x 4 in fp32 ("Theoretical performance of cube instructions"); 24 of them. The page on tiling for the
# second-level cache names 7 TB/s for a mix of reads and writes there.
VECTOR_CORES, CUBE_CORES, CLOCK, MEMORY, CACHE = 48, 24, 1.8e9, 1.8e12, 7e12
TRANSFERS = ("MTE2", "MTE3", "FIX")  # the pipes between global and local memory
MOST_FLOPS, MOST_BYTES = 4e8, 2e8  # of a case that is emulated in seconds
SECTOR = 32


class Library:
    """The C functions of an emulator's library, which is loaded already if its backend is."""

    def __init__(self, prefix: str, name: str, flavour: str = ""):
        folder = Path(__file__).parent / "lib"
        self.prefix = prefix
        self.lib = ctypes.CDLL(str((folder / f"emu_{flavour}" if flavour else folder) / f"libdsv4spec_{name}.so"))
        self._function("counters").restype = ctypes.c_char_p
        self._function("configure").argtypes = [ctypes.c_char_p, ctypes.c_long]

    def _function(self, name: str):
        return getattr(self.lib, f"{self.prefix}_{name}")

    def counters(self) -> dict:
        return json.loads(self._function("counters")())

    def clear(self) -> None:
        self._function("clear")()

    @contextlib.contextmanager
    def settings(self, normal: dict[str, int], **settings: int):
        """Other settings inside; ``normal`` after."""
        try:
            for key, value in settings.items():
                assert self._function("configure")(key.encode(), value) == 0, key
            yield
        finally:
            for key in settings:
                self._function("configure")(key.encode(), normal[key])


@dataclass(frozen=True)
class AscendCost:
    case: Case
    launches: int
    blocks: int
    moved: int     # bytes between tensors and local memory, by MTE2, MTE3 and the cube's output
    scratch: int   # likewise between scratch and local memory
    vector: int    # cycles of one vector core, if all have the same
    cube: int      # cycles of one cube core, likewise
    us: dict[str, float]

    @property
    def ratio(self) -> float:
        return self.moved / self.case.bytes

    @property
    def bound(self) -> str:
        return max(self.us, key=self.us.get)

    def report(self) -> dict:
        return {"launches": self.launches, "blocks": self.blocks, "bytes_moved": self.moved, "over_fewest": self.ratio,
                "bytes_scratch": self.scratch, "vector_cycles": self.vector, "cube_cycles": self.cube, "bound": self.bound}


def ascend_library() -> Library:
    return Library("ascend_emu", "ascend_emu")


def ascend_cost(case: Case, lib: Library) -> AscendCost:
    """One call of the case, counted. ValueError: its result is not the reference's."""
    with lib.settings({"cores": 4, "check": 1}, cores=VECTOR_CORES, check=0):
        counters = _counted(case, "ascend_emu", lib)
    rows = counters.values()
    scratch = sum(r["scratch"][pipe] for r in rows for pipe in TRANSFERS)
    moved = sum(r["bytes"][pipe] for r in rows for pipe in TRANSFERS) - scratch
    blocks = max(r["blocks"] // r["launches"] for r in rows)
    mixed = any(r["cube_steps"] for r in rows)
    vector_cores = min(VECTOR_CORES, blocks * (2 if mixed else 1))
    vector = -(-sum(r["vector_cycles"] for r in rows) // vector_cores)
    # A step is 16 x 16 outputs by 32 bytes of depth: a cycle in 16 bit, two in fp32.
    steps = sum(r["cube_steps"] * (2 if name.endswith("_f32") else 1) for name, r in counters.items())
    cube = -(-steps // min(CUBE_CORES, blocks))
    us = {"memory": moved / MEMORY * 1e6, "scratch": scratch / CACHE * 1e6, "vector": vector / CLOCK * 1e6, "cube": cube / CLOCK * 1e6}
    return AscendCost(case, sum(r["launches"] for r in rows), blocks, moved, scratch, vector, cube, us)


def cuda_cost(case: Case, lib: Library, flavour: str) -> dict:
    """Launches; in the shadow flavour also what leaves an L1 that forgets nothing within a block, what warps ask for, and
    the share of shared-memory passes that conflicts of banks cause."""
    with lib.settings({"races": 1}, **({"races": 0} if flavour == "shadow" else {})):
        kernels = _counted(case, "cuda_emu", lib).values()
    found = {"launches": sum(k["launches"] for k in kernels),
             "blocks": sum(k["launches"] * k["grid"][0] * k["grid"][1] * k["grid"][2] for k in kernels)}
    if flavour == "shadow":
        def total(key):
            return sum(k[kind][key] for k in kernels for kind in ("read", "write", "atomic"))

        conflicts, passes = (sum(k["shared"][key] for k in kernels) for key in ("conflicts", "wavefronts"))
        moved = SECTOR * total("block_sectors")
        found |= {"bytes_moved": moved, "over_fewest": moved / case.bytes, "bytes_of_warps": SECTOR * total("sectors"),
                  "bank_conflicts": conflicts / max(passes, 1)}
    return found


def _counted(case: Case, backend: str, lib: Library) -> dict:
    from .bench_measure import mutated, names_of, own, reference_of

    torch.manual_seed(0)
    args, kwargs = case.make("cpu")
    names, mutates = names_of(case.op), ops.OPS[case.op].mutates
    theirs, theirs_kwargs = own(args, kwargs, names, mutates)
    want = (reference_of(case.op)(*theirs, **theirs_kwargs), mutated(theirs, theirs_kwargs, names, mutates))
    with use_backend(backend):
        lib.clear()
        out = getattr(ops, case.op)(*args, **kwargs)
    counters = lib.counters()
    if wrong := difference((out, mutated(args, kwargs, names, mutates)), want):
        raise ValueError(wrong)
    return counters


def run(backend: str, cases: list[Case], budget: float | None) -> dict:
    """All counts as a dict, printed line by line as they come."""
    from . import bench_report

    flavour = os.environ.get("DSV4SPEC_EMU_FLAVOUR", "") if backend == "cuda_emu" else ""
    have = bench_report.kernels(backend)  # loads it, or says why not
    lib = Library(backend, backend, flavour)
    result = bench_report.conditions(backend, torch.device("cpu")) | {
        "flavour": flavour or None, "lines": [], "refused": [], "no_kernel": [], "not_measured": [], "too_large": []}
    more = "; DSV4SPEC_EMU_FLAVOUR=shadow counts sectors and bank conflicts too"
    print(f"{backend} is emulated: costs that its counters give, no times"
          f"{more if backend == 'cuda_emu' and flavour != 'shadow' else ''}")
    width = max(len(str(case)) for case in cases)
    end = time.monotonic() + (budget or float("inf"))
    for case in cases:
        name = str(case)
        if case.op not in have:
            result["no_kernel"].append(name)
        elif case.flops > MOST_FLOPS or case.bytes > MOST_BYTES:
            result["too_large"].append(name)
        elif time.monotonic() > end:
            result["not_measured"].append(name)
        else:
            try:
                cost = ascend_cost(case, lib).report() if backend == "ascend_emu" else cuda_cost(case, lib, flavour)
            except ValueError as why:
                result["refused"].append({"case": name, "why": str(why)})
                print(f"{name}: REFUSED: {why}", flush=True)
                continue
            if not result["lines"]:
                print(f"{'op, case':{width}}" + "".join(f"{key.replace('_', ' '):>16}" for key in cost))
            shown = (f"{value:.2f}" if isinstance(value, float) else value for value in cost.values())
            print(f"{name:{width}}" + "".join(f"{value:>16}" for value in shown), flush=True)
            result["lines"].append({"op": case.op, "size": case.size, "case": case.label, "params": case.params,
                                    "bytes_read": case.read, "bytes_written": case.write, "flops": case.flops, **cost})
    return result
