# SPDX-License-Identifier: Apache-2.0
"""The CUDA emulator itself: it finds planted bugs, says where they are, survives them, and keeps CUDA's promises."""
import ctypes
import re
import subprocess
import sys
import threading

import numpy as np
import pytest
from emu_util import FIFO, LIFO, ORDERS, WARP_PRIORITY, Emulator, library, pointer

LAUNCH_FAILURE, INVALID_VALUE, INVALID_CONFIGURATION = 719, 1, 9
# Planted bug -> what the report of the default order says; None: no report, but wrong values.
FOUND = {
    1: None,
    2: r"barrier_for_some<true>: block \(0,0,0\) thread \(64,0,0\): the thread returned while 64 others of the block "
       r"wait at __syncthreads \(planted_order.cu:\d+\)",
    3: r"scale_rows<true>: block \(1,0,0\) thread \(64,0,0\): read out of bounds at address 0x\w+: offset 768 of an "
       r"allocation of 768 bytes \(planted_memory.cu:\d+\)",
    5: None,
    6: None,
    8: r"split_warp<true>: .* divergent warp: __shfl_xor_sync \(planted_order.cu:\d+\) meets __shfl_xor_sync "
       r"\(planted_order.cu:\d+\), mask ffffffff",
    12: None,
    14: r"fill_shared: 103424 bytes of dynamic shared memory: expected at most 49152",
    15: r"write outside dynamic shared memory: offset 4000 of 4000 bytes, found after block 0 of .*fill_shared",
    17: r"fill_shared: .* write out of bounds .*: offset 4096 of 4096 bytes of dynamic shared memory",
    18: r"early_return<true>: .* __syncthreads \(planted_order.cu:\d+\): 32 threads of the block have returned",
    26: r"block \(0,0,0\) thread \(0,0,0\): cluster_load .*: no cluster_sync has made sure that the other block runs "
        r"\(.*planted_cluster.cu:\d+\)",
    27: r"block \(1,0,0\) thread \(63,0,0\): cluster_load .*: block 0 of the cluster has returned",
    28: None,
    29: None,
    30: r"thread \(63,0,0\): cluster_load .*: offset 256 of 256 bytes of dynamic shared memory",
    31: r"block \(3,0,0\) thread \(63,0,0\): cluster_load .*: block 4 of a cluster of 4",
    40: r"mbarrier_arrive .*: more than 1 arrivals in a phase",
    41: None,
    42: r"deadlock in block 0 .* wait for mbarrier_wait .*planted_bulk.cu:\d+\); the mbarrier at offset 512 misses 0 "
        r"arrivals and 16 bytes in phase 0",
    43: r"deadlock in block 0 .*; the mbarrier at offset 512 misses 0 arrivals and -16 bytes in phase 0",
    44: r"mbarrier_arrive .*: more than 1 arrivals in a phase",
    45: r"block \(1,0,0\) thread .*: the block returned while the cp.async.bulk",
    46: r"cp.async.bulk .*: no fence.mbarrier_init has followed the mbarrier of block 0 of the cluster \(.*planted_bulk.cu:\d+\)",
    47: r"cp.async.bulk .*: no cluster barrier has made sure that block 1 of the cluster runs",
    49: r"cp.async.bulk .*: to 0x\w+4 from 0x\w+, 128 bytes: expected multiples of 16",
    50: r"cp.async.bulk .*: offset 896 of 528 bytes of dynamic shared memory",
    51: r"cp.async.bulk .*: mask 31 in a cluster of 4",
    52: r"the mbarrier has been overwritten",
    53: r"deadlock in block 0 .*; the mbarrier at offset 512 misses 1 arrivals and -512 bytes in phase 1",
    54: r"block \(7,0,0\) thread \(0,0,0\): read out of bounds at address 0x\w+: offset 2111 of an allocation of 2048 bytes, "
        r"in cp.async.bulk \(.*planted_bulk.cu:\d+\)",
    55: r"the thread returned between its arrival at the cluster's barrier and its wait",
    56: r"cp.async.bulk .*: no mbarrier has been initialised in block \d of the cluster",
    57: None,
    58: r"deadlock in block 0 .*; the mbarrier at offset 512 misses 0 arrivals and 512 bytes in phase 0",
}
ONLY_OTHER_ORDERS = [7]
OTHER_FLAVOURS = [4, 10, 11, 13, 16, 20, 21, 22, 23, 24, 25, 32, 48]  # races and misaligned accesses need the checking flavours


@pytest.fixture(scope="module")
def emu():
    emulator = Emulator(library("cuda_emu_selftest"))
    emulator.lib.selftest_planted.restype = ctypes.c_long
    return emulator


@pytest.fixture(autouse=True)
def fresh(emu):
    emu.clear()


@pytest.mark.parametrize("number", sorted([*FOUND, *ONLY_OTHER_ORDERS, *OTHER_FLAVOURS]))
def test_the_correct_kernel_is_clean_in_every_order(emu, number):
    for order, seed in ORDERS:
        for threads in (1, 2):
            with emu.settings(order=order, seed=seed, threads=threads):
                assert emu.lib.selftest_planted(number, 0) == 0, (order, seed, threads, emu.report())
    assert emu.report() == ""


@pytest.mark.parametrize("number", sorted(FOUND))
def test_a_planted_bug_is_found(emu, number):
    wrong = emu.lib.selftest_planted(number, 1)
    if FOUND[number] is None:
        assert wrong > 0 and emu.report() == ""
    else:
        assert wrong == -1
        assert re.search(FOUND[number], emu.report()), emu.report()
    assert emu.lib.selftest_planted(number, 0) == 0, "the next launch is not troubled"


def test_a_buffer_reused_too_early_is_found_in_other_orders(emu):
    assert emu.lib.selftest_planted(7, 1) == 0  # the default order cannot see it
    for order, seed in ORDERS[1:]:
        with emu.settings(order=order, seed=seed):
            assert emu.lib.selftest_planted(7, 1) > 0, (order, seed)


@pytest.mark.parametrize("key, number", [("poison", 5), ("defer", 6)])
def test_poison_and_deferred_copies_are_what_finds_them(emu, key, number):
    with emu.settings(poison=0, defer=0):
        assert emu.lib.selftest_planted(5, 0) == 0  # leaves zeros in shared memory
        assert emu.lib.selftest_planted(number, 1) <= (28 if key == "poison" else 0)
    assert emu.lib.selftest_planted(number, 1) > 0


def test_strict_off_allows_what_devices_allow(emu):
    with emu.settings(strict=0):
        wrong = emu.lib.selftest_planted(18, 1)
    assert wrong == 32 and emu.report() == ""  # only what the warp that returned has left out


# ------------------------------------------------------------------------------------------------------ faults
def test_faults_are_reported_and_survived(emu):
    store = emu.lib.selftest_store
    store.argtypes = [ctypes.c_void_p, ctypes.c_long]
    memory = emu.lib.cuda_emu_malloc(64)
    place = r"store: block \(0,0,0\) thread \(0,0,0\): "
    source = r" \(semantics.cu:\d+\)"
    assert store(memory, 63) == 0
    for address, offset, text in (
            (memory, 64, "write out of bounds at address 0x\\w+: offset 64 of an allocation of 64 bytes"),
            (None, 8, "write through a null pointer at address 0x8"),
            (1 << 62, 0, "misaligned vector access, or an address that no memory can have")):
        assert store(address, offset) == LAUNCH_FAILURE
        assert re.search(place + text + (source if "misaligned" not in text else ""), emu.report()), emu.report()
    assert emu.lib.cuda_emu_free(memory) == 0
    assert store(memory, 0) == LAUNCH_FAILURE and "offset 0 of a freed allocation of 64 bytes" in emu.report()
    assert emu.lib.cuda_emu_free(memory) == -1
    out = emu.array(1, np.float32)
    assert emu.lib.selftest_deep(pointer(out), 100) == LAUNCH_FAILURE
    assert "the thread's stack is full (65536 bytes)" in emu.report()
    assert emu.lib.selftest_deep(pointer(out), 1) == 0 and out[0] == 1


def test_memory_can_end_at_the_last_byte(emu):
    with emu.settings(align=1):
        memory = emu.lib.cuda_emu_malloc(33)
    emu.lib.selftest_store.argtypes = [ctypes.c_void_p, ctypes.c_long]
    assert emu.lib.selftest_store(memory, 32) == 0
    assert emu.lib.selftest_store(memory, 33) == LAUNCH_FAILURE


def test_a_copy_out_of_bounds_names_the_copy(emu):
    x, y = emu.copy(np.arange(128, dtype=np.float32)), emu.array(32, np.float32)
    assert emu.lib.selftest_copy(pointer(x), pointer(y), 0) == 0 and (y == np.arange(32)).all()
    assert emu.lib.selftest_copy(pointer(x), pointer(y), 4) == LAUNCH_FAILURE
    assert re.search(r"thread \(31,0,0\): read out of bounds .* offset 512 of an allocation of 512 bytes, in "
                     r"cp.async \(ptx.cuh:\d+, from semantics.cu:\d+\)", emu.report()), emu.report()
    assert emu.lib.selftest_copy(pointer(x), pointer(y), 1) == LAUNCH_FAILURE
    assert "expected multiples of 16" in emu.report()


def test_deadlocks_are_reported(emu):
    out = emu.array(1, np.int32)
    assert emu.lib.selftest_no_way_out(pointer(out)) == LAUNCH_FAILURE
    assert re.search(r"deadlock in block 0 of .*no_way_out: 0 threads have returned; 16 \(the first: thread 0\) wait "
                     r"for __syncthreads \(semantics.cu:\d+\); 16 \(the first: thread 16\) wait for __syncwarp",
                     emu.report())


@pytest.mark.parametrize("threads, mask, text", [
    (32, 0xfffe, "the calling lane 0 is not in the mask 0000fffe"),
    (16, 0x1ffff, "lanes 00010000 of the mask 0001ffff have returned or do not exist")])
def test_masks_are_checked(emu, threads, mask, text):
    out = emu.array(32, np.int32)
    assert emu.lib.selftest_odd_mask(threads, ctypes.c_uint(mask), pointer(out)) == LAUNCH_FAILURE
    assert text in emu.report()


# ------------------------------------------------------------------------------------------------------ limits
@pytest.mark.parametrize("shape, text", [
    ((1, 1, 1, 1025, 1, 1), "block"), ((1, 1, 1, 32, 33, 1), "block"), ((1, 1, 1, 1, 1, 65), "block"),
    ((1, 1, 1, 0, 1, 1), "block"), ((1, 65536, 1, 1, 1, 1), "grid"), ((0, 1, 1, 1, 1, 1), "grid")])
def test_launch_limits(emu, shape, text):
    assert emu.lib.selftest_indices((ctypes.c_uint * 6)(*shape), None) == INVALID_CONFIGURATION
    assert f"indices: {text} (" in emu.report()
    assert emu.lib.cudaGetLastError() == INVALID_CONFIGURATION and emu.lib.cudaGetLastError() == 0


def test_shared_memory_limit(emu):
    x = emu.copy(np.zeros(1, np.float32))
    emu.lib.selftest_shared.argtypes = [ctypes.c_void_p, ctypes.c_size_t]
    assert emu.lib.selftest_shared(x.ctypes.data, 227 * 1024) == 0 and x[0] == 1
    assert emu.lib.selftest_shared(x.ctypes.data, 227 * 1024 + 16) == INVALID_VALUE and x[0] == 1


def test_environment_sets_the_defaults_and_refuses_nonsense():
    path = library("cuda_emu_selftest")
    code = f"import ctypes; l = ctypes.CDLL({str(path)!r}); print(l.selftest_planted(7, 1)); " \
           "l.cuda_emu_report.restype = ctypes.c_char_p; print(l.cuda_emu_report().decode())"
    for environment, expected in (({}, "0\n"), ({"CUDA_EMU_ORDER": str(LIFO)}, "127\n"),
                                  ({"CUDA_EMU_ORDER": "4"},
                                   "-1\nCUDA_EMU_ORDER: expected a number from 0 to 3, got 4")):
        out = subprocess.run([sys.executable, "-c", code], env=environment, text=True, capture_output=True)
        assert out.returncode == 0 and out.stdout.startswith(expected), (environment, out)


def test_settings_out_of_range_are_refused(emu):
    for key, value in ((b"order", 4), (b"threads", 0), (b"speed", 1)):
        assert emu.lib.cuda_emu_configure(key, value) == -1


def test_launches_are_counted(emu):
    seen = emu.copy(np.zeros(2 * 3 * 4 * 5, np.int32))
    assert emu.lib.selftest_indices((ctypes.c_uint * 6)(2, 3, 1, 4, 5, 1), pointer(seen)) == 0
    none = dict(collectives=0, mma=0, ldmatrix=0, barriers=0, cluster_barriers=0)
    assert emu.counters() == {
        "indices": {"launches": 1, "grid": [2, 3, 1], "block": [4, 5, 1], "smem": 0, "blocks": 6, **none}}


@pytest.mark.parametrize("threads", [1, 3])
def test_instructions_of_warps_and_barriers_are_counted(emu, threads):
    """Of warps and blocks, not of threads; added up over launches and over the OS threads that run them."""
    ints, order = (emu.copy(np.arange(n, dtype=np.int32)) for n in (128, 32))
    zeros, matrix = [emu.copy(np.zeros(4096, np.int32)) for _ in range(3)], emu.copy(np.zeros(512, np.uint32))
    with emu.settings(threads=threads):
        for _ in range(2):
            assert emu.lib.selftest_barrier_votes(128, pointer(ints), pointer(zeros[0])) == 0
        assert emu.lib.selftest_shuffle(0, 1, 32, ctypes.c_uint(0xffffffff), pointer(ints), pointer(zeros[0])) == 0
        assert emu.lib.selftest_mma(pointer(matrix), pointer(matrix), pointer(zeros[0])) == 0
        assert emu.lib.selftest_ldmatrix(pointer(matrix), 8, pointer(order), 0, pointer(zeros[1])) == 0
        assert emu.lib.selftest_clusters(2, 4, 1, pointer(zeros[0]), pointer(zeros[1]), pointer(zeros[2])) == 0
    kept = ("collectives", "mma", "ldmatrix", "barriers", "cluster_barriers")
    counted = {name: {k: c[k] for k in kept if c[k]} for name, c in emu.counters().items()}
    assert counted["barrier_votes"] == {"barriers": 6} and counted["shuffle"] == {"collectives": 1}
    assert counted["mma"] == {"collectives": 1, "mma": 1} and counted["load_matrices"] == {"collectives": 1, "ldmatrix": 1}
    assert counted["clusters"] == {"cluster_barriers": 8} and emu.counters()["clusters"]["blocks"] == 4


def test_any_thread_may_launch(emu):
    seen = [emu.copy(np.zeros(64 * 40, np.int32)) for _ in range(6)]
    results = []

    def work(a):
        for _ in range(20):
            results.append(emu.lib.selftest_indices((ctypes.c_uint * 6)(40, 1, 1, 64, 1, 1), pointer(a)))
    callers = [threading.Thread(target=work, args=(a,)) for a in seen]
    with emu.settings(threads=2, order=WARP_PRIORITY):
        [t.start() for t in callers], [t.join() for t in callers]
    assert results == [0] * 120 and all((a == 20).all() for a in seen)
    assert emu.lib.cuda_emu_configure(b"order", FIFO) == 0
