# SPDX-License-Identifier: Apache-2.0
"""One case of ``dsv4spec bench``: the op's results against its reference's, then the clocks."""
from __future__ import annotations

import importlib
import inspect
from dataclasses import dataclass

import torch

from . import bench_against, ops
from .bench_cases import Case
from .bench_check import copied, difference, tensors
from .bench_roofs import Roofs
from .bench_timing import Clock

GOALS = {
    "memory": ("floor / 0.85 + 3 us", lambda seconds, floor: seconds <= floor / 0.85 + 3e-6),
    "half": ("50 % of the roof", lambda seconds, floor: floor / seconds >= 0.5),
    "quick": ("under 5 us", lambda seconds, floor: seconds < 5e-6),
}
MOST_SETS, MOST_BYTES = {"cpu": 4096, "cuda": 512, "npu": 512}, 512 << 20  # of arguments: what making them may take
SHARED = ("cos_sin",)                    # tables of which a call reads a few rows


class Refused(Exception):
    """A result is not the reference's, so there is nothing to time."""


@dataclass
class Sets:
    """Arguments of equal shapes in memory of their own, and what the reference makes of the first two."""

    args: list[tuple]
    kwargs: list[dict]
    outs: list
    wants: list
    bytes: int

    def __len__(self):
        return len(self.args)


def reference_of(name: str):
    return getattr(importlib.import_module(f"dsv4spec.reference.{ops.OPS[name].family}"), name)


def names_of(name: str) -> list[str]:
    """Of an op's arguments, in order."""
    return list(inspect.signature(ops.OPS[name].body).parameters)


def measure(case: Case, clock: Clock, roofs: Roofs, against: list[str]) -> dict:
    """All figures of a case, JSON-ready. Refused: a result was wrong, before or after it was timed."""
    op = getattr(ops, case.op)
    sets = checked_sets(case, clock, op)
    given = [k if o is None else {**k, "out": o} for k, o in zip(sets.kwargs, sets.outs)]
    ours = [lambda a=a, k=k: op(*a, **k) for a, k in zip(sets.args, given)]
    others = bench_against.contenders(case, sets.args, sets.kwargs, sets.wants[0], against, clock)
    calls = {name: other.calls for name, other in others.items() if other.calls}
    if clock.cuda:  # what comes from Python against a call from Python, other kernels against ours in a graph
        kernels = {name: c for name, c in calls.items() if others[name].graph}
        graphed = clock.times({"": ours, **kernels})
        called = clock.times({"": ours, **{name: c for name, c in calls.items() if name not in kernels}}, graph=False)
    else:
        threads = {name: other.threads for name, other in others.items() if other.threads}
        graphed = called = clock.times({"": ours, **calls}, threads=threads)
    if sets.outs[0] is not None:
        refuse(difference(sets.outs[0], sets.wants[0][0]), "after it was timed")
    line = _line(case, graphed[""], roofs, clock)
    line["call"] = called[""].report()
    line["sets"], line["rotated_bytes"] = len(sets), len(sets) * case.bytes
    line["cold"] = line["rotated_bytes"] >= 2 * clock.cache
    line["against"] = {}
    for name, other in others.items():
        row = {"why_not": other.why_not, "threads": other.threads}
        if name in calls:
            base, times = (graphed, graphed[name]) if other.graph else (called, called[name])
            row |= times.report() | {"times_ours": times.median / base[""].median}
        line["against"][name] = row
    return line


def refuse(why: str | None, when: str = "") -> None:
    if why:
        raise Refused(f"{when + ': ' if when else ''}{why}")


def checked_sets(case: Case, clock: Clock, op) -> Sets:
    """As many sets of arguments as are twice the caches; the op's results for two with other values are compared with the
    reference's, so that an implementation that kept a result is found out."""
    reference, mutates = reference_of(case.op), ops.OPS[case.op].mutates
    names = names_of(case.op)
    sets = Sets([], [], [], [], 0)
    for seed in (0, 1):
        torch.manual_seed(seed)
        args, kwargs = case.make(clock.device)
        theirs, theirs_kwargs = own(args, kwargs, names, mutates)
        want = (reference(*theirs, **theirs_kwargs), mutated(theirs, theirs_kwargs, names, mutates))
        ours, ours_kwargs = own(args, kwargs, names, mutates)
        out = op(*ours, **ours_kwargs)
        refuse(difference((out, mutated(ours, ours_kwargs, names, mutates)), want))
        sets.args.append(args)
        sets.kwargs.append(kwargs)
        sets.outs.append(_poisoned(out))
        sets.wants.append(want)
    each = sum(t.numel() * t.element_size() for t in tensors((sets.args[0], sets.kwargs[0], sets.outs[0])))
    wanted = max(1, min(MOST_SETS[clock.device.type], -(-2 * clock.cache // max(case.bytes, 1)), MOST_BYTES // max(each, 1)))
    for i in range(2, wanted):
        args, kwargs = sets.args[i % 2], sets.kwargs[i % 2]
        sets.args.append(tuple(a if n in SHARED else copied(a) for a, n in zip(args, names)))
        sets.kwargs.append({n: v if n in SHARED else copied(v) for n, v in kwargs.items()})
        sets.outs.append(copied(sets.outs[0]))
    for rows in (sets.args, sets.kwargs, sets.outs):
        del rows[wanted:]
    return sets


def _poisoned(out):
    """Memory for results, which hold nothing of a result before the clock runs; None for ops without results."""
    out = copied(out)
    for t in tensors(out):
        t.fill_(float("nan") if t.is_floating_point() else True if t.dtype == torch.bool else 77)
    return out


def own(args, kwargs, names, mutates):
    """The arguments, those that the op writes as copies."""
    return (tuple(copied(a) if n in mutates else a for a, n in zip(args, names)),
            {n: copied(v) if n in mutates else v for n, v in kwargs.items()})


def mutated(args, kwargs, names, mutates) -> list:
    values = dict(zip(names, args)) | kwargs
    return [values[name] for name in mutates if values.get(name) is not None]


def _line(case: Case, times, roofs: Roofs, clock: Clock) -> dict:
    roof, floor = roofs.binds(case)
    kernel = times.kernel_median or times.median
    seconds = times.median if roof == "call" else kernel
    goal = GOALS[case.goal] if case.goal and clock.cuda else None  # they are a GPU's
    return {"op": case.op, "size": case.size, "case": case.label, "params": case.params, "bytes_read": case.read,
            "bytes_written": case.write, "flops": case.flops, "flops_of": case.flops_of, **times.report(),
            "gb_per_s": case.bytes / kernel / 1e9, "tflop_per_s": case.flops / kernel / 1e12,
            "floors_us": {name: 1e6 * value for name, value in roofs.floors(case).items()},
            "roof": roof, "fraction_of_roof": floor / seconds,
            "goal": goal[0] if goal else None, "goal_met": goal[1](seconds, floor) if goal else None}
