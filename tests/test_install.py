# SPDX-License-Identifier: Apache-2.0
"""The source archive is complete, and pip installs it into an empty virtual environment, without git or torch."""
import json
import os
import re
import shlex
import shutil
import subprocess
import sys
import tarfile

import pytest
from build_util import ROOT, run
from test_build import LEVEL, NO_TOOLCHAIN, _stamp

USE = """
import sys, numpy as np, dsv4spec
y, residual = np.ones((3, 32), np.float32), np.full((3, 4, 32), 2, np.float32)
post, comb = np.full((3, 4), 0.5, np.float32), np.full((3, 4, 4), 0.25, np.float32)
out = dsv4spec.ops.mhc_post(y, residual, post, comb)
assert out.shape == (3, 4, 32) and (out == 0.5 + 2).all(), out
assert "torch" not in sys.modules
"""


def _files(folder) -> set[str]:
    return {str(p.relative_to(folder)) for p in folder.rglob("*") if p.is_file()}


@pytest.fixture(scope="module")
def sdist(tmp_path_factory):
    folder = tmp_path_factory.mktemp("sdist")
    result = run(sys.executable, "-c", f"from setuptools import build_meta; build_meta.build_sdist({str(folder)!r})",
                 cwd=ROOT)
    assert result.returncode == 0, result.stdout
    [path] = folder.iterdir()
    return path


@pytest.fixture(scope="module")
def unpacked(sdist):
    with tarfile.open(sdist) as archive:
        safe = {"filter": "data"} if hasattr(tarfile, "data_filter") else {}  # Python 3.11.3 and older have none
        archive.extractall(sdist.parent / "unpacked", **safe)
    [tree] = (sdist.parent / "unpacked").iterdir()
    return tree


def test_source_archive_is_complete(unpacked):
    names = _files(unpacked)
    assert not [n for n in names if n.endswith((".so", ".pyc"))]
    if (ROOT / ".git").exists() and shutil.which("git"):
        tracked = subprocess.run(["git", "ls-files"], cwd=ROOT, text=True, capture_output=True, check=True).stdout
        missing = set(tracked.split("\n")) - {"", ".gitignore"} - names
        assert not missing, f"MANIFEST.in leaves out {sorted(missing)}"


def test_source_archive_names_its_commit_and_has_the_same_hash(unpacked, tmp_path):
    here, there = _stamp(ROOT, tmp_path / "here.h"), _stamp(unpacked, tmp_path / "there.h")
    assert there == here


def test_a26_pip_installs_it_isolated_without_torch(sdist, unpacked, tmp_path):
    venv = tmp_path / "venv"
    assert run(sys.executable, "-m", "venv", "--without-pip", venv).returncode == 0
    python = venv / "bin" / "python"
    # One level, not optimised: what is tried here is the way, not the code.
    result = run(sys.executable, "-m", "pip", "--python", python, "install",
                 *shlex.split(os.environ.get("PIP_ARGS", "")), sdist, PYTHONPATH=None,
                 CMAKE_ARGS="-DCMAKE_BUILD_TYPE=Debug -DCMAKE_CXX_FLAGS_DEBUG=-O0",
                 **{**NO_TOOLCHAIN, "DSV4SPEC_CPU_LEVELS": LEVEL, "DSV4SPEC_CUDA": "OFF"})
    if result.returncode and re.search("No matching distribution found|Connection", result.stdout):
        pytest.skip("gate: no package index can be reached")
    assert result.returncode == 0, result.stdout[-6000:]
    result = run(python, "-c", USE, cwd=tmp_path, PYTHONPATH=None)
    assert result.returncode == 0, result.stdout
    result = run(venv / "bin" / "dsv4spec", "info", "--json", cwd=tmp_path, PYTHONPATH=None)
    assert result.returncode == 0, result.stdout
    info = json.loads(result.stdout)
    stamp = _stamp(unpacked, tmp_path / "stamp.h")
    assert (info["git_hash"], info["source_hash"]) == (stamp["GIT_HASH"], stamp["SOURCE_HASH"])
    assert info["torch"] is None and "No module named 'torch'" in info["torch_why_not"]
    assert info["cpu"]["level"] == LEVEL and f"cpu: built for {LEVEL} with" in info["summary"]
    assert [name for name, level in info["cpu"]["levels"].items() if level["built"]] == [LEVEL]
    installed = next((venv / "lib").glob("python*")) / "site-packages" / "dsv4spec"
    assert _files(unpacked / "python" / "dsv4spec") <= _files(installed)  # modules, and data such as the small model
    assert (installed / "include" / "dsv4spec" / "dsv4spec.h").exists()
