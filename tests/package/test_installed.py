# SPDX-License-Identifier: Apache-2.0
"""The installed package in use: without torch, beside torch, on every Python of this machine."""
import glob
import os
import sys
from pathlib import Path

import pytest
from build_util import run
from package_util import LAUNCHER, OFFLINE, QUICK, download, environment, path_without, pip, venv

USE = """
import sys, numpy as np, dsv4spec
y, residual = np.ones((3, 32), np.float32), np.full((3, 4, 32), 2, np.float32)
post, comb = np.full((3, 4), 0.5, np.float32), np.full((3, 4, 4), 0.25, np.float32)
out = dsv4spec.ops.mhc_post(y, residual, post, comb)
assert out.shape == (3, 4, 32) and (out == 0.5 + 2).all(), out
assert "torch" not in sys.modules
"""
VERSIONS = [(3, minor) for minor in (10, 11, 12, 13)]
PLACES = ("~/.local/share/uv/python/*/bin", "~/.pyenv/versions/*/bin", "/opt/python/*/bin", "/usr/local/bin", "/usr/bin")
EXTRA = "pip install 'dsv4spec[models]'"


def interpreter(version) -> str | None:
    """A python of that version that runs: this one, else of the usual places or PATH (whose shims may not)."""
    if version == sys.version_info[:2]:
        return sys.executable
    folders = [folder for place in PLACES for folder in glob.glob(os.path.expanduser(place))]
    for folder in (*folders, *os.environ["PATH"].split(os.pathsep)):
        found = os.path.join(folder, "python{}.{}".format(*version))
        if os.access(found, os.X_OK) and run(found, "-c", "import sys; print(sys.version_info[:2])").stdout == f"{version}\n":
            return found
    return None


def python(installed, code: str, *arguments):
    """Run ``code`` where nothing but the wheel and NumPy is installed."""
    return run(installed.python, "-c", code, *arguments, cwd="/", PYTHONPATH=None)


def test_a28_numpy_ops_work_without_torch(installed):
    result = python(installed, USE)
    assert result.returncode == 0 and result.stdout == "", result.stdout


@pytest.mark.parametrize("code, sentence", [
    ("import dsv4spec; dsv4spec.Engine", "dsv4spec.Engine needs torch: " + EXTRA),
    ("from dsv4spec import Engine", "dsv4spec.Engine needs torch: " + EXTRA),
    (USE + "with dsv4spec.use_backend('reference'): dsv4spec.ops.mhc_post(y, residual, post, comb)",
     "mhc_post: the reference needs torch: " + EXTRA),
])
def test_a28_what_needs_torch_says_so(installed, code, sentence):
    result = python(installed, code)
    assert result.returncode == 1 and result.stdout.endswith(f"ModuleNotFoundError: {sentence}\n"), result.stdout


@pytest.mark.parametrize("command", [("demo",), ("generate", "--model", ".", "--prompt", "x")])
def test_a28_commands_that_need_torch_are_one_line(installed, command):
    result = run(installed.bin / "dsv4spec", *command, cwd="/", PYTHONPATH=None)
    assert result.returncode == 1 and result.stdout == f"dsv4spec: error: {command[0]} needs torch: {EXTRA}\n"


@pytest.mark.parametrize("order", ["dsv4spec, torch", "torch, dsv4spec"])
def test_a28_import_before_and_after_torch(installed, order):
    """The wheel's files under the Python that has torch."""
    code = f"""
import {order}
assert dsv4spec.__file__.startswith({str(installed.site)!r}), dsv4spec.__file__
y = torch.ones(1, 8)
arguments = y, torch.zeros(1, 1, 8), torch.ones(1, 1), torch.zeros(1, 1, 1)
assert torch.ops.dsv4spec.mhc_post(*arguments).equal(y[:, None])
assert dsv4spec.ops.mhc_post(*arguments).equal(y[:, None])
"""
    result = run(sys.executable, "-c", code, cwd="/", PYTHONPATH=installed.site)
    assert result.returncode == 0 and result.stdout == "", result.stdout


def test_a26_no_compiler_is_one_sentence(sdist, house, tmp_path):
    path = path_without(tmp_path / "bin", r".*(g\+\+|c\+\+|clang\+\+|gcc|clang|cc)(-[\d.]+)?")
    result = run(*OFFLINE, sys.executable, "-m", "pip", "wheel", "--no-deps", "--no-index", "--find-links", house, "-w",
                 tmp_path / "out", sdist, **environment(PATH=path, CXX=None))
    assert result.returncode != 0 and not list(tmp_path.glob("out/*"))
    assert "dsv4spec: no C++17 compiler (looked for c++, g++, clang++); install g++, or set CXX" in result.stdout
    assert "Traceback" not in result.stdout and "CMake Error" not in result.stdout, result.stdout


@pytest.mark.parametrize("version", VERSIONS, ids="{0[0]}.{0[1]}".format)
def test_every_python_of_this_machine(version, request, sdist, house, tmp_path):
    """This very Python has the wheel of the other tests; another one builds, installs and uses its own."""
    found = interpreter(version)
    if not found:
        pytest.skip("Python {}.{} is not on this machine".format(*version))
    if version == sys.version_info[:2]:
        installed = request.getfixturevalue("installed")
        result = python(installed, USE + "print(sys.version_info[:2])")
        assert result.returncode == 0 and result.stdout == f"{version}\n", result.stdout
        return
    headers = run(found, "-c", "import sysconfig; print(sysconfig.get_paths()['include'])").stdout.strip()
    if not Path(headers, "Python.h").exists():
        pytest.skip("Python {}.{} is here without its headers".format(*version))
    own = download(tmp_path / "house", python=venv(tmp_path / "venv", found))
    pip(own, "install", "-v", sdist, python=tmp_path / "venv" / "bin" / "python", CMAKE_ARGS=f"{QUICK} {LAUNCHER}")
    result = run(tmp_path / "venv" / "bin" / "python", "-c", USE + "print(sys.version_info[:2])", cwd="/", PYTHONPATH=None)
    assert result.returncode == 0 and result.stdout == f"{version}\n", result.stdout
