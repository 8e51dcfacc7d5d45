# SPDX-License-Identifier: Apache-2.0
"""The whole worker loop with the CUDA kernels, run by their emulator: the tests of worker_cases.py."""
import pytest
from emu_util import ORDERS, Emulator, library
from worker_cases import *  # noqa: F403
from worker_cases import Loop


@pytest.fixture(scope="module")
def loop(tmp_path_factory):
    return Loop("cuda_emu", "cuda", Emulator(library("dsv4spec_cuda_emu")), (ORDERS[1], ORDERS[2], ORDERS[6]),
                tmp_path_factory.mktemp("cuda_emu"))
