# SPDX-License-Identifier: Apache-2.0
"""What CUDA promises of collectives, atomics and indices, computed here from its documentation, for every order."""
import ctypes

import numpy as np
import pytest
from emu_util import ORDERS, Emulator, library, pointer

ALL = 0xFFFFFFFF


@pytest.fixture(scope="module")
def base():
    return Emulator(library("cuda_emu_selftest"))


@pytest.fixture(params=ORDERS, ids=lambda p: f"order{p[0]}-{p[1]}")
def emu(base, request):
    with base.settings(order=request.param[0], seed=request.param[1]):
        yield base


def _source(kind, lane, argument, width):
    segment, sub = lane // width * width, lane % width
    if kind == 0:
        return segment + argument % width
    if kind == 1:
        return lane - argument if sub >= argument else lane
    if kind == 2:
        return lane + argument if sub + argument < width else lane
    # xor: a lane of an earlier segment may be read, one of a later segment may not
    return lane ^ argument if (lane ^ argument) < segment + width else lane


def test_shuffles(emu):
    values = np.arange(100, 132, dtype=np.int32)
    for kind in range(4):
        for argument in (0, 1, 3, 5, 8, 16, 31):
            for width in (32, 16, 4, 1):
                out = np.zeros(32, np.int32)
                mask = ctypes.c_uint(ALL)
                assert emu.lib.selftest_shuffle(kind, argument, width, mask, pointer(values), pointer(out)) == 0
                expected = [100 + _source(kind, lane, argument, width) for lane in range(32)]
                assert out.tolist() == expected, (kind, argument, width)


def test_shuffle_of_some_lanes(emu):
    values, out = np.arange(32, dtype=np.int32), np.full(32, -5, np.int32)
    mask = 0x0000FFF0
    assert emu.lib.selftest_shuffle(2, 2, 32, ctypes.c_uint(mask), pointer(values), pointer(out)) == 0
    inside = [lane + 2 if mask >> (lane + 2) & 1 else -1 for lane in range(4, 16)]  # -1: CUDA gives no value there
    assert out.tolist() == [-5] * 4 + inside + [-5] * 16


@pytest.mark.parametrize("mask", [ALL, 0x5A5A00FF, 1])
def test_votes_and_reductions(emu, mask):
    values, out = np.array([(7 * i) % 11 - 4 for i in range(32)], np.int32), np.zeros((32, 10), np.int32)
    assert emu.lib.selftest_votes(ctypes.c_uint(mask), pointer(values), pointer(out)) == 0
    groups = [g for g in ([i for i in range(32) if mask >> i & 1], [i for i in range(32) if not mask >> i & 1]) if g]
    for group in groups:
        v = values[group].astype(np.int64)
        positive = sum(1 << i for i in group if values[i] > 0)
        for lane in group:
            same = sum(1 << i for i in group if values[i] == values[lane])
            expected = [positive, int((v > 0).any()), int((v > 0).all()), same, v.sum(), v.min(), v.max(),
                        np.bitwise_and.reduce(v), np.bitwise_or.reduce(v), np.bitwise_xor.reduce(v)]
            assert (out[lane].astype(np.int64) & ALL).tolist() == [int(e) & ALL for e in expected]


@pytest.mark.parametrize("threads", [1, 33, 96, 1024])
def test_barrier_votes(emu, threads):
    for values in (np.ones(threads, np.int32), np.zeros(threads, np.int32), np.arange(threads, dtype=np.int32) % 3):
        out = np.zeros((threads, 3), np.int32)
        assert emu.lib.selftest_barrier_votes(threads, pointer(values), pointer(out)) == 0
        assert (out == [int((values != 0).sum()), int((values != 0).all()), int((values != 0).any())]).all()


@pytest.mark.parametrize("os_threads", [1, 3])
def test_atomics(emu, os_threads):
    blocks = 5
    n = blocks * 64
    ints = np.zeros(9, np.int32)
    ints[6] = -1
    rounds, total, most = np.array([0, 3], np.uint32), np.zeros(1, np.float32), np.zeros(1, np.uint64)
    with emu.settings(threads=os_threads):
        assert emu.lib.selftest_atomics(blocks, pointer(ints), pointer(rounds), pointer(total), pointer(most)) == 0
    assert ints.tolist() == [n * (n - 1) // 2, -n, -(n - 1), n - 1, 0x7FFFFFFF, 0, -(1 << 31), 77, 1]
    assert rounds.tolist() == [n % 7, (3 - n) % 7]
    assert total[0] == n / 2 and most[0] == (n - 1) << 33


@pytest.mark.parametrize("shape", [(1, 1, 1, 1, 1, 1), (3, 2, 4, 8, 3, 2), (17, 1, 1, 1024, 1, 1),
                                   (1, 5, 2, 2, 2, 64)])
def test_every_thread_runs_once(emu, shape):
    seen = np.zeros(int(np.prod(shape)), np.int32)
    assert emu.lib.selftest_indices((ctypes.c_uint * 6)(*shape), pointer(seen)) == 0
    assert (seen == 1).all()


def test_last_block_sees_the_others(emu):
    for os_threads in (1, 2):
        parts, ticket, total = np.full(9, np.nan, np.float32), np.zeros(1, np.uint32), np.zeros(1, np.float32)
        with emu.settings(threads=os_threads):
            assert emu.lib.selftest_last_block(9, pointer(parts), pointer(ticket), pointer(total)) == 0
        assert total[0] == 45 and ticket[0] == 9


def test_named_barriers_let_groups_pass_apart(emu):
    out = np.zeros(128, np.int32)
    assert emu.lib.selftest_pairs_of_warps(pointer(out)) == 0
    t = np.arange(128)
    assert (out == (t ^ 32) + t // 64).all()


def test_bit_functions(base):
    out = np.zeros(12, np.uint32)
    a, b, shift = 0x80F1C2D3, 0x04A586E7, 37
    base.lib.selftest_bits(ctypes.c_uint(a), ctypes.c_uint(b), shift, pointer(out))
    data = list(a.to_bytes(4, "little") + b.to_bytes(4, "little"))
    perm = lambda selector: sum((data[s & 7] if not s & 8 else 255 * (data[s & 7] >> 7)) << 8 * i  # noqa: E731
                                for i, s in enumerate((selector >> 4 * i) & 15 for i in range(4)))
    both = b << 32 | a
    nan_wins_nothing = np.array([2, 3], np.float32).view(np.uint32).tolist()
    assert out.tolist() == [perm(0x3715), perm(0xB6E2), both << (shift & 31) >> 32 & ALL, both >> (shift & 31) & ALL,
                            int(f"{a:032b}"[::-1], 2), a * b >> 32, bin(a).count("1"), 0, 1, 1, *nan_wins_nothing]
