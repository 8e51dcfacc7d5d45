# SPDX-License-Identifier: Apache-2.0
"""What ``dsv4spec bench`` prints, and the conditions that its JSON states."""
from __future__ import annotations

import datetime
import json
import os
import subprocess

SCHEMA = 1
SEEDS = [0, 1]
DRIFTED = 0.1  # of a roof between the start and the end of a run
SLOWER = 1.15  # times the baseline, from which a line says so


def kernels(backend: str) -> frozenset[str]:
    """Ops that have a kernel there."""
    from .ops._dispatch import backend_ops

    return backend_ops(backend)


def conditions(backend: str, device, clock=None) -> dict:
    """Where and how the figures of a run were taken."""
    import torch

    from . import bench_peers, bench_timing
    from .info import build_info

    info = build_info()
    result = {
        "schema": SCHEMA, "backend": backend, "emulated": clock is None, "seeds": SEEDS,
        "date": datetime.datetime.now(datetime.timezone.utc).isoformat(timespec="seconds"),
        "dsv4spec": {key: info[key] for key in ("version", "git_hash", "source_hash", "abi_version")},
        "versions": {"python": info["python"], "platform": info["platform"], "numpy": info["numpy"],
                     "torch": info["torch"], "transformers": bench_peers.version("transformers"), **bench_peers.installed()},
        "machine": _machine(device, info),
        "threads": {"dsv4spec": info["cpu"]["threads"], "torch": torch.get_num_threads()},
    }
    if clock is not None:
        result["timing"] = {"cache_bytes": clock.cache, "seconds": bench_timing.SECONDS, "least_samples": bench_timing.LEAST,
                            "drift_called_unstable": bench_timing.DRIFT}
    return result


def _machine(device, info) -> dict:
    import torch

    if device.type == "cuda":
        p = torch.cuda.get_device_properties(device)
        return {"device": p.name, "capability": f"{p.major}.{p.minor}", "multiprocessors": p.multi_processor_count,
                "memory_bytes": p.total_memory, "driver": _nvidia_driver(), "cuda": torch.version.cuda}
    if device.type == "npu":
        return {"device": torch.npu.get_device_name(device), "driver": None}
    return {"device": info["cpu"]["model"], "cores": info["cpu"]["cores"], "level": info["cpu"]["level"], "driver": None,
            "load_average": os.getloadavg()[0]}


def _nvidia_driver() -> str | None:
    try:
        out = subprocess.run(["nvidia-smi", "--query-gpu=driver_version", "--format=csv,noheader"], text=True,
                             capture_output=True, timeout=20)
    except OSError:  # not in this container
        return None
    return out.stdout.split("\n")[0].strip() or None


def head(result: dict, roofs, against, width: int) -> str:
    machine, threads = result["machine"], result["threads"]
    place = machine["device"] + ("" if result["backend"] in ("cuda", "npu") else
                                 f", {threads['dsv4spec']} threads (torch {threads['torch']})")
    columns = [f"{'us':>10} {'p10-p90':>17} {'kernel':>8} {'GB/s':>7} {'TFLOP/s':>8} {'roof':>14}",
               *(f"x {name}" for name in against if name != "peers"), *(["peers"] if "peers" in against else [])]
    return f"{place}: {roofs}\n{'op, case':{width}} " + "  ".join(columns)


def baseline(path: str) -> dict:
    """Median microseconds by op and parameters of an earlier --json. ValueError if it is none."""
    with open(path, encoding="utf-8") as file:
        try:
            lines = json.load(file)["lines"]
            return {_key(line): line["median_us"] for line in lines}
        except (ValueError, KeyError, TypeError) as error:
            raise ValueError(f"--baseline: {path}: expected what --json wrote of a timed backend") from error


def times_baseline(line: dict, before: dict) -> float | None:
    """The line's median over that of the same case before; None: the case is new."""
    return line["median_us"] / before[_key(line)] if _key(line) in before else None


def _key(line: dict) -> tuple:
    return line["op"], json.dumps(line["params"], sort_keys=True)


def _us(value: float) -> str:
    return f"{value:.4g}" if value < 1000 else f"{value:.0f}"


def row(line: dict, against, width: int) -> str:
    """One line of the table, whose names take ``width``. ``x NAME`` is its time over ours, so that more than 1 is slower than this package."""
    name = f"{line['op']} {line['size']} {line['case']}"
    kernel = _us(line["kernel_us"]) if line["kernel_us"] else "-"
    spread = f"{_us(line['p10_us'])}-{_us(line['p90_us'])}"
    parts = [f"{name:{width}} {_us(line['median_us']):>10} {spread:>17} {kernel:>8} "
             f"{line['gb_per_s']:7.3g} {line['tflop_per_s']:8.3g} {line['fraction_of_roof']:5.0%} {line['roof']:>8}"]
    rest = dict(line["against"])
    for known in against:
        if known != "peers":
            parts.append(f"{_times(rest.pop(known, None)):>{2 + len(known)}}")
    parts += [f"{peer} {_times(entry)}" for peer, entry in rest.items()]
    notes = ["unstable"] if line["unstable"] else []
    notes += [] if line["cold"] else ["in cache"]
    if line.get("times_baseline"):
        slower = " SLOWER" if line["times_baseline"] > SLOWER else ""
        notes.append(f"{line['times_baseline']:.2f} of the baseline's time{slower}")
    if line["goal"]:
        notes.append(f"goal {line['goal']}: {'met' if line['goal_met'] else 'MISSED'}")
    return "  ".join(parts + notes)


def _moved(before: dict, after: dict) -> str:
    """The roofs that are more than DRIFTED apart at the start and at the end."""
    return ", ".join(f"{name} {before[name]:.3g} to {after[name]:.3g}" for name in before
                     if max(before[name], after[name]) > (1 + DRIFTED) * min(before[name], after[name]))


def _times(entry: dict | None) -> str:
    if entry is None:
        return "-"
    return f"{entry['times_ours']:.2f}" if "times_ours" in entry else "failed"


def summary(result: dict) -> str:
    lines = result["lines"]
    reasons = {f"{name}: {entry['why_not']}": None for line in lines for name, entry in line.get("against", {}).items()
               if entry["why_not"]}
    text = [f"not compared: {reason}" for reason in list(reasons)[:12]]
    if moved := _moved(result.get("roofs", {}), result.get("roofs_after", {})):
        text.append(f"the machine's own rates changed meanwhile: {moved}")
    counts = [f"{len(lines)} {'counted' if result['emulated'] else 'measured'}", f"{len(result['refused'])} refused"]
    if met := [line["goal_met"] for line in lines if line.get("goal")]:
        counts.append(f"{sum(met)} of {len(met)} goals met")
    if not result["emulated"] and lines:
        counts.append(f"{sum(line['unstable'] for line in lines)} unstable")
    if slower := sum((line.get("times_baseline") or 0) > SLOWER for line in lines):
        counts.append(f"{slower} slower than {SLOWER} times the baseline")
    if result["no_kernel"]:
        names = sorted({name.split()[0] for name in result["no_kernel"]})
        counts.append(f"{len(result['no_kernel'])} without a kernel ({', '.join(names)})")
    if result.get("too_large"):
        counts.append(f"{len(result['too_large'])} too large to emulate in seconds")
    if result["not_measured"]:
        counts.append(f"{len(result['not_measured'])} not measured for want of time")
    return "\n".join([*text, ", ".join(counts)])


def listing(cases) -> str:
    """The formulas of each op of the cases, and the cases."""
    text, seen = [], None
    for case in cases:
        if case.op != seen:
            seen, spec = case.op, case.spec
            text += ["", f"{case.op}: parameters {' '.join(spec.params)}", f"  bytes read     {spec.read}",
                     f"  bytes written  {spec.write}"]
            flops = {"flops, dtype": spec.dtype_flops, "flops, float32": spec.flops}
            text += [f"  {name:15}{formula}" for name, formula in flops.items() if formula != "0"]
            text += ["  seen           sum over rows j of min(window, length + j + 1)"] * ("seen(" in spec.dtype_flops)
        text.append(f"    {case.size:5} {case.label:40} {case.bytes:>12} bytes {case.flops:>14} flops")
    return "\n".join(text[1:])

