# SPDX-License-Identifier: Apache-2.0
"""Clusters on the CUDA emulator: what a launch may ask for, who meets at a barrier, and a device that has none. The
planted bugs are in test_emu_cuda.py and test_emu_cuda_shadow.py, the loads in test_ptx_conformance.py."""
import ctypes

import numpy as np
import pytest
from emu_util import ORDERS, Emulator, library, pointer

OK, INVALID_CONFIGURATION, LAUNCH_FAILURE, NOT_SUPPORTED, INVALID_CLUSTER_SIZE = 0, 9, 719, 801, 912


@pytest.fixture(scope="module")
def emu():
    emulator = Emulator(library("cuda_emu_selftest"))
    emulator.lib.selftest_active_clusters.argtypes = [ctypes.c_int, ctypes.c_int, ctypes.c_size_t]
    return emulator


@pytest.fixture(autouse=True)
def fresh(emu):
    emu.clear()


@pytest.mark.parametrize("cluster, grid, large, error, text", [
    (8, 16, 0, OK, ""), (1, 2, 0, OK, ""), (16, 16, 1, OK, ""), (3, 6, 0, OK, ""),
    (16, 16, 0, INVALID_CLUSTER_SIZE, "clusters of 16 blocks: expected 1 to 8 (cudaFuncSetAttribute raises 8 to 16)"),
    (32, 32, 1, INVALID_CLUSTER_SIZE, "clusters of 32 blocks: expected 1 to 16"),
    (4, 6, 0, INVALID_CONFIGURATION, "grid (6,1,1): expected whole clusters of 4 along x")])
def test_limits(emu, cluster, grid, large, error, text):
    assert emu.lib.selftest_cluster_launch(cluster, grid, large) == error
    assert text in emu.report() and bool(text) == bool(emu.report())
    if not error:
        [counters] = emu.counters().values()
        assert (counters["cluster"], counters["grid"]) == (cluster, [grid, 1, 1])


def test_a_cluster_barrier_needs_a_cluster(emu):
    assert emu.lib.selftest_cluster_launch(0, 1, 0) != OK
    assert "the kernel was not launched in clusters" in emu.report()


def test_threads_that_have_returned_are_not_waited_for(emu):
    for order, seed in ORDERS:
        y = emu.copy(np.zeros(64, np.float32))
        with emu.settings(order=order, seed=seed):
            assert emu.lib.selftest_uneven_cluster(pointer(y)) == OK, emu.report()
        assert y.reshape(2, 32).sum(1).tolist() == [8, 16]


def test_a_device_may_have_no_clusters(emu):
    assert emu.lib.selftest_active_clusters(16, 256, 200 * 1024) == 8
    assert emu.lib.selftest_active_clusters(8, 1024, 64 * 1024) == 32
    with emu.settings(cluster=8):
        assert emu.lib.selftest_active_clusters(16, 256, 0) == 0 and emu.lib.selftest_active_clusters(8, 256, 0) > 0
        assert emu.lib.selftest_cluster_launch(16, 16, 1) == INVALID_CLUSTER_SIZE
    emu.lib.cudaGetLastError()
    with emu.settings(capability=80):
        assert emu.lib.selftest_active_clusters(8, 256, 0) == 0
        assert emu.lib.cudaGetLastError() == OK
        assert emu.lib.selftest_cluster_launch(2, 2, 0) == NOT_SUPPORTED
        assert "no clusters before compute capability 9.0" in emu.report()


def test_old_code_on_a_new_device_has_no_clusters(emu):
    with emu.settings(code=80):
        assert emu.lib.selftest_active_clusters(8, 256, 0) == 0
        assert emu.lib.selftest_cluster_launch(2, 2, 0) == LAUNCH_FAILURE
        assert "the kernel traps: code from before sm_90 has no clusters" in emu.report()
