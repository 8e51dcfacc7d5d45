# SPDX-License-Identifier: Apache-2.0
"""A closed gate (a test that skips for want of a tool of the machine) is named, and is a failure in CI."""
import shutil
import sys
from pathlib import Path

import pytest
from build_util import run

CASES = {
    "test_one.py": 'import pytest\ndef test_gate():\n    pytest.skip("gate: the moon is not up")\n'
                   'def test_plain_skip():\n    pytest.skip("not on this architecture")\ndef test_ok():\n    pass\n',
    "test_two.py": 'import pytest\npytest.skip("gate: no tide", allow_module_level=True)\n',
}


@pytest.mark.parametrize("ci", ["true", None])
def test_a_closed_gate_fails_in_ci_only(tmp_path, ci):
    shutil.copy(Path(__file__).parent / "conftest.py", tmp_path)
    for name, text in CASES.items():
        (tmp_path / name).write_text(text)
    result = run(sys.executable, "-m", "pytest", "-q", "-p", "no:cacheprovider", tmp_path, cwd=tmp_path, CI=ci)
    assert "not tested here: the moon is not up" in result.stdout and "not tested here: no tide" in result.stdout
    if ci:
        assert result.returncode != 0 and "gate: the moon is not up (a closed gate fails in CI)" in result.stdout
        (tmp_path / "test_one.py").write_text("def test_ok():\n    pass\n")  # a module that skips as a whole fails the run too
        result = run(sys.executable, "-m", "pytest", "-q", "-p", "no:cacheprovider", tmp_path, cwd=tmp_path, CI=ci)
        assert result.returncode == 1 and "1 passed" in result.stdout
        assert "not tested here: no tide (fails in CI)" in result.stdout, result.stdout
    else:
        assert result.returncode == 0 and "1 passed, 3 skipped" in result.stdout, result.stdout
