# SPDX-License-Identifier: Apache-2.0
"""The source archive is complete and names its commit. Installing it: tests/package."""
import shutil
import subprocess

import pytest
from build_util import ROOT, files_in, make_sdist, unpack
from test_build import _stamp


@pytest.fixture(scope="module")
def unpacked(tmp_path_factory):
    return unpack(make_sdist(ROOT, tmp_path_factory.mktemp("sdist")), tmp_path_factory.mktemp("unpacked"))


def test_source_archive_is_complete(unpacked):
    names = files_in(unpacked)
    assert not [n for n in names if n.endswith((".so", ".pyc"))]
    if (ROOT / ".git").exists() and shutil.which("git"):
        tracked = subprocess.run(["git", "ls-files"], cwd=ROOT, text=True, capture_output=True, check=True).stdout
        missing = set(tracked.split("\n")) - {"", ".gitignore"} - names
        assert not missing, f"MANIFEST.in leaves out {sorted(missing)}"


def test_source_archive_names_its_commit_and_has_the_same_hash(unpacked, tmp_path):
    here, there = _stamp(ROOT, tmp_path / "here.h"), _stamp(unpacked, tmp_path / "there.h")
    assert there == here
