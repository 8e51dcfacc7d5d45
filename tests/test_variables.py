# SPDX-License-Identifier: Apache-2.0
"""The table of variables names exactly those that the sources name, where they are read, and is the documentation."""
import re
import shutil
import subprocess

from build_util import ROOT

from dsv4spec.variables import KINDS, TABLE, markdown, settings

ROWS = {row.name: row for row in TABLE}
FOLDERS = ("csrc", "include", "kernels", "cmake", "python", "tests", "scripts", "tools", "examples", ".ci")
FILES = ("CMakeLists.txt", "setup.py", "Makefile", "pyproject.toml")
TEXT = (".py", ".cpp", ".h", ".c", ".cu", ".cmake", ".txt", ".sh", ".def", ".in", ".toml")
NAME = re.compile(r"(?<![A-Za-z0-9_])D?(DSV4SPEC_[A-Z0-9_]*[A-Z0-9])\b")  # -DDSV4SPEC_...: an option of CMake


def _sources():
    """Source files by their path in the tree: those of git, in an archive all."""
    if (ROOT / ".git").exists() and shutil.which("git"):
        tracked = subprocess.run(["git", "ls-files"], cwd=ROOT, text=True, capture_output=True, check=True).stdout
        names = tracked.splitlines()
    else:
        names = [str(p.relative_to(ROOT)) for folder in FOLDERS for p in (ROOT / folder).rglob("*")] + list(FILES)
    for name in names:
        path = ROOT / name
        if path.is_file() and (name in FILES or (name.split("/")[0] in FOLDERS and name.endswith((*TEXT, "run")))):
            yield name, path.read_text(errors="replace")


def test_the_table_names_exactly_the_variables_of_the_sources():
    places = {}
    for name, text in _sources():
        if name == "python/dsv4spec/variables.py":
            continue
        guards = set(re.findall(r"#ifndef (DSV4SPEC_\w+_H_?)\b", text))
        for variable in set(NAME.findall(text)) - {guard.rstrip("_") for guard in guards} - guards:
            places.setdefault(variable, []).append(name)
    assert len(places) > 10
    missing = {variable: names for variable, names in places.items() if variable not in ROWS}
    assert not missing, f"not in python/dsv4spec/variables.py: {missing}"
    gone = {name for name in ROWS if name.startswith("DSV4SPEC_")} - set(places)
    assert not gone, f"in python/dsv4spec/variables.py, but in no source: {gone}"


def test_every_row_is_whole_and_its_files_read_it():
    assert len(ROWS) == len(TABLE), "a row stands twice"
    for row in TABLE:
        assert row.kind in KINDS and row.default and row.meaning and row.read_in, row
        assert row.name.startswith("DSV4SPEC_") != (row.kind == "foreign"), row
        for file in row.read_in:
            assert re.search(rf"{row.name}\b", (ROOT / file).read_text()), f"{file} does not read {row.name}"


def test_the_document_is_the_table():
    assert (ROOT / "docs" / "environment.md").read_text() == markdown(), "python -m dsv4spec.variables writes it"


def test_settings_are_those_set(monkeypatch):
    for name in settings():
        monkeypatch.delenv(name)
    assert settings() == {}
    monkeypatch.setenv("DSV4SPEC_CPU_LEVEL", "v3")
    monkeypatch.setenv("DSV4SPEC_" + "MISSPELT", "1")
    monkeypatch.setenv("CUDA_EMU_SEED", "5")
    monkeypatch.setenv("MAX_JOBS", "2")
    monkeypatch.setenv("SOME_SECRET", "2")
    assert settings() == {"CUDA_EMU_SEED": "5", "DSV4SPEC_CPU_LEVEL": "v3", "DSV4SPEC_" + "MISSPELT": "1",
                          "MAX_JOBS": "2"}
