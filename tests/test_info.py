# SPDX-License-Identifier: Apache-2.0
"""`dsv4spec info --json`: the keys and types that others may rely on, and what it says of a stale checkout (A28)."""
import json
import os
import shutil
import subprocess
import sys
from pathlib import Path

import dsv4spec
import pytest
from build_util import ROOT, copy_sources, run
from test_build import _stamp
from test_import import PACKAGE

from dsv4spec import _C, _machine, cli, info
from dsv4spec._stamp import source_hash

TEXT, NUMBER, FLAG, MAYBE = str, int, bool, (str, type(None))
SCHEMA = {  # [T]: a list of T; {None: T}: any names, each with T
    "schema": NUMBER, "version": TEXT, "git_hash": TEXT, "source_hash": TEXT, "checkout_hash": MAYBE, "stale": MAYBE,
    "abi_version": NUMBER, "summary": TEXT, "build": {"compiler": TEXT, "options": {None: TEXT}}, "package_dir": TEXT,
    "libraries": {None: NUMBER}, "python": TEXT, "executable": TEXT, "platform": TEXT,
    "system": {"name": TEXT, "kernel": TEXT, "machine": TEXT, "libc": TEXT}, "numpy": TEXT, "torch": MAYBE,
    "torch_why_not": MAYBE, "torch_cuda": MAYBE, "packages": {None: MAYBE}, "drivers": {"nvidia": MAYBE, "ascend": MAYBE},
    "cpu": {"model": TEXT, "cores": NUMBER, "threads": NUMBER, "level": MAYBE, "forced": MAYBE,
            "levels": {None: {"built": FLAG, "runs_here": FLAG}}, "flags": [TEXT]},
    "variables": {None: TEXT}, "unknown_variables": [TEXT],
    "backends": {None: {"loadable": FLAG, "why_not": MAYBE}}, "ops": {None: {None: FLAG}},
}
LOADED = {"toolchain": TEXT, "archs": TEXT, "ops": [TEXT], "float16": [TEXT]}  # more of a backend that is loadable


def conforms(value, schema, where):
    if isinstance(schema, list):
        assert isinstance(value, list), where
        for item in value:
            conforms(item, schema[0], where)
    elif isinstance(schema, dict):
        assert isinstance(value, dict), where
        if None not in schema:
            assert set(value) == set(schema), (where, set(value) ^ set(schema))
        for key, item in value.items():
            conforms(item, schema.get(key, schema.get(None)), f"{where}.{key}")
    else:
        assert isinstance(value, schema) and (schema is NUMBER) <= (not isinstance(value, bool)), (where, value)


def test_the_schema(capsys, monkeypatch):
    monkeypatch.setenv("DSV4SPEC_CPU_LEVEL", "")
    monkeypatch.setenv("DSV4SPEC_" + "CPU_LEVLE", "v3")
    assert cli.main(["info", "--json"]) == 0
    report = json.loads(capsys.readouterr().out)
    assert report["schema"] == info.SCHEMA == 1
    for name, row in report["backends"].items():
        if row["loadable"]:
            conforms({key: row.pop(key) for key in LOADED}, LOADED, f"backends.{name}")
    conforms(report, SCHEMA, "info")
    assert report["unknown_variables"] == ["DSV4SPEC_" + "CPU_LEVLE"] and report["variables"]["DSV4SPEC_CPU_LEVEL"] == ""
    assert report["build"]["options"]["CMAKE_BUILD_TYPE"] and "DSV4SPEC_CPU_LEVELS" in report["build"]["options"]
    assert {"lib/libdsv4spec.so"} < set(report["libraries"]) and report["cpu"]["flags"]
    assert cli.main(["info"]) == 0
    assert "DSV4SPEC_" + "CPU_LEVLE=v3: not a variable of dsv4spec" in capsys.readouterr().out


def test_drivers_are_told_by_what_they_leave_behind(tmp_path, monkeypatch):
    nvidia, ascend = tmp_path / "version", tmp_path / "version.info"
    monkeypatch.setattr(_machine, "_DRIVERS", {name: (str(path), _machine._DRIVERS[name][1])
                                               for name, path in (("nvidia", nvidia), ("ascend", ascend))})
    assert _machine.drivers() == {"nvidia": None, "ascend": None}
    nvidia.write_text("NVRM version: NVIDIA UNIX x86_64 Kernel Module  580.95.05  Tue Sep 23 10:11:16 UTC 2025\n"
                      "GCC version:  gcc version 12.3.0\n")
    ascend.write_text("Version=25.5.0\nascendhal_version=7.35.23\n")
    assert _machine.drivers() == {"nvidia": "580.95.05", "ascend": "25.5.0"}
    nvidia.write_text("NVRM version: NVIDIA UNIX Open Kernel Module for x86_64  570.86.15  Release Build\n")
    assert _machine.drivers()["nvidia"] == "570.86.15"


def test_the_hash_in_python_is_that_of_the_build(tmp_path):
    tree = copy_sources(tmp_path / "tree")
    (tree / "csrc" / "__pycache__").mkdir()
    for name in ("csrc/.capi.cpp.swp", "csrc/capi.cpp~", "csrc/capi.cpp.orig", "csrc/__pycache__/x.py"):
        (tree / name).write_text("not a source")
    assert source_hash(str(tree)) == _stamp(tree, tmp_path / "stamp.h")["SOURCE_HASH"]
    if PACKAGE.parents[1] == ROOT:  # else an installed package, which was compared when it was built
        assert info.build_info()["checkout_hash"] == source_hash(str(ROOT))
    else:
        assert info.build_info()["checkout_hash"] is None


@pytest.mark.parametrize("edited", [False, True])
def test_a28_a_checkout_with_libraries_of_other_sources_says_so(tmp_path, edited):
    """The two checkouts of A28: this build's package stands in a tree of other sources."""
    tree = copy_sources(tmp_path / "tree")
    shutil.copytree(PACKAGE, tree / "python" / "dsv4spec", dirs_exist_ok=True,
                    ignore=shutil.ignore_patterns("__pycache__", "*.py", "*.safetensors", "*_emu*", "emu_*", "include"))
    if edited:
        with open(tree / "csrc" / "capi.cpp", "a") as f:
            f.write("//\n")
    code = "import dsv4spec; from dsv4spec.info import build_info; print(build_info()['stale'])"
    result = run(sys.executable, "-c", code, cwd="/", PYTHONPATH=tree / "python")
    here = source_hash(str(tree))
    sentence = (f"dsv4spec: the libraries in {tree / 'python' / 'dsv4spec'} were built from sources {_C.source_hash}, "
                f"this checkout has {here}; rebuild with: pip install -e .")
    assert result.returncode == 0, result.stdout
    if edited:
        assert here != _C.source_hash and f"RuntimeWarning: {sentence}\n" in result.stdout
        assert result.stdout.endswith(sentence + "\n")
    elif here == _C.source_hash:  # not where the very package under test is stale
        assert result.stdout == "None\n"


def test_a_bad_torch_is_a_reason_not_an_error(monkeypatch):
    monkeypatch.setitem(sys.modules, "torch", None)
    report = dsv4spec.build_info()
    assert report["torch"] is None and "torch" in report["torch_why_not"] and report["torch_cuda"] is None


@pytest.mark.skipif(not Path("/dev/full").exists(), reason="no /dev/full")
def test_output_that_cannot_be_written_is_one_line():
    with open("/dev/full", "w") as full:
        done = subprocess.run([sys.executable, "-m", "dsv4spec", "info", "--json"], stdout=full, stderr=subprocess.PIPE,
                              text=True, env=os.environ | {"PYTHONPATH": os.pathsep.join(p for p in sys.path if p)})
    assert done.returncode == 1 and done.stderr == "dsv4spec: error: [Errno 28] No space left on device\n"
