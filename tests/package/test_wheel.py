# SPDX-License-Identifier: Apache-2.0
"""What is in the source archive and in the wheel, and what is not."""
import base64
import csv
import hashlib
import json
import re
import shutil
import sys
import zipfile

import pytest
from build_util import ROOT, files_in, make_sdist, run, unpack
from package_util import OFFLINE
from test_build import LEVEL


@pytest.fixture(scope="module")
def contents(wheel):
    with zipfile.ZipFile(wheel.path) as archive:
        return {name: archive.read(name) for name in archive.namelist() if not name.endswith("/")}


@pytest.fixture(scope="module")
def meta(contents):
    """Files of the dist-info folder, by their short names."""
    return {name.split(".dist-info/")[1]: data for name, data in contents.items() if ".dist-info/" in name}


def test_the_archive_of_an_archive_has_the_same_files(unpacked, tmp_path):
    """Made outside git from the files of the archive itself."""
    again = unpack(make_sdist(unpacked, tmp_path / "sdist"), tmp_path / "tree")
    assert files_in(again) - {"setup.cfg"} == files_in(unpacked) - {"setup.cfg"}
    assert (again / "GIT_HASH").read_text() == (unpacked / "GIT_HASH").read_text()


def test_a26_no_network_but_the_index(wheel):
    """``wheel`` was built in a network namespace without interfaces, from packages fetched before."""
    if not OFFLINE:
        pytest.skip("gate: no network namespace can be made (unshare -rn)")
    code = "import socket; socket.create_connection(('192.0.2.1', 80), timeout=5)"
    assert "Network is unreachable" in run(*OFFLINE, sys.executable, "-c", code).stdout
    assert "Successfully built dsv4spec" in wheel.log


def test_tags_are_of_this_python_and_this_machine(wheel, meta):
    tag = f"cp{sys.version_info[0]}{sys.version_info[1]}"
    machine = "linux_x86_64" if LEVEL == "v2" else r"linux_\w+"
    assert re.fullmatch(rf"dsv4spec-[\w.]+-{tag}-{tag}-{machine}\.whl", wheel.path.name)
    text = meta["WHEEL"].decode()
    assert "Root-Is-Purelib: false" in text and re.findall("^Tag: (.*)", text, re.M) == [
        "-".join(wheel.path.stem.split("-")[2:])]


def test_the_record_is_complete(contents):
    [record] = [name for name in contents if name.endswith(".dist-info/RECORD")]
    rows = {row[0]: row[1:] for row in csv.reader(contents[record].decode().splitlines())}
    assert set(rows) == set(contents)
    for name, data in contents.items():
        if name != record:
            digest = base64.urlsafe_b64encode(hashlib.sha256(data).digest()).rstrip(b"=").decode()
            assert rows[name] == [f"sha256={digest}", str(len(data))], name


def test_licence_metadata_and_command(contents, meta):
    assert meta["licenses/LICENSE"] == (ROOT / "LICENSE").read_bytes()
    text = meta["METADATA"].decode()
    for line in ("Name: dsv4spec", "License-Expression: Apache-2.0", "Requires-Python: >=3.10", "Requires-Dist: numpy>=1.23"):
        assert f"\n{line}\n" in text, line
    assert not [line for line in re.findall("^Requires-Dist: (.*)", text, re.M) if "torch" in line and "extra ==" not in line]
    assert "dsv4spec = dsv4spec.cli:main" in meta["entry_points.txt"].decode()


def test_modules_data_headers_and_exactly_the_libraries(contents, unpacked):
    names = {name.removeprefix("dsv4spec/") for name in contents if name.startswith("dsv4spec/")}
    assert files_in(unpacked / "python" / "dsv4spec") <= names
    assert {f"include/{name}" for name in files_in(unpacked / "include")} <= names
    extension = {name for name in names if re.fullmatch(r"_C\.[\w-]+\.so", name)}
    assert len(extension) == 1
    libraries = {name for name in names if re.search(r"\.(so|a|o|pyd)\b", name)}
    assert libraries == extension | {"lib/libdsv4spec.so", f"lib/libdsv4spec_cpu_{LEVEL}.so"}
    assert not [name for name in contents if re.search(r"\.pyc$|\.ninja|CMakeCache|~$", name)]
    outside = {name.split("/")[0] for name in contents} - {"dsv4spec"}
    assert len(outside) == 1 and outside.pop().endswith(".dist-info")  # no tests, tools or cmake at the top


def test_no_path_of_the_build_is_in_it(contents, unpacked, wheel):
    """pip builds an archive in a folder of its own, under the temporary folder."""
    built_in = re.search(r'-S "?(\S*?/pip-[\w-]+)/', wheel.log) or re.search(r"(/\S*?pip-[\w-]+)/", wheel.log)
    assert built_in, wheel.log[-3000:]
    for name, data in contents.items():
        for path in (str(ROOT), str(unpacked.parent), built_in[1], "pip-build-env", "pip-req-build", "pip-wheel-"):
            assert path.encode() not in data, (name, path)


def test_no_library_looks_for_others_by_an_absolute_path(installed):
    if not shutil.which("readelf"):
        pytest.skip("gate: readelf (binutils) is not installed")
    for library in installed.package.rglob("*.so"):
        paths = re.findall(r"R(?:UN)?PATH.*\[(.*)\]", run("readelf", "-d", library).stdout)
        assert paths == (["$ORIGIN/lib"] if library.name.startswith("_C") else []), (library.name, paths)


def test_no_flag_is_of_this_machine(wheel):
    """The code is of the psABI level asked for, whatever CPU compiled it."""
    lines = [line for line in wheel.log.splitlines() if re.search(r"\s-c\s.*\.cpp", line)]
    assert len(lines) > 20, wheel.log[-3000:]
    flags = {flag for line in lines for flag in re.findall(r"\s(-m[\w=.-]+)", line)}
    assert not [flag for flag in flags if "native" in flag or flag.startswith(("-march", "-mtune", "-mcpu"))], flags
    if LEVEL == "v2":
        assert "-msse4.2" in flags and "-mavx" not in flags
    assert any("-O3" in line for line in lines)


def test_a26_installs_isolated_without_git_or_torch(installed, unpacked, wheel):
    result = run(installed.bin / "dsv4spec", "info", "--json", cwd="/", PYTHONPATH=None)
    assert result.returncode == 0, result.stdout
    info = json.loads(result.stdout)
    from dsv4spec._stamp import source_hash

    assert info["git_hash"] == (unpacked / "GIT_HASH").read_text().strip()
    assert info["source_hash"] == source_hash(str(unpacked)) and info["checkout_hash"] is info["stale"] is None
    assert info["torch"] is None and "No module named 'torch'" in info["torch_why_not"]
    assert info["cpu"]["level"] == LEVEL and f"cpu: built for {LEVEL} with" in info["summary"]
    assert [name for name, level in info["cpu"]["levels"].items() if level["built"]] == [LEVEL]
    assert info["package_dir"] == str(installed.package)
