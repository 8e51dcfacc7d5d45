# SPDX-License-Identifier: Apache-2.0
"""The op tests on the AscendC emulator in every other order of execution: lazy, and four shuffled ones. (The eager order
is their default; the worker loop's orders are in test_worker_ascend_emu.py.)"""
import os
import re
import subprocess
import sys
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import pytest
from ascend_util import LAZY, ORDERS, SHUFFLED
from emu_util import library

from dsv4spec.ops import OPS
from dsv4spec.ops.table import NO_KERNEL

HERE = Path(__file__).parent
OTHERS = ORDERS[1:]
MORE = ["swa_rows", "swa_tree_mask", "large_batches", "float16", "packed_rows"]
FILES = [HERE / f"test_{name}.py" for name in sorted(set(OPS) - NO_KERNEL["ascendc"]) + MORE]


@pytest.fixture(scope="module")
def runs():
    """(order, seed) -> what a process of its own says; two at a time."""
    library("dsv4spec_ascend_emu")

    def run(setting):
        environment = {k: v for k, v in os.environ.items() if not k.startswith("DSV4SPEC_TEST_")}
        environment |= {"DSV4SPEC_TEST_BACKENDS": "ascend_emu", "OMP_NUM_THREADS": "1",
                        "ASCEND_EMU_ORDER": str(setting[0]), "ASCEND_EMU_SEED": str(setting[1])}
        command = [sys.executable, "-m", "pytest", "-q", "-p", "no:cacheprovider", "-k", "ascend_emu", *map(str, FILES)]
        return subprocess.run(command, env=environment, cwd=HERE.parent, text=True, capture_output=True)

    with ThreadPoolExecutor(2) as pool:
        yield dict(zip(OTHERS, pool.map(run, OTHERS)))


def test_five_other_orders():
    assert len(OTHERS) == 5 and [order for order, _ in OTHERS] == [LAZY] + [SHUFFLED] * 4
    assert all(path.exists() for path in FILES)


@pytest.mark.parametrize("setting", OTHERS, ids=lambda s: f"order {s[0]} seed {s[1]}")
def test_op_tests(setting, runs):
    out = runs[setting]
    assert out.returncode == 0, out.stdout[-6000:] + out.stderr[-2000:]
    counts = {what: int(n) for n, what in re.findall(r"(\d+) (\w+)", out.stdout.splitlines()[-1])}
    assert counts["passed"] > 2000 and "skipped" not in counts, out.stdout[-2000:]
