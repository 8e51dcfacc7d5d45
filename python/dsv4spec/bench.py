# SPDX-License-Identifier: Apache-2.0
"""``dsv4spec bench [OP ...]``: ops against what the machine can do and against torch (docs/benchmarks.md says how it is
measured). A result that is not the reference's is not timed, and the command fails. An emulated backend has no time:
the bytes that it counts are printed instead, and cycles of a model."""
from __future__ import annotations

import argparse
import sys
import time

from ._files import check_writable, write_json
from .generate import positive

EMULATED = ("cuda_emu", "ascend_emu")
BACKENDS = ("cpu", "cuda", "npu", "reference", *EMULATED)
AGAINST = ("torch", "compile", "compile:first", "transformers", "peers")


def add_arguments(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("op", nargs="*", metavar="OP", help="these ops only (default: all)")
    parser.add_argument("--list", action="store_true", help="the ops, their parameters and formulas, and measure nothing")
    parser.add_argument("--shapes", default="flash", metavar="NAME|FILE", help="flash, pro, tiny, several with commas, or a "
                        "JSON list of cases {\"op\": NAME, PARAMETER: VALUE, ...} (flash)")
    parser.add_argument("--cases", metavar="TEXT", help="cases whose label has this text only, as T=4096")
    parser.add_argument("--backend", choices=BACKENDS, help="default: cuda if torch sees a GPU, else cpu; "
                        "cuda_emu, ascend_emu: bytes, and cycles of a model, no times")
    parser.add_argument("--dtype", choices=("bfloat16", "float32"), help="of the activations (default: bfloat16)")
    parser.add_argument("--against", default="torch", metavar="NAMES",
                        help="what to compare with, with commas: torch, compile (compile:first: an op's first case only), "
                             "transformers, peers; or none (torch)")
    parser.add_argument("--budget", type=positive, metavar="SECONDS",
                        help="when they are over, what is left is listed as not measured")
    parser.add_argument("--baseline", metavar="F.json", help="what --json wrote earlier: says which cases are slower now")
    parser.add_argument("--json", metavar="F", help="write everything to this file")
    parser.add_argument("--plot", metavar="F.png", help="roofline, and time against rows, context and batch")


def run(args: argparse.Namespace) -> int:
    try:
        if not args.list:
            for path in filter(None, (args.json, args.plot)):
                check_writable(path)
            if args.plot:
                from .bench_plot import pyplot

                pyplot()
        return _run(args)
    except (ValueError, RuntimeError, OSError) as error:
        print(f"dsv4spec: error: bench: {error}", file=sys.stderr)
        return 1


def _run(args) -> int:
    import torch

    from . import bench_report, use_backend

    cases, against = chosen(args), contenders(args.against)
    if args.list:
        print(bench_report.listing(cases))
        return 0
    backend = args.backend or ("cuda" if torch.cuda.is_available() else "cpu")
    if backend in EMULATED:
        if args.plot:
            raise ValueError(f"--plot: {backend} is emulated: there is no time to plot")
        if args.baseline:
            raise ValueError(f"--baseline: {backend} is emulated: there is no time to compare")
        from . import bench_emulated

        result = bench_emulated.run(backend, cases, args.budget)
    else:
        baseline = bench_report.baseline(args.baseline) if args.baseline else {}
        with use_backend(backend if backend == "reference" else None), torch.no_grad():
            result = measured(args, backend, cases, against, baseline)
    print(bench_report.summary(result))
    if args.json:
        write_json(args.json, result)
    if args.plot:
        from .bench_plot import plot

        plot(result, args.plot)
    return 1 if result["refused"] else 0


def contenders(text: str) -> list[str]:
    """--against as a list. ValueError: a name that there is not."""
    against = [] if text == "none" else list(dict.fromkeys(text.split(",")))  # each once, in order
    if unknown := sorted(set(against) - set(AGAINST)):
        raise ValueError(f"--against: expected some of {', '.join(AGAINST)}, or none, got {', '.join(unknown)}")
    return against


def chosen(args) -> list:
    """The cases that the arguments ask for. ValueError: none, or a name that there is not."""
    from . import bench_cases
    from .ops import OPS

    if unknown := sorted(set(args.op) - set(OPS)):
        raise ValueError(f"OP: expected some of {', '.join(sorted(OPS))}, got {', '.join(unknown)}")
    names = dict.fromkeys(args.shapes.split(","))  # each once, in order
    if set(names) <= set(bench_cases.SIZES):
        cases = [case for name in names for case in bench_cases.cases(name, args.dtype)]
    elif args.shapes.endswith(".json"):
        cases = bench_cases.read_shapes(args.shapes, args.dtype)
    else:
        raise ValueError(f"--shapes: expected some of {', '.join(bench_cases.SIZES)} or a .json file, got {args.shapes}")
    cases = [c for c in cases if (not args.op or c.op in args.op) and (not args.cases or args.cases in c.label)]
    if not cases:
        raise ValueError(f"--shapes {args.shapes}{f' --cases {args.cases}' if args.cases else ''}: no case is left")
    return cases


def measured(args, backend: str, cases, against: list[str], baseline: dict) -> dict:
    """All figures as a dict, printed line by line as they come."""
    import torch

    from . import bench_measure, bench_report, bench_roofs, bench_timing

    if backend == "cuda" and not torch.cuda.is_available():
        raise RuntimeError("--backend cuda: torch sees no GPU")
    if backend == "npu":
        from .placement import resolve_device

        resolve_device("npu")  # before it torch does not know the name
    device = torch.device(backend if backend in ("cuda", "npu") else "cpu")
    clock = bench_timing.Clock(device)
    small = all(case.size == "tiny" for case in cases)
    roofs = bench_roofs.measure(clock, small)
    once = "compile:first" in against
    against = [name.partition(":")[0] for name in against]
    result = bench_report.conditions(backend, device, clock) | {
        "against": against, "roofs": roofs.report(), "lines": [], "refused": [], "no_kernel": [], "not_measured": []}
    width = max(len(str(case)) for case in cases)
    print(bench_report.head(result, roofs, against, width), flush=True)
    end = time.monotonic() + args.budget if args.budget else float("inf")
    have = bench_report.kernels(backend)
    for case in cases:
        name = str(case)
        if case.op not in have:
            result["no_kernel"].append(name)
        elif time.monotonic() > end:
            result["not_measured"].append(name)
        else:
            first = case.op not in {line["op"] for line in result["lines"]}
            try:
                wanted = [name for name in against if name != "compile" or first or not once]
                line = bench_measure.measure(case, clock, roofs, wanted)
            except (bench_measure.Refused, ValueError, RuntimeError) as why:  # also: outside the contract, too large for memory
                result["refused"].append({"case": name, "why": str(why)})
                print(f"{name}: REFUSED: {why}", flush=True)
                continue
            line["times_baseline"] = bench_report.times_baseline(line, baseline)
            result["lines"].append(line)
            print(bench_report.row(line, against, width), flush=True)
    result["roofs_after"] = bench_roofs.measure(clock, small).report()
    return result
