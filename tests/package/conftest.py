# SPDX-License-Identifier: Apache-2.0
"""What the package's tests share, each made once: the source archive, the packages that a build needs, a wheel built
from the archive without a network, an empty environment with it, and a checkout that is installed in place."""
import os
import shutil
import sys
from pathlib import Path
from types import SimpleNamespace

import pytest
from build_util import ROOT, copy_sources, make_sdist, script, unpack

sys.path.insert(0, os.path.dirname(__file__))
from package_util import LAUNCHER, QUICK, download, path_without, pip, venv  # noqa: E402


def pytest_collection_modifyitems(items):
    for item in items:
        if Path(__file__).parent in item.path.parents:
            item.add_marker(pytest.mark.package)


@pytest.fixture(scope="session")
def sdist(tmp_path_factory):
    return make_sdist(ROOT, tmp_path_factory.mktemp("sdist"))


@pytest.fixture(scope="session")
def unpacked(sdist, tmp_path_factory):
    return unpack(sdist, tmp_path_factory.mktemp("unpacked"))


@pytest.fixture(scope="session")
def house(tmp_path_factory):
    return download(tmp_path_factory.mktemp("house"))


@pytest.fixture(scope="session")
def wheel(sdist, house, tmp_path_factory):
    """Built as pip builds the archive: isolated, optimised, in a folder of its own."""
    folder = tmp_path_factory.mktemp("wheel")
    log = pip(house, "wheel", "-v", "--no-deps", "-w", folder, sdist,
              CMAKE_ARGS=LAUNCHER + " -DCMAKE_EXPORT_COMPILE_COMMANDS=ON -DCMAKE_VERBOSE_MAKEFILE=ON")
    [path] = folder.iterdir()
    return SimpleNamespace(path=path, log=log)


@pytest.fixture(scope="session")
def installed(wheel, house, tmp_path_factory):
    """An environment with the wheel and NumPy, nothing else."""
    folder = tmp_path_factory.mktemp("installed") / "venv"
    python = venv(folder)
    pip(house, "install", wheel.path, python=python)
    site = next((folder / "lib").glob("python*")) / "site-packages"
    return SimpleNamespace(python=python, bin=folder / "bin", site=site, package=site / "dsv4spec")


@pytest.fixture(scope="session")
def checkout(house, tmp_path_factory):
    """An edited tree, installed in place: a path with spaces, no ninja, one job, the tools of the environment."""
    folder = tmp_path_factory.mktemp("checkout")
    tree, jobs = copy_sources(folder / "a path with spaces"), folder / "jobs"
    with open(tree / "csrc" / "capi.cpp", "a") as f:
        f.write("// another state of the sources\n")
    launcher = script(folder / "launch", f'echo + >> {jobs}\n{shutil.which("ccache") or ""} "$@"\ncode=$?\n'
                                         f'echo - >> {jobs}\nexit $code\n')
    python = venv(folder / "venv")
    pip(house, "install", "setuptools", "cmake", "pybind11", python=python)
    path = path_without(folder / "bin", "ninja|ninja-build|samu|samurai")
    log = pip(house, "install", "-v", "--no-build-isolation", "-e", tree, python=python, MAX_JOBS="1",
              PATH=f"{folder / 'venv' / 'bin'}{os.pathsep}{path}",
              CMAKE_ARGS=f"{QUICK} -DCMAKE_CXX_COMPILER_LAUNCHER={launcher}")
    return SimpleNamespace(tree=tree, python=python, jobs=jobs.read_text().split(), log=log)
