# SPDX-License-Identifier: Apache-2.0
"""What this installation is: the build, the backends and why some are off, the CPU level, the ops of each backend."""
from __future__ import annotations

import json
import os
import platform
import sys
from pathlib import Path

from . import _C
from .ops import OPS

TORCH_LOWEST = (2, 10)  # the extra [models] asks for it


def backends() -> dict[str, dict]:
    """Per backend: ``loadable``, ``why_not`` (None or one sentence), and if loadable ``toolchain`` (compiler and
    version), ``archs`` (what it was compiled for; the level chosen for cpu) and ``ops`` (names of its kernels)."""
    return _C.backends()


def build_info() -> dict:
    """Everything that ``dsv4spec info --json`` prints, as plain dicts, lists and strings.

    Keys: ``version``, ``git_hash``, ``source_hash``, ``abi_version``, ``summary`` (what the build said, one line a
    backend), ``package_dir``, ``python``, ``platform``, ``numpy``, ``torch``, ``torch_why_not``, ``cpu`` (``model``,
    ``cores``, ``threads``, ``level``, ``forced``, ``levels``), ``backends`` (:func:`backends`), ``ops`` (per op and
    backend: does it have a kernel).
    """
    import numpy

    rows = backends()
    torch_version, torch_why_not = _torch()
    return {
        "version": _C.version,
        "git_hash": _C.git_hash,
        "source_hash": _C.source_hash,
        "abi_version": _C.abi_version,
        "summary": _C.build_summary,
        "package_dir": str(Path(__file__).parent),
        "python": platform.python_version(),
        "platform": platform.platform(),
        "numpy": numpy.__version__,
        "torch": torch_version,
        "torch_why_not": torch_why_not,
        "cpu": _cpu(rows["cpu"]),
        "backends": rows,
        "ops": {name: {"reference": True, **{b: name in row.get("ops", ()) for b, row in rows.items()}}
                for name in sorted(OPS)},
    }


def _torch() -> tuple[str | None, str | None]:
    try:
        import torch
    except (ImportError, OSError) as e:  # OSError: one of its libraries is missing
        return None, f"{type(e).__name__}: {e}"
    version = torch.__version__
    if tuple(int(n) for n in version.split(".")[:2]) < TORCH_LOWEST:
        return version, f"the models need torch {TORCH_LOWEST[0]}.{TORCH_LOWEST[1]} or newer"
    return version, None


def _cpu(row: dict) -> dict:
    folder = Path(__file__).parent / "lib"
    return {
        "model": _cpu_model(),
        "cores": len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count(),
        "threads": _C.get_num_threads(),
        "level": row.get("archs"),
        "forced": os.environ.get("DSV4SPEC_CPU_LEVEL") or None,
        "levels": {name: {"built": (folder / f"libdsv4spec_cpu_{name}.so").exists(), "runs_here": runs_here}
                   for name, runs_here in _C.cpu_levels().items()},
    }


def _cpu_model() -> str:
    try:
        with open("/proc/cpuinfo") as f:
            for line in f:
                if line.startswith("model name"):
                    return line.split(":", 1)[1].strip()
    except OSError:  # not Linux
        pass
    return platform.machine()


def format_info(info: dict) -> str:
    """The text of ``dsv4spec info``."""
    cpu = info["cpu"]
    lines = [
        f"dsv4spec {info['version']}, git {info['git_hash']}, sources {info['source_hash']}, "
        f"ABI {info['abi_version']}",
        f"in {info['package_dir']}",
        f"Python {info['python']}, numpy {info['numpy']}, torch "
        + ": ".join(filter(None, (info["torch"] or "none", info["torch_why_not"]))),
        "",
        "build",
        *("  " + line for line in info["summary"].splitlines()),
        "",
        f"cpu: {cpu['model']}, {cpu['cores']} cores, {cpu['threads']} threads",
    ]
    forced = ", forced by DSV4SPEC_CPU_LEVEL" if cpu["forced"] else ""
    for name, level in cpu["levels"].items():
        state = "chosen" + forced if name == cpu["level"] else "built" if level["built"] else "not built"
        lines.append(f"  {name:8} {state}" + ("" if level["runs_here"] else ", this CPU lacks it"))
    lines += ["", "backends"]
    for name, row in info["backends"].items():
        if row["loadable"]:
            lines.append(f"  {name:10} {len(row['ops'])} ops, {row['archs']}, {row['toolchain']}")
        else:
            lines.append(f"  {name:10} off: {row['why_not']}")
    shown = ["reference", *(name for name, row in info["backends"].items() if row["loadable"])]
    width = max((len(name) for name in info["ops"]), default=0)
    lines += ["", f"ops {'':{max(width - 2, 0)}}" + "".join(f"{name:>11}" for name in shown)]
    for name, row in info["ops"].items():
        lines.append(f"  {name:{width}}" + "".join(f"{'yes' if row[b] else '-':>11}" for b in shown))
    return "\n".join(lines)


def kernels() -> list[dict]:
    """What ptxas said of every CUDA kernel when it was built, per architecture: ``file``, ``kernel``, ``symbol``,
    ``arch``, ``registers``, ``static_smem_bytes``, ``local_bytes``, ``spill_store_bytes``, ``spill_load_bytes``. Dynamic
    shared memory is chosen at launch. RuntimeError if the CUDA backend was not built."""
    table = Path(__file__).parent / "lib" / "dsv4spec_cuda_kernels.json"
    if not table.exists():
        why = next((line for line in _C.build_summary.splitlines() if line.startswith("cuda: ")), "cuda: not built")
        raise RuntimeError(f"no table of CUDA kernels: {why}")
    return json.loads(table.read_text())


def format_kernels(rows: list[dict]) -> str:
    """The text of ``dsv4spec info --kernels``."""
    names = [f"{row['file']}: {row['kernel'].partition('(')[0]}" for row in rows]
    width = max(map(len, names), default=0)
    lines = [f"{'kernel':{width}}  arch     registers  static smem  local  spills"]
    for name, row in zip(names, rows):
        spills = row["spill_store_bytes"] + row["spill_load_bytes"]
        lines.append(f"{name:{width}}  {row['arch']:7}  {row['registers']:9}  {row['static_smem_bytes']:11}  "
                     f"{row['local_bytes']:5}  {spills:6}")
    return "\n".join(lines)


def add_arguments(parser) -> None:
    parser.add_argument("--json", action="store_true", help="one JSON object on stdout")
    parser.add_argument("--kernels", action="store_true",
                        help="registers, shared memory and spills of the CUDA kernels, as they were built")
    parser.add_argument("--launches", action="store_true",
                        help="what one round launches, by part and operator (Markdown)")


def run(args) -> int:
    if args.launches:
        from .launches import format_plan, plan

        print(format_plan(plan(Path(__file__).parent / "assets" / "tiny")))
        return 0
    if args.kernels:
        try:
            rows = kernels()
        except RuntimeError as error:
            print(f"dsv4spec: error: {error}", file=sys.stderr)
            return 1
        print(json.dumps(rows, indent=1) if args.json else format_kernels(rows))
        return 0
    info = build_info()
    print(json.dumps(info, indent=2) if args.json else format_info(info))
    return 0
