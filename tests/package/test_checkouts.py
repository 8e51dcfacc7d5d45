# SPDX-License-Identifier: Apache-2.0
"""An editable install in a path with spaces, and two checkouts side by side (A26, A28)."""
import re
import shutil
import zipfile
from types import SimpleNamespace

import pytest
from build_util import run
from test_build import LEVEL
from test_installed import USE

from dsv4spec._stamp import source_hash


@pytest.fixture(scope="module")
def other(unpacked, wheel, tmp_path_factory):
    """A second checkout: the sources of the archive, with the libraries of the wheel in place."""
    tree = tmp_path_factory.mktemp("other") / "tree"
    shutil.copytree(unpacked, tree)
    with zipfile.ZipFile(wheel.path) as archive:
        archive.extractall(tree / "python", [name for name in archive.namelist() if name.endswith(".so")])
    return SimpleNamespace(tree=tree)


def use(python, tree, code=USE):
    return run(python, "-c", code + "\nprint(dsv4spec._C.__file__, dsv4spec._C.source_hash)", cwd="/",
               PYTHONPATH=tree and tree / "python")


def test_a26_one_job_without_ninja_in_a_path_with_spaces(checkout):
    assert " " in str(checkout.tree)
    trees = [p.name for p in (checkout.tree / "build").iterdir() if (p / "CMakeCache.txt").exists()]
    assert len(trees) == 1 and trees[0].endswith("-make"), trees
    assert len(checkout.jobs) > 40 and checkout.jobs == ["+", "-"] * (len(checkout.jobs) // 2)  # never two at once


def test_an_editable_install_runs_the_files_of_the_checkout(checkout):
    result = use(checkout.python, None)
    here, package = source_hash(str(checkout.tree)), checkout.tree / "python" / "dsv4spec"
    assert result.returncode == 0, result.stdout
    assert re.fullmatch(re.escape(str(package)) + rf"/_C\.[\w-]+\.so {here}\n", result.stdout), result.stdout
    result = run(checkout.python, "-m", "dsv4spec.cli", "info", cwd="/", PYTHONPATH=None)
    assert result.returncode == 0 and f"sources {here}" in result.stdout and f"in {package}\n" in result.stdout
    module = package / "later.py"
    module.write_text("VALUE = 7\n")
    try:  # a new module needs no new install
        assert run(checkout.python, "-c", "from dsv4spec.later import VALUE; print(VALUE)", cwd="/",
                   PYTHONPATH=None).stdout == "7\n"
    finally:
        module.unlink()


def test_a28_two_checkouts_use_their_own_libraries(checkout, other):
    """One Python, both trees; each loads what stands in it, whichever is installed."""
    maps = USE + "print(*{line.split(None, 5)[5] for line in open('/proc/self/maps') if 'libdsv4spec' in line}, sep='')"
    for tree, stranger in ((checkout.tree, other.tree), (other.tree, checkout.tree)):
        result = use(checkout.python, tree, maps)
        assert result.returncode == 0, result.stdout
        assert f"{tree}/python/dsv4spec/lib/libdsv4spec_cpu_{LEVEL}.so" in result.stdout
        assert str(stranger) not in result.stdout and result.stdout.endswith(f" {source_hash(str(tree))}\n")


def test_a28_a_library_of_the_other_checkout_is_refused_with_both_hashes(checkout, other, tmp_path):
    tree = shutil.copytree(other.tree, tmp_path / "tree")
    mine, theirs = source_hash(str(tree)), source_hash(str(checkout.tree))
    lib, name = tree / "python" / "dsv4spec" / "lib", f"libdsv4spec_cpu_{LEVEL}.so"
    shutil.copy(checkout.tree / "python" / "dsv4spec" / "lib" / name, lib)
    result = use(checkout.python, tree)
    assert result.returncode == 1 and result.stdout.endswith(
        f"RuntimeError: mhc_post: backend cpu: {lib / name} was built from sources {theirs}, this library from {mine}; "
        "rebuild dsv4spec (pip install .)\n"), result.stdout
    shutil.copy(checkout.tree / "python" / "dsv4spec" / "lib" / "libdsv4spec.so", lib)
    result = use(checkout.python, tree)
    assert result.returncode == 1 and result.stdout.endswith(
        f"ImportError: dsv4spec: the binding was built from sources {mine}, libdsv4spec from {theirs}; "
        "rebuild with: pip install .\n"), result.stdout


def test_a28_a_checkout_whose_sources_moved_on_says_so(checkout, other, tmp_path):
    tree = shutil.copytree(other.tree, tmp_path / "tree")
    built = source_hash(str(tree))
    with open(tree / "kernels" / "cpu" / "plugin.cpp", "a") as f:
        f.write("//\n")
    result = use(checkout.python, tree)
    assert result.returncode == 0 and (f"were built from sources {built}, this checkout has {source_hash(str(tree))}; "
                                       "rebuild with: pip install -e .") in result.stdout, result.stdout
