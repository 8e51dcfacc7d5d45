# SPDX-License-Identifier: Apache-2.0
"""Helpers of the package's tests: builds without a network, empty environments, a PATH that lacks something."""
import os
import re
import shlex
import shutil
import sys
from pathlib import Path

import pytest
from build_util import ROOT, run
from test_build import LEVEL, NO_TOOLCHAIN

LAUNCHER = f"-DCMAKE_CXX_COMPILER_LAUNCHER={shutil.which('ccache')}" if shutil.which("ccache") else ""
QUICK = "-DCMAKE_BUILD_TYPE=Debug -DCMAKE_CXX_FLAGS_DEBUG=-O0"  # where the way is tried, not the code
OFFLINE = ["unshare", "-rn"] if shutil.which("unshare") and run("unshare", "-rn", "true").returncode == 0 else []


def path_without(folder: Path, pattern: str) -> Path:
    """A folder with a link to every program of PATH, but for those whose name matches."""
    folder.mkdir(parents=True)
    for place in os.environ["PATH"].split(os.pathsep):
        for name in os.listdir(place) if os.path.isdir(place) else ():
            if not re.fullmatch(pattern, name) and not (folder / name).is_symlink():
                (folder / name).symlink_to(os.path.join(place, name))
    return folder


def venv(folder: Path, python=sys.executable) -> Path:
    """An empty environment; its interpreter. pip is that of the tests (``install``)."""
    result = run(python, "-m", "venv", "--without-pip", folder)
    assert result.returncode == 0, result.stdout
    return folder / "bin" / "python"


def environment(**changes) -> dict:
    """For builds: one CPU level, no device, no variables of this machine."""
    return {**NO_TOOLCHAIN, "DSV4SPEC_CPU_LEVELS": LEVEL, "DSV4SPEC_CUDA": "OFF", "PYTHONPATH": None, "MAX_JOBS": None,
            "CMAKE_ARGS": LAUNCHER, "CCACHE_BASEDIR": "/", "CCACHE_NOHASHDIR": "1", **changes}


def pip(house: Path, *arguments, python=sys.executable, **changes) -> str:
    """pip without a network, from the packages in ``house``; what it printed."""
    result = run(*OFFLINE, sys.executable, "-m", "pip", "--python", python, *arguments, "--no-index", "--find-links",
                 house, **environment(**changes))
    assert result.returncode == 0, result.stdout[-6000:]
    return result.stdout


def download(house: Path, python=sys.executable) -> Path:
    """What the package asks for to be built and imported, from the index: all that is fetched by these tests."""
    try:
        import tomllib
    except ModuleNotFoundError:  # Python 3.10; pytest brings it there
        import tomli as tomllib

    text = tomllib.loads((ROOT / "pyproject.toml").read_text())
    wanted = [*text["build-system"]["requires"], *text["project"]["dependencies"]]
    result = run(sys.executable, "-m", "pip", "--python", python, "download", "--only-binary", ":all:", "-d", house,
                 *shlex.split(os.environ.get("PIP_ARGS", "")), *wanted)
    if result.returncode and re.search("No matching distribution found|Connection", result.stdout):
        pytest.skip("gate: no package index can be reached")
    assert result.returncode == 0, result.stdout[-3000:]
    return house
