# SPDX-License-Identifier: Apache-2.0
"""The asan flavour of the AscendC emulator: AddressSanitizer and UndefinedBehaviorSanitizer over the kernels' plain C++ and
over the emulator. What they find ends the process, so each run is one of its own."""
import re
import subprocess
import sys
from pathlib import Path

import pytest
from emu_util import flavour_environment, library
from test_ascend_kernels_hard import KERNELS

FOUND = {"array_index": "stack-buffer-overflow|index 8 out of bounds", "shift_width": "shift exponent 40 is too large"}
CASE = """
import ctypes
emulator = ctypes.CDLL({path!r})
print(emulator.selftest_run(b{case!r}, {plant}, None, None, None, None, ctypes.c_long(8), 1))
"""


def run(*command):
    environment = flavour_environment("asan", "dsv4spec_ascend_emu")
    return subprocess.run([sys.executable, *command], env=environment, text=True, capture_output=True)


def run_case(case, plant):
    return run("-c", CASE.format(path=str(library("ascend_emu_selftest", "asan")), case=case, plant=plant))


def test_every_case_of_every_op():
    out = run(str(Path(__file__).with_name("ascend_sanitized.py")))
    assert out.returncode == 0, out.stdout[-1000:] + out.stderr[-4000:]
    assert [line[3:] for line in out.stdout.splitlines() if line.startswith("ok ")] == KERNELS


@pytest.mark.parametrize("case", FOUND)
def test_a_planted_mistake_ends_the_process_with_its_line(case):
    assert run_case(case, 0).stdout == "0\n"
    out = run_case(case, 1)
    assert out.returncode != 0 and re.search(FOUND[case], out.stderr), out.stderr[-3000:]
    assert re.search(r"planted_sanitized\.cpp:\d+", out.stderr), out.stderr[-3000:]
