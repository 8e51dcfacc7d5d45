# SPDX-License-Identifier: Apache-2.0
"""The examples, built and run as a user would: against the installed package, in a folder of their own, with nothing of this
source tree in reach. Each checks its own results. Those that need more than the tests install are marked `package`."""
import os
import re
import shutil
import sys
from pathlib import Path

import dsv4spec
import pytest
from build_util import ROOT, cxx, run, script, tool

EXAMPLES = ROOT / "examples"
PACKAGE = Path(dsv4spec.__file__).parent


@pytest.fixture(scope="module")
def installation(tmp_path_factory):
    """PYTHONPATH of the package (but for what is large and not needed here) in a path with spaces."""
    site = tmp_path_factory.mktemp("an installation with spaces")
    shutil.copytree(PACKAGE, site / "dsv4spec", ignore=shutil.ignore_patterns("__pycache__", "*.safetensors", "*_emu*"))
    return site


def documented(name: str) -> str:
    """The commands of README.md that build and run that program."""
    [block] = [text for text in re.findall(r"^```sh\n(.*?)^```$", (EXAMPLES / "README.md").read_text(), re.M | re.S)
               if name in text]
    return block


def as_documented(tmp_path, installation, name: str, *files: str, **changes):
    """Run README.md's commands in a folder with spaces; its ``python`` and ``cc`` are those of the tests."""
    place, tools = tmp_path / "a place with spaces", tmp_path / "tools"
    place.mkdir(), tools.mkdir()
    for file in files:
        shutil.copy(EXAMPLES / file, place)
    script(tools / "python", f'exec "{sys.executable}" "$@"\n')
    script(tools / "cc", f'exec {tool("cc", "gcc", "clang")} -pedantic -Wall -Wextra -Werror "$@"\n')
    path = os.pathsep.join((str(tools), str(Path(sys.executable).parent), os.environ["PATH"]))
    return run("sh", "-ec", documented(name), cwd=place, PYTHONPATH=installation, LD_LIBRARY_PATH=None, PATH=path, **changes)


def example(tmp_path, name: str, *arguments):
    shutil.copy(EXAMPLES / name, tmp_path)
    return run(sys.executable, name, *arguments, cwd=tmp_path, PYTHONPATH=PACKAGE.parent, OMP_NUM_THREADS="1")


def test_the_c_example_by_pkg_config(tmp_path, installation):
    if not shutil.which("pkg-config"):
        pytest.skip("gate: pkg-config is not installed")
    result = as_documented(tmp_path, installation, "tree_verify", "tree_verify.c")
    assert result.returncode == 0, result.stdout
    assert "refused: verify_positions_padding: positions: expected " in result.stdout
    assert f"dsv4spec {dsv4spec.__version__}, ABI 1: all as expected" in result.stdout


def test_the_cpp_examples_by_find_package(tmp_path, installation):
    cxx(), tool("cmake")
    result = as_documented(tmp_path, installation, "window_attention", "CMakeLists.txt", "window_attention.cpp",
                           "cuda_pointers.cpp", CXXFLAGS="-Wall -Wextra -Werror", CMAKE_GENERATOR="Unix Makefiles")
    assert result.returncode == 0, result.stdout
    assert "refused: swa_paged_attention: block_table: expected " in result.stdout, result.stdout
    if (program := tmp_path / "a place with spaces" / "build" / "cuda_pointers").exists():  # where there is a CUDA toolkit
        result = run(program, cwd="/", LD_LIBRARY_PATH=None)
        not_built = "mhc_post: backend cuda: not built" in result.stdout
        assert result.returncode in (0, 77) or not_built, result.stdout
        assert ("20 of 20" if result.returncode == 0 else "no GPU here" if result.returncode == 77 else "cuda") in result.stdout


def test_the_numpy_example(tmp_path):
    result = example(tmp_path, "numpy_ops.py")
    assert result.returncode == 0, result.stdout
    assert "refused: mhc_post: residual: expected " in result.stdout


def test_the_compile_example(tmp_path):
    result = example(tmp_path, "torch_compile.py", "aot_eager")
    assert result.returncode == 0, result.stdout
    assert "rows of the cache that were written: 3" in result.stdout


@pytest.mark.package
def test_the_compile_example_with_inductor(tmp_path):
    result = example(tmp_path, "torch_compile.py")
    assert result.returncode == 0, result.stdout


def test_the_cupy_example_says_what_it_lacks(tmp_path):
    result = example(tmp_path, "cupy_ops.py")
    assert result.returncode in (0, 77) and result.stdout.strip(), result.stdout


@pytest.mark.package
def test_the_jax_example(tmp_path):
    """JAX in an environment of its own beside NumPy, without torch."""
    venv = tmp_path / "venv"
    assert run(sys.executable, "-m", "venv", "--without-pip", venv).returncode == 0
    result = run(sys.executable, "-m", "pip", "--python", venv / "bin" / "python", "install",
                 *os.environ.get("PIP_ARGS", "").split(), "jax")
    if result.returncode:
        pytest.skip("gate: pip cannot install jax: " + result.stdout.strip().splitlines()[-1])
    skip = shutil.ignore_patterns("__pycache__", "*.safetensors", "*_emu*")
    shutil.copytree(PACKAGE, tmp_path / "site" / "dsv4spec", ignore=skip)
    shutil.copy(EXAMPLES / "jax_cpu.py", tmp_path)
    result = run(venv / "bin" / "python", "jax_cpu.py", cwd=tmp_path, PYTHONPATH=tmp_path / "site")
    assert result.returncode == 0, result.stdout
    assert "refused: mhc_post: out: expected writable memory, got a JAX array" in result.stdout
