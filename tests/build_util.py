# SPDX-License-Identifier: Apache-2.0
"""Helpers of the tests of the build: a copy of the source tree, CMake, and toolchains that are not there."""
from __future__ import annotations

import os
import shutil
import subprocess
import sys
import tarfile
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parents[1]
IGNORED = shutil.ignore_patterns("__pycache__", "*.so", "*.egg-info", "lib")


def tool(*names: str) -> str:
    """A build tool, the first of these that there is: of this Python environment, else of PATH."""
    places = os.pathsep.join([str(Path(sys.executable).parent), os.environ["PATH"]])
    for name in names:
        if path := shutil.which(name, path=places):
            return path
    pytest.skip(f"gate: {' or '.join(names)} is not installed")


def cxx() -> str:
    """A C++ compiler."""
    return tool("c++", "g++", "clang++")


def copy_sources(to: Path, *, without: tuple[str, ...] = ()) -> Path:
    """The files that a build reads, outside git, less the folders in ``without``."""
    for name in ("csrc", "include", "kernels", "cmake", "python", "tools"):
        shutil.copytree(ROOT / name, to / name, ignore=IGNORED)
    if (ROOT / "tests" / "emu").exists():
        shutil.copytree(ROOT / "tests" / "emu", to / "tests" / "emu", ignore=IGNORED)
    for name in ("CMakeLists.txt", "setup.py", "pyproject.toml", "LICENSE"):
        shutil.copy(ROOT / name, to / name)
    for name in without:
        shutil.rmtree(to / name, ignore_errors=True)
    return to


def run(*command, cwd=None, env=None, timeout=900, **changes) -> subprocess.CompletedProcess:
    """Run a command; ``changes`` are environment variables to set, or with None to take away."""
    environ = dict(os.environ if env is None else env)
    for name, value in changes.items():
        environ.pop(name, None)
        if value is not None:
            environ[name] = str(value)
    return subprocess.run([str(c) for c in command], cwd=cwd, env=environ, timeout=timeout, text=True,
                          stdout=subprocess.PIPE, stderr=subprocess.STDOUT)


def make_sdist(source: Path, folder: Path) -> Path:
    """The source archive of the tree ``source``, made as pip would."""
    code = f"from setuptools import build_meta; build_meta.build_sdist({str(folder)!r})"
    result = run(sys.executable, "-c", code, cwd=source)
    assert result.returncode == 0, result.stdout
    [path] = folder.iterdir()
    return path


def unpack(sdist: Path, folder: Path) -> Path:
    """The tree in a source archive."""
    with tarfile.open(sdist) as archive:
        safe = {"filter": "data"} if hasattr(tarfile, "data_filter") else {}  # Python 3.11.3 and older have none
        archive.extractall(folder, **safe)
    [tree] = folder.iterdir()
    return tree


def files_in(folder: Path) -> set[str]:
    return {str(p.relative_to(folder)) for p in folder.rglob("*") if p.is_file()}


def script(path: Path, text: str) -> Path:
    """An executable shell script."""
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text("#!/bin/sh\n" + text)
    path.chmod(0o755)
    return path


def fake_nvcc(path: Path, release: str, *, compiles: bool = True) -> Path:
    version = f"Cuda compilation tools, release {release}, V{release}.1"
    return script(path, f'[ "$1" = --version ] && echo "{version}" && exit\n'
                        + ("exit 0\n" if compiles else 'echo "nvcc fatal: no such luck" >&2\nexit 2\n'))
