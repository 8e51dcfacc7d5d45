# SPDX-License-Identifier: Apache-2.0
"""``dsv4spec bench ops``: every op at Flash and Pro sizes against what the machine can do, torch eager, torch.compile and
the installed peers. A result that is not the reference's is not timed, and the command fails.

``us`` is a call inside a CUDA graph, as the engine runs it; torch eager and torch.compile are compared with a call from
Python (``call_us``), peers with ``us`` where they can be captured. The floor of a line is the time of its bytes at the
measured rate of a copy or of its operations at that of a matrix product, whichever is longer: that roof binds.
``fraction`` is floor / time.
"""
from __future__ import annotations

import argparse
import importlib
import json
import os
import platform
import sys
import time

from .generate import positive

GOALS = {
    "memory": ("floor / 0.85 + 3 us", lambda seconds, floor: seconds <= floor / 0.85 + 3e-6),
    "half": ("50 % of the roof", lambda seconds, floor: floor / seconds >= 0.5),
    "quick": ("under 5 us", lambda seconds, floor: seconds < 5e-6),
}


def add_arguments(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("--json", metavar="F", help="write the result to this file")
    parser.add_argument("--device", default="cuda", help="cuda or cpu")
    parser.add_argument("--sizes", nargs="+", default=["flash", "pro"], metavar="NAME", help="flash, pro, tiny")
    parser.add_argument("--ops", nargs="+", default=[], metavar="OP", help="these only")
    parser.add_argument("--compile", choices=("first", "all", "none"), default="first",
                        help="measure torch.compile of the reference: of an op's first case, of all, or not")
    parser.add_argument("--budget", type=positive, default=240, metavar="SECONDS",
                        help="when they are over, what is left is listed as not measured")


def run(args: argparse.Namespace) -> int:
    if args.json:
        open(args.json, "a", encoding="utf-8").close()  # a place that cannot be written fails now, not at the end
    try:
        result = measure(args)
    except (ValueError, RuntimeError) as error:
        print(f"dsv4spec: error: bench ops: {error}", file=sys.stderr)
        return 1
    if args.json:
        with open(args.json, "w", encoding="utf-8") as file:
            json.dump(result, file, indent=1)
            file.write("\n")
    met = [line["goal_met"] for line in result["lines"] if line["goal"]]
    print(f"{len(result['lines'])} measured, {sum(met)} of {len(met)} goals met, {len(result['refused'])} refused, "
          f"{len(result['not_measured'])} not measured for want of time")
    return 1 if result["refused"] else 0


def measure(args) -> dict:
    """All figures as a dict, printed line by line as they come."""
    import torch

    from . import bench_cases, bench_peers, bench_timing
    from .ops.table import NO_KERNEL

    unknown = set(args.sizes) - set(bench_cases.SIZES)
    if unknown:
        raise ValueError(f"--sizes: expected some of {', '.join(bench_cases.SIZES)}, got {', '.join(sorted(unknown))}")
    if args.device == "cuda" and not torch.cuda.is_available():
        raise RuntimeError("--device cuda: torch sees no GPU")
    device = torch.device(args.device)
    torch.manual_seed(4)
    clock = bench_timing.Clock(device)
    small = args.sizes == ["tiny"]
    roofs = bench_timing.roofs(clock, small)
    print(f"{_machine(device)['name']}: copy {roofs['copy_bytes_per_s'] / 1e12:.3g} TB/s, bfloat16 product "
          f"{roofs['matmul_flops_per_s'] / 1e12:.3g} TFLOP/s")
    result = {"machine": _machine(device), "roofs": roofs, "peers": bench_peers.installed(), "lines": [], "refused": [],
              "not_measured": []}
    end, compiled = time.monotonic() + args.budget, set()
    for case in (case for name in args.sizes for case in bench_cases.cases(bench_cases.SIZES[name])):
        if args.ops and case.op not in args.ops or case.op in NO_KERNEL[device.type]:
            continue
        name = f"{case.op} {case.size} {case.label}"
        if time.monotonic() > end:
            result["not_measured"].append(name)
            continue
        wants = args.compile == "all" or args.compile == "first" and case.op not in compiled
        compiled.add(case.op)
        _Line(case, clock, roofs, wants and time.monotonic() < end - 60).measure(result)
    return result


class _Line:
    """One case: our op against the reference, then the clocks."""

    def __init__(self, case, clock, roofs, compile_):
        self.case, self.clock, self.roofs, self.compile = case, clock, roofs, compile_

    def measure(self, result: dict) -> None:
        from . import ops
        from .bench_timing import copied, difference

        case, device = self.case, self.clock.device
        op = getattr(ops, case.op)
        family = ops.OPS[case.op].family
        reference = getattr(importlib.import_module(f"dsv4spec.reference.{family}"), case.op)
        args, kwargs = case.make(device)
        theirs = copied(args)
        want = (reference(*theirs, **copied(kwargs)), theirs)
        ours = copied(args)
        out = op(*ours, **kwargs)
        wrong = difference((out, ours), want)
        name = f"{case.op} {case.size} {case.label}"
        if wrong:
            print(f"{name}: REFUSED: {wrong}")
            result["refused"].append({"case": name, "why": wrong})
            return
        sets = [(args, kwargs, out)]
        while len(sets) < self.clock.sets(case.bytes):
            more, more_kwargs = case.make(device)
            sets.append((more, more_kwargs, op(*copied(more), **more_kwargs)))
        given = [dict(k) if o is None else {**k, "out": o} for _, k, o in sets]
        seconds, how = self.clock.seconds([lambda a=a, k=k: op(*a, **k) for (a, _, _), k in zip(sets, given)])
        line = self._line(seconds)
        line.update(how=how, sets=len(sets), call_us=1e6 * self.clock.seconds(
            [lambda: op(*args, **given[0])], graph=False)[0])
        line["eager_us"] = 1e6 * self.clock.seconds([lambda: reference(*args, **kwargs)], graph=False)[0]
        line["compiled_us"], line["compile_why_not"] = self._compiled(reference, args, kwargs, want)
        line["peers"] = self._peers(args, kwargs, want)
        result["lines"].append(line)
        print(self._text(name, line), flush=True)

    def _line(self, seconds: float) -> dict:
        case, roofs = self.case, self.roofs
        memory, products = case.bytes / roofs["copy_bytes_per_s"], case.flops / roofs["matmul_flops_per_s"]
        floor = max(memory, products)
        goal = case.goal if self.clock.cuda else None  # they are a GPU's
        return {"op": case.op, "size": str(case.size), "case": case.label, "bytes": case.bytes, "flops": case.flops,
                "us": 1e6 * seconds, "floor_us": 1e6 * floor, "binds": "memory" if memory >= products else "products",
                "fraction": floor / seconds, "goal": GOALS[goal][0] if goal else None,
                "goal_met": GOALS[goal][1](seconds, floor) if goal else None}

    def _compiled(self, reference, args, kwargs, want) -> tuple[float | None, str | None]:
        import torch

        from .bench_timing import copied, difference

        if not self.compile:
            return None, "not asked for"
        try:
            function = torch.compile(reference, dynamic=False)
            theirs = copied(args)
            wrong = difference((function(*theirs, **copied(kwargs)), theirs), want)
            if wrong:
                return None, wrong
            return 1e6 * self.clock.seconds([lambda: function(*args, **kwargs)], graph=False)[0], None
        except Exception as error:  # of torch's compiler, whatever it is: a figure less, and said so
            return None, f"{type(error).__name__}: {str(error).strip().splitlines()[0][:200]}"

    def _peers(self, args, kwargs, want) -> dict[str, dict]:
        from . import bench_peers
        from .bench_timing import difference

        found = {}
        for name, make in bench_peers.peers(self.case.op, args, kwargs):
            try:
                call, pick = make()
                wrong = difference(call(), pick(want[0]))
                if wrong:
                    found[name] = {"us": None, "why_not": wrong}
                    continue
                seconds, how = self.clock.seconds([call])
                found[name] = {"us": 1e6 * seconds, "how": how, "why_not": None}
            except Exception as error:  # another library's, whatever it is
                found[name] = {"us": None, "why_not": f"{type(error).__name__}: {str(error).strip()[:200]}"}
        return found

    def _text(self, name: str, line: dict) -> str:
        parts = [f"{name:52} {line['us']:9.2f} us", f"{line['binds']:8} binds, {line['fraction']:4.0%} of it",
                 f"eager {line['eager_us'] / line['call_us']:.1f}x"]
        if line["compiled_us"]:
            parts.append(f"compiled {line['compiled_us'] / line['call_us']:.1f}x")
        parts += [f"{peer} " + (f"{row['us'] / line['us']:.1f}x" if row["us"] else "not timed")
                  for peer, row in line["peers"].items()]
        if line["goal"]:
            parts.append(f"goal {line['goal']}: {'met' if line['goal_met'] else 'MISSED'}")
        return "  ".join(parts)


def _machine(device) -> dict:
    import torch

    if device.type == "cuda":
        p = torch.cuda.get_device_properties(device)
        return {"name": p.name, "capability": f"{p.major}.{p.minor}", "multiprocessors": p.multi_processor_count,
                "memory_bytes": p.total_memory, "torch": torch.__version__, "cuda": torch.version.cuda}
    return {"name": platform.processor() or platform.machine(), "cores": os.cpu_count(), "torch": torch.__version__}
