# SPDX-License-Identifier: Apache-2.0
"""What this installation is: the build, the backends and why some are off, the CPU level, the ops of each backend."""
from __future__ import annotations

import json
import os
import platform
import sys
from pathlib import Path

from . import _C, _machine, _stamp, variables
from .ops import OPS

SCHEMA = 1  # of build_info(): a key that goes or changes its meaning raises it, a new one does not

TORCH_LOWEST = (2, 10)  # the extra [models] asks for it


def backends() -> dict[str, dict]:
    """Per backend: ``loadable``, ``why_not`` (None or one sentence), and if loadable ``toolchain`` (compiler and
    version), ``archs`` (what it was compiled for; the level chosen for cpu) and ``ops`` (names of its kernels)."""
    return _C.backends()


def build_info() -> dict:
    """Everything that ``dsv4spec info --json`` prints, as plain dicts, lists and strings: what a bug report needs.

    Keys: ``schema`` (1), ``version``, ``git_hash``, ``source_hash``, ``checkout_hash`` (of the source tree around an
    editable install; None: installed) and ``stale`` (None, or one sentence when the two differ), ``abi_version``,
    ``summary`` (what the build said, one line a backend), ``build`` (``compiler``, ``options``), ``package_dir``,
    ``libraries`` (bytes per file), ``python``, ``executable``, ``platform``, ``system`` (``name``, ``kernel``,
    ``machine``, ``libc``), ``numpy``, ``torch``, ``torch_why_not``, ``torch_cuda``, ``packages``, ``drivers``
    (``nvidia``, ``ascend``), ``cpu`` (``model``, ``cores``, ``threads``, ``level``, ``forced``, ``levels``, ``flags``),
    ``variables`` (those set) and ``unknown_variables`` (misspelt ones), ``backends`` (:func:`backends`), ``ops`` (per op
    and backend: does it have a kernel). A version that is not there is None.
    """
    import numpy

    rows = backends()
    torch_version, torch_why_not, torch_cuda = _torch()
    package = Path(__file__).parent
    return {
        "schema": SCHEMA,
        "version": _C.version,
        "git_hash": _C.git_hash,
        "source_hash": _C.source_hash,
        "checkout_hash": _stamp.checkout_hash(str(package)),
        "stale": _stamp.staleness(str(package), _C.source_hash),
        "abi_version": _C.abi_version,
        "summary": _C.build_summary,
        "build": {"compiler": _C.compiler,
                  "options": dict(line.split("=", 1) for line in _C.build_options.splitlines())},
        "package_dir": str(package),
        "libraries": {str(p.relative_to(package)): p.stat().st_size for p in sorted(package.rglob("*.so"))},
        "python": platform.python_version(),
        "executable": sys.executable,
        "platform": platform.platform(),
        "system": _machine.system(),
        "numpy": numpy.__version__,
        "torch": torch_version,
        "torch_why_not": torch_why_not,
        "torch_cuda": torch_cuda,
        "packages": _machine.packages(),
        "drivers": _machine.drivers(),
        "cpu": _cpu(rows["cpu"]),
        "variables": variables.settings(),
        "unknown_variables": variables.unknown(),
        "backends": rows,
        "ops": {name: {"reference": True, **{b: name in row.get("ops", ()) for b, row in rows.items()}}
                for name in sorted(OPS)},
    }


def _torch() -> tuple[str | None, str | None, str | None]:
    """Version, what is wrong with it, and the CUDA release it was built for."""
    try:
        import torch
    except (ImportError, OSError) as e:  # OSError: one of its libraries is missing
        return None, f"{type(e).__name__}: {e}", None
    version, cuda = torch.__version__, torch.version.cuda
    if tuple(int(n) for n in version.split(".")[:2]) < TORCH_LOWEST:
        return version, f"the models need torch {TORCH_LOWEST[0]}.{TORCH_LOWEST[1]} or newer", cuda
    return version, None, cuda


def _cpu(row: dict) -> dict:
    folder = Path(__file__).parent / "lib"
    return {
        "model": _machine.cpu_model(),
        "cores": _machine.cores(),
        "threads": _C.get_num_threads(),
        "level": row.get("archs"),
        "forced": os.environ.get("DSV4SPEC_CPU_LEVEL") or None,
        "levels": {name: {"built": (folder / f"libdsv4spec_cpu_{name}.so").exists(), "runs_here": runs_here}
                   for name, runs_here in _C.cpu_levels().items()},
        "flags": _machine.cpu_flags(),
    }


def format_info(info: dict) -> str:
    """The text of ``dsv4spec info``."""
    cpu = info["cpu"]
    lines = [
        f"dsv4spec {info['version']}, git {info['git_hash']}, sources {info['source_hash']}, "
        f"ABI {info['abi_version']}",
        f"in {info['package_dir']}",
        *filter(None, [info["stale"]]),
        f"Python {info['python']}, numpy {info['numpy']}, torch "
        + ": ".join(filter(None, (info["torch"] or "none", info["torch_why_not"]))),
        "on " + ", ".join([info["system"]["name"], info["system"]["machine"], info["system"]["libc"],
                           *(f"{name} driver {v}" for name, v in info["drivers"].items() if v)]),
        *(f"{name}={value}" + (": not a variable of dsv4spec" if name in info["unknown_variables"] else "")
          for name, value in info["variables"].items()),
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
