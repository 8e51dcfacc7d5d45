# SPDX-License-Identifier: Apache-2.0
"""Facts about the machine for bug reports. Nothing here loads a driver or imports a package."""
from __future__ import annotations

import importlib.metadata
import os
import platform
import re

PACKAGES = ("torch_npu", "transformers", "safetensors", "tokenizers", "pybind11", "triton")
# Where a kernel module or its installer leaves the driver's version.
_DRIVERS = {
    "nvidia": ("/proc/driver/nvidia/version", r"Kernel Module.*?\s(\d+\.[\d.]+)"),
    "ascend": ("/usr/local/Ascend/driver/version.info", r"(?m)^Version=(\S+)"),
}


def packages() -> dict[str, str | None]:
    """Versions of the packages that matter here, as installed; None: not installed."""
    out = {}
    for name in PACKAGES:
        try:
            out[name] = importlib.metadata.version(name)
        except importlib.metadata.PackageNotFoundError:
            out[name] = None
    return out


def drivers() -> dict[str, str | None]:
    """Versions of the device drivers; None: there is none, or it does not say."""
    found = {name: re.search(pattern, _read(path)) for name, (path, pattern) in _DRIVERS.items()}
    return {name: match and match[1] for name, match in found.items()}


def system() -> dict[str, str]:
    """``name`` of the operating system, ``kernel``, ``machine``, ``libc``."""
    match = re.search(r'(?m)^PRETTY_NAME="?([^"\n]*)', _read("/etc/os-release"))
    return {"name": match[1] if match else platform.system(), "kernel": platform.release(),
            "machine": platform.machine(), "libc": " ".join(platform.libc_ver()).strip() or "unknown"}


def cores() -> int:
    """Those that this process may use."""
    return len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1


def cpu_model() -> str:
    match = re.search(r"(?m)^model name\s*: (.*)", _read("/proc/cpuinfo"))
    return match[1].strip() if match else platform.machine()


def cpu_flags() -> list[str]:
    """Instruction-set flags as the kernel names them, sorted; empty where it does not."""
    match = re.search(r"(?m)^(?:flags|Features)\s*: (.*)", _read("/proc/cpuinfo"))
    return sorted(match[1].split()) if match else []


def _read(path: str) -> str:
    try:
        with open(path, errors="replace") as f:
            return f.read()
    except OSError:  # another system, or no such driver
        return ""
