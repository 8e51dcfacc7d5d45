# SPDX-License-Identifier: Apache-2.0
"""The whole worker loop with the AscendC kernels, run by their emulator, in eager, lazy and four shuffled orders: the
tests of worker_cases.py."""
import pytest
from ascend_util import ORDERS, AscendEmulator
from worker_cases import *  # noqa: F403
from worker_cases import Loop


@pytest.fixture(scope="module")
def loop(tmp_path_factory):
    return Loop("ascend_emu", "ascendc", AscendEmulator("dsv4spec_ascend_emu"), tuple(ORDERS[1:]),
                tmp_path_factory.mktemp("ascend_emu"))
