# SPDX-License-Identifier: Apache-2.0
"""What an emulated backend's counters say of a case of ``dsv4spec bench``: bytes, and cycles by the model of
bench_model.py, never a time of the machine that emulates. Counts do not depend on the data, but for where tensors lie.
A result that is not the reference's is refused here too."""
from __future__ import annotations

import contextlib
import ctypes
import dataclasses
import json
import os
import time
from pathlib import Path

import torch

from . import _C, bench_model, ops, use_backend
from .bench_cases import Case
from .bench_check import difference

TERMS = ("launch", "latency", "memory", "L2", "products", "arithmetic", "shared")
MOST_FLOPS, MOST_BYTES = 4e8, 2e8  # of a case that is emulated in seconds
LIB = Path(__file__).parent / "lib"
FLAVOUR = "DSV4SPEC_EMU_FLAVOUR"
SETTINGS = {"cuda_emu": {"races": (0, 1)},  # of a count, and otherwise
            "ascend_emu": {"cores": (bench_model.VECTOR_CORES, 4), "check": (0, 1)}}


class Library:
    """The C functions of an emulator's library, which is loaded already if its backend is."""

    def __init__(self, name: str, flavour: str = ""):
        self.name = name
        self.lib = ctypes.CDLL(str(_path(name, flavour)))
        self._function("counters").restype = ctypes.c_char_p
        self._function("configure").argtypes = [ctypes.c_char_p, ctypes.c_long]

    def _function(self, name: str):
        return getattr(self.lib, f"{self.name}_{name}")

    def counters(self) -> dict:
        return json.loads(self._function("counters")())

    def clear(self) -> None:
        self._function("clear")()

    @contextlib.contextmanager
    def counting(self):
        """With the settings of a count inside, and the usual ones after."""
        settings = SETTINGS[self.name]
        try:
            for key, (inside, _) in settings.items():
                self._set(key, inside)
            yield
        finally:
            for key, (_, usual) in settings.items():
                self._set(key, usual)

    def _set(self, key: str, value: int) -> None:
        if self._function("configure")(key.encode(), value):
            raise RuntimeError(f"{self.name}: {key}={value} is refused")


def load_cuda() -> tuple[str, str]:
    """Loads the CUDA emulator's flavour that counts bytes, where this process can: (its flavour, why not that)."""
    if flavour := os.environ.get(FLAVOUR):
        return flavour, "" if flavour == "shadow" else f"{FLAVOUR}={flavour}"
    if _is_loaded(_path("cuda_emu")):
        return "", "the flavour that counts them cannot be loaded beside the one that this process uses"
    if not _path("cuda_emu", "shadow").exists():
        lines = _C.build_summary.splitlines()
        return "", next((line for line in lines if line.startswith("cuda_emu shadow: ")), "cuda_emu shadow: not built")
    os.environ[FLAVOUR] = "shadow"  # read when the library is loaded
    try:
        with use_backend("cuda_emu"):
            return "shadow", ""
    finally:
        del os.environ[FLAVOUR]


def _path(name: str, flavour: str = "") -> Path:
    return (LIB / f"emu_{flavour}" if flavour else LIB) / f"libdsv4spec_{name}.so"


def _is_loaded(path: Path) -> bool:
    try:
        ctypes.CDLL(str(path), mode=os.RTLD_NOLOAD | os.RTLD_NOW)
    except OSError:
        return False
    return True


def model(case: Case, lib: Library) -> bench_model.Cost:
    """One call of the case, counted. ValueError: its result is not the reference's."""
    with lib.counting():
        counters = _counted(case, lib)
    return bench_model.ascend(counters) if lib.name == "ascend_emu" else bench_model.cuda(
        counters, case.flops, (case.read, case.write))


def _counted(case: Case, lib: Library) -> dict:
    from .bench_measure import mutated, names_of, own, reference_of

    torch.manual_seed(0)
    args, kwargs = case.make("cpu")
    names, mutates = names_of(case.op), ops.OPS[case.op].mutates
    theirs, theirs_kwargs = own(args, kwargs, names, mutates)
    want = (reference_of(case.op)(*theirs, **theirs_kwargs), mutated(theirs, theirs_kwargs, names, mutates))
    with use_backend(lib.name):
        lib.clear()
        out = getattr(ops, case.op)(*args, **kwargs)
    counters = lib.counters()
    if wrong := difference((out, mutated(args, kwargs, names, mutates)), want):
        raise ValueError(wrong)
    return counters


def line_of(case: Case, cost: bench_model.Cost, counted: bool) -> dict:
    """What --json keeps of a case."""
    moved = cost.total("read") + cost.total("written")
    return {
        "op": case.op, "size": case.size, "case": case.label, "params": case.params,
        "bytes_read": case.read, "bytes_written": case.write, "flops": case.flops,
        "launches": cost.total("launches"), "blocks": cost.total("blocks"),
        "moved_read": cost.total("read") if counted else None,
        "moved_written": cost.total("written") if counted else None,
        "over_fewest": moved / case.bytes if counted else None,
        "modelled": {"cycles": cost.cycles, "us": cost.us, "binds": cost.binds, "parts": cost.cycles_of("parts"),
                     "terms": cost.cycles_of("serial", "parallel"),
                     "kernels": [dataclasses.asdict(kernel) for kernel in cost.kernels]}}


def head(line: dict, width: int) -> str:
    terms = [term for term in TERMS if term in line["modelled"]["terms"]]
    return (f"{'':{width}} {'counted':38} model: cycles, us, what takes most of them; cycles of each\n"
            f"{'op, case':{width}} {'launches':>8} {'read':>9} {'written':>9} {'/ fewest':>8} {'cycles':>8} {'us':>7} "
            f"{'binds':10}" + "".join(f" {term:>{max(7, len(term))}}" for term in terms))


def row(line: dict, width: int) -> str:
    def shown(value, form):
        return "-" if value is None else format(value, form)

    name, modelled = f"{line['op']} {line['size']} {line['case']}", line["modelled"]
    terms = [(term, modelled["terms"][term]) for term in TERMS if term in modelled["terms"]]
    return (f"{name:{width}} {line['launches']:>8} {shown(line['moved_read'], '.0f'):>9} "
            f"{shown(line['moved_written'], '.0f'):>9} {shown(line['over_fewest'], '.2f'):>8} {modelled['cycles']:>8.0f} "
            f"{modelled['us']:>7.2f} {modelled['binds']:10}"
            + "".join(f" {n:>{max(7, len(term))}.0f}" for term, n in terms))


def run(backend: str, cases: list[Case], budget: float | None) -> dict:
    """All counts as a dict, printed line by line as they come."""
    from . import bench_report

    flavour, why_not = load_cuda() if backend == "cuda_emu" else (os.environ.get(FLAVOUR, ""), "")
    have = bench_report.kernels(backend)  # loads it, or says why not
    lib = Library(backend, flavour)
    device = bench_model.H200 if backend == "cuda_emu" else bench_model.ATLAS_A2
    result = bench_report.conditions(backend, torch.device("cpu")) | {
        "flavour": flavour or None, "model": dataclasses.asdict(device), "bytes_not_counted": why_not or None,
        "lines": [], "refused": [], "no_kernel": [], "not_measured": [], "too_large": []}
    print(f"{backend} is emulated: no times, but {'' if why_not else 'bytes that it counts, and '}cycles of a model of one "
          f"{device} (docs/benchmarks.md)")
    if why_not:
        print(f"the model has each byte of the op table move once; bytes are not counted: {why_not}")
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
                cost = model(case, lib)
            except ValueError as why:
                result["refused"].append({"case": name, "why": str(why)})
                print(f"{name}: REFUSED: {why}", flush=True)
                continue
            line = line_of(case, cost, not why_not)
            if not result["lines"]:
                print(head(line, width))
            result["lines"].append(line)
            print(row(line, width), flush=True)
    return result
