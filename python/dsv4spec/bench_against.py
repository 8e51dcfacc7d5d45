# SPDX-License-Identifier: Apache-2.0
"""What ``dsv4spec bench`` compares an op with: torch's eager composition (the op's reference), torch.compile of it,
transformers' modules, other libraries' kernels. Their results are compared with the reference's before they are timed."""
from __future__ import annotations

from dataclasses import dataclass
from typing import Callable

import torch

from . import bench_peers, bench_transformers
from .bench_check import copied, difference

PREPARED = 24  # most sets of arguments that a peer's layouts are made for


@dataclass
class Other:
    """Calls of a contender, a list like the op's own; empty with a reason if it cannot be timed."""

    calls: list[Callable]
    why_not: str | None = None
    graph: bool = False  # kernels of a GPU, captured as ours are
    threads: int | None = None  # of torch; None: as many as it has


def contenders(case, args: list, kwargs: list, want, against: list[str], clock) -> dict[str, Other]:
    """By name. On a CPU torch gets the better of one and all of its threads, which compiled code and
    transformers' keep."""
    from .bench_measure import reference_of

    reference, found, cpu = reference_of(case.op), {}, clock.device.type == "cpu"
    all_threads = torch.get_num_threads()
    threads = clock.quicker_threads(_all(reference, args[:1], kwargs[:1])[0]) if cpu and against else None
    try:
        if threads:
            torch.set_num_threads(threads)
        if "torch" in against:
            found["torch"] = Other(_all(reference, args, kwargs))
        if "compile" in against:
            found["compile"] = _compiled(reference, args, kwargs, want)
        if "transformers" in against and (make := bench_transformers.MODULES.get(case.op)):
            found["transformers"] = _made(make, args, kwargs, want, graph=False, factor=4)  # rounds in between
    finally:
        torch.set_num_threads(all_threads)
    for other in found.values():
        other.threads = threads
    if "peers" in against:
        for name, make in bench_peers.peers(case.op):
            found[name] = _made(make, args[:PREPARED], kwargs[:PREPARED], want, graph=clock.cuda)
    return found


def _all(function, args, kwargs) -> list[Callable]:
    return [lambda a=a, k=k: function(*a, **k) for a, k in zip(args, kwargs)]


def _compiled(reference, args, kwargs, want) -> Other:
    try:
        torch._dynamo.reset()  # of the case before: its shapes do not count against this one's limit of recompilations
        function = torch.compile(reference, dynamic=False)
        theirs, theirs_kwargs = copied(args[0]), copied(kwargs[0])
        wrong = difference(function(*theirs, **theirs_kwargs), want[0])
        return Other([], wrong) if wrong else Other(_all(function, args, kwargs))
    except Exception as error:  # of torch's compiler, whatever it is: a figure less, and said so
        return Other([], _sentence(error))


def _made(make, args, kwargs, want, graph: bool, factor: float = 1.0) -> Other:
    """``make(*args, **kwargs)`` gives ``(call, pick)``, see bench_peers. ``factor``: of the tolerance."""
    try:
        made = [make(*a, **k) for a, k in zip(args, kwargs)]
        call, pick = made[0]
        wrong = difference(call(), pick(want[0]), factor)
        return Other([], wrong) if wrong else Other([call for call, _ in made], graph=graph)
    except Exception as error:  # another library's, whatever it is
        return Other([], _sentence(error))


def _sentence(error: Exception) -> str:
    lines = str(error).strip().splitlines() or [""]
    return f"{type(error).__name__}: {lines[0][:200]}"
