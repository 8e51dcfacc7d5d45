# SPDX-License-Identifier: Apache-2.0
"""The checking flavours of the CUDA emulator: every planted bug that is theirs to find, with the lines of both accesses,
and no report where there is no bug."""
import ctypes
import functools
import re
import subprocess
import sys
from pathlib import Path

import numpy as np
import planted
import pytest
from emu_util import ORDERS, Emulator, flavour_environment, library, pointer

SOURCES = Path(__file__).parent / "emu" / "cuda" / "selftest"
MEMORY, ORDER, TICKET, CLUSTER, BULK = (f"planted_{f}" for f in ("memory", "order", "ticket", "cluster", "bulk"))
NUMBERS = sorted(number for number, _ in planted.cuda())

UNWRITTEN, IN_FLIGHT = "read of what nothing has written {0}", "read {0} where the cp.async of .* {1} is still in flight"
RAW, WAR, WAW = "race: read {0} after the write of .*{1}", "race: write {0} after the read of .*{1}", "race: write {0} after the write of .*{1}"
IN_CLUSTER = "; no cluster_sync lies between them; "
BLOCKS = "; nothing orders the blocks; global memory at 0x\\w+: offset \\d+ of an allocation"
# Planted bug -> its file, what the report says, and the source of the lines {0} (now) and {1} (before) in it.
SHADOW = {
    1: (ORDER, RAW + ".*no", "y[threadIdx.x] = sums[0] + sums[1]",
        "sums[threadIdx.x / 32] = sum;\n  if (!kBug) __syncthreads();\n  y"),
    4: (MEMORY, "misaligned access of 4 bytes at 0x\\w+ {0}", "*reinterpret_cast<const uint4*>(x + 8"),
    5: (MEMORY, UNWRITTEN + "; static", "y[threadIdx.x] = s[kThreads - 1 - threadIdx.x];"),
    6: (MEMORY, IN_FLIGHT + "; offset 16 of dynamic", "y[(stage * 32 + t) * 4 + i] = buffer", "cp_async16(buffer"),
    7: (ORDER, WAR + "; neither", "s[t] = x[i * kThreads + t];", "sum += s[right];"),
    10: (MEMORY, RAW + BLOCKS, "*total += 1;", "*total += 1;"),
    11: (ORDER, WAW + "; no barrier", "slot = x[0];", "slot = x[0];"),
    12: (ORDER, WAR + "; no barrier", "sums[threadIdx.x / 32] = sum;\n  if (!kBug) __syncthreads();\n  if", "sums[threadIdx.x] : 0.f"),
    13: (ORDER, RAW + "; neither a barrier nor a __syncwarp lies between them; static", "y[t] = s[t ^ 1] * one;",
         "s[t] = x[t];\n  if (!kBug) __syncwarp"),
    17: (MEMORY, "write out of bounds .* offset 4096 of 4096 bytes of dynamic shared memory {0}", "s[i] = static_cast<float>(i);"),
    21: (TICKET, RAW + BLOCKS, "sum += parts", "parts[b * kThreads + t] = x"),
    22: (TICKET, RAW + BLOCKS, "before = *ticket", "*ticket = before + 1;"),
    23: (TICKET, RAW + BLOCKS, "sum += parts", "parts[b * kThreads + t] = x"),
    24: (TICKET, RAW + BLOCKS, "sum += parts", "parts[b * kThreads + t] = x"),
    25: (TICKET, WAR + "; neither .* global memory", "x[t] = x[t] + 1;", "y[t] = x[(t + 1) % kThreads];"),
    28: (CLUSTER, RAW + IN_CLUSTER + "dynamic shared memory of another block", "sum += cluster_load(mine", "mine[t] = kept[t] +"),
    29: (CLUSTER, UNWRITTEN + "; dynamic shared memory of another block of the cluster", "sum += cluster_load(mine"),
    32: (CLUSTER, RAW + IN_CLUSTER + "global memory", "y[0] = y[0] + 1;", "y[0] = 1;"),
    40: (BULK, "read {0} where the cp.async.bulk of .* {1} is still in flight", "sum += rows[i];", "copy_bulk(rows + to"),
    41: (BULK, "race: cp.async.bulk {0} after the read of .*{1}" + IN_CLUSTER + "dynamic shared memory of another block",
         "copy_bulk(rows + to", "sum += rows[i];"),
    48: (BULK, "cp.async.bulk {0} over the write of .*{1}, which no fence.proxy.async followed; offset \\d+ of dynamic",
         "copy_bulk(rows + to", "rows[rank * kRow + t] = sum;"),
    57: (ORDER, RAW + "; neither a barrier nor a __syncwarp lies between them; static", "const float mine = s[t];",
         "s[t ^ 5] = mine;"),
}
# What the functional flavour finds too.
ALSO = {2: "wait at __syncthreads", 3: "read out of bounds", 8: "divergent warp", 14: "103424 bytes of dynamic",
        15: "write outside dynamic", 18: "have returned", 26: "no cluster_sync", 27: "has returned",
        30: "offset 256 of 256 bytes", 31: "block 4 of a cluster of 4", 42: "misses 0 arrivals and 16 bytes in phase 0",
        43: "misses 0 arrivals and -16 bytes", 44: "is still in flight", 45: "the block returned while the cp.async.bulk",
        46: "no fence.mbarrier_init", 47: "no cluster barrier has made sure", 49: "expected multiples of 16",
        50: "offset 896 of 528 bytes", 51: "mask 31 in a cluster of 4", 52: "the mbarrier has been overwritten",
        53: "misses 1 arrivals and -512 bytes in phase 1", 54: "offset 2111 of an allocation of 2048 bytes",
        55: "between its arrival at the cluster's barrier and its wait", 56: "no mbarrier has been initialised",
        58: "misses 0 arrivals and 512 bytes in phase 0"}
# Only these need the sanitizers of the compiler: the shadow flavour does not know where a static array ends
# (16) and sees a pair of halves as two (20). Planted bug -> file, what stands at the line.
SANITIZERS = {
    3: (MEMORY, "AddressSanitizer: .*(SEGV|overflow|use-after-poison)", "y[i] = 2 * x[i];"),
    4: (MEMORY, "runtime error: .* misaligned address", "*reinterpret_cast<const uint4*>(x + 8"),
    16: (MEMORY, "runtime error: index 64 out of bounds for type 'float \\[64\\]'", "s[kBug ? last + 1 : last] = 5;"),
    20: (MEMORY, "runtime error: .* misaligned address", "*reinterpret_cast<bf16x2*>(y"),
}


def line_of(file: str, text: str) -> str:
    """FILE.cu:LINE of what stands there once."""
    source = (SOURCES / f"{file}.cu").read_text()
    assert source.count(text) == 1, f"{text!r} stands {source.count(text)} times in {file}.cu"
    return f"{file}.cu:{source[:source.index(text)].count(chr(10)) + 1}"


def in_parentheses(place: str) -> str:
    return r"\((?:[\w.]+:\d+, from )*" + re.escape(place) + r"[^()]*\)"


@pytest.fixture(scope="module")
def emu():
    emulator = Emulator(library("cuda_emu_selftest", "shadow"))
    emulator.lib.selftest_planted.restype = ctypes.c_long
    return emulator


@pytest.fixture(autouse=True)
def fresh(request):
    if "emu" in request.fixturenames:
        request.getfixturevalue("emu").clear()


@pytest.mark.parametrize("number", NUMBERS)
def test_the_correct_kernel_is_clean(emu, number):
    for order, seed in ORDERS[::3]:
        with emu.settings(order=order, seed=seed):
            assert emu.lib.selftest_planted(number, 0) == 0, emu.report()
    assert emu.report() == ""


@pytest.mark.parametrize("number", sorted(SHADOW))
def test_the_shadow_names_the_lines(emu, number):
    file, text, *lines = SHADOW[number]
    assert emu.lib.selftest_planted(number, 1) == -1
    expected = text.format(*(in_parentheses(line_of(file, line)) for line in lines))
    assert re.search(expected, emu.report()), f"{expected}\nin\n{emu.report()}"
    assert emu.lib.selftest_planted(number, 0) == 0, "the next launch is not troubled"


@pytest.mark.parametrize("number", sorted(ALSO))
def test_what_the_functional_flavour_finds(emu, number):
    assert emu.lib.selftest_planted(number, 1) == -1 and ALSO[number] in emu.report()


def test_a_bulk_copy_that_nobody_waited_for_is_found_when_it_has_landed(emu):
    with emu.settings(defer=0):  # copies are done when they are started: the values are right
        assert emu.lib.selftest_planted(40, 1) == -1
        assert emu.lib.selftest_planted(40, 0) == 0
    places = (in_parentheses(line_of(BULK, text)) for text in ("sum += rows[i];", "copy_bulk(rows + to"))
    expected = "race: read {} after the cp.async.bulk of .*{}; no mbarrier_wait lies between them; ".format(*places)
    assert re.search(expected, emu.report()), emu.report()


@pytest.mark.parametrize("number", [10, 13, 21])
def test_races_can_be_switched_off(emu, number):
    with emu.settings(races=0):
        assert emu.lib.selftest_planted(number, 1) >= 0 and emu.report() == ""


def test_atomics_and_tickets_are_no_races(emu):
    parts, total = emu.array(9, np.float32), emu.array(1, np.float32)
    for blocks in (1, 9):
        ticket = emu.copy(np.zeros(1, np.uint32))
        assert emu.lib.selftest_last_block(blocks, pointer(parts), pointer(ticket), pointer(total)) == 0, emu.report()
        assert total[0] == blocks * (blocks + 1) / 2
    ints, rounds = emu.copy(np.zeros(9, np.int32)), emu.copy(np.zeros(2, np.uint32))
    most = emu.copy(np.zeros(1, np.uint64))
    assert emu.lib.selftest_atomics(5, pointer(ints), pointer(rounds), pointer(total), pointer(most)) == 0, emu.report()


def test_races_at_every_byte_of_a_word(emu):
    """Threads that write neighbouring bytes do not meet; two that write one byte do, wherever it lies in its word."""
    memory = emu.array(64, np.uint8)
    emu.lib.selftest_bytes.argtypes = [ctypes.c_void_p, ctypes.c_int, ctypes.c_int]
    for first in range(4):
        assert emu.lib.selftest_bytes(memory.ctypes.data + first, 1, 0) == 0, emu.report()
        for step, vector in ((0, 0), (1, 1)):  # all write one byte; thread 0 writes the word, the others its bytes
            emu.clear()
            if vector and first:
                continue
            assert emu.lib.selftest_bytes(memory.ctypes.data + first, step, vector) != 0
            assert "race: write (semantics.cu:" in emu.report()


# --------------------------------------------------------------------------------------------------- sanitizers
@functools.lru_cache(None)
def planted_with_sanitizers(number, bug):
    code = f"import ctypes; l = ctypes.CDLL({str(library('cuda_emu_selftest', 'asan'))!r}); " \
           f"print(*(l.selftest_planted(n, {bug}) for n in {list(number)}))"
    return subprocess.run([sys.executable, "-c", code], env=flavour_environment("asan"), text=True, capture_output=True)


def test_the_correct_kernels_are_clean_with_sanitizers():
    out = planted_with_sanitizers(tuple(NUMBERS), 0)
    assert out.returncode == 0 and out.stdout.split() == ["0"] * len(NUMBERS), out.stdout + out.stderr[-3000:]


@pytest.mark.parametrize("number", sorted(SANITIZERS))
def test_sanitizers_name_the_line(number):
    file, text, line = SANITIZERS[number]
    out = planted_with_sanitizers((number,), 1)
    assert out.returncode != 0
    assert re.search(text, out.stderr) and line_of(file, line) in out.stderr, out.stderr[-3000:]


def python(code, environment) -> str:
    out = subprocess.run([sys.executable, *code], env=environment, text=True, capture_output=True)
    assert out.returncode == 0, out.stdout + out.stderr[-2000:]
    return out.stdout


LOAD = "import dsv4spec\ntry:\n  with dsv4spec.use_backend('cuda_emu'):\n    print([l.split()[-1] for l in " \
       "open('/proc/self/maps') if 'cuda_emu' in l][0])\nexcept Exception as e:\n  print(e)"


@pytest.mark.parametrize("flavour", ["asan", "shadow"])
def test_the_core_takes_the_flavour_that_is_asked_for(flavour):
    assert f"emu_{flavour}/libdsv4spec_cuda_emu.so" in python(["-c", LOAD], flavour_environment(flavour))


def test_the_core_says_why_it_cannot():
    environment = flavour_environment("asan")
    del environment["LD_PRELOAD"]
    for code in (["-c", LOAD], ["-m", "dsv4spec.cli", "info"]):
        assert "DSV4SPEC_EMU_FLAVOUR=asan: expected libasan.so in LD_PRELOAD" in python(code, environment)
    environment["DSV4SPEC_EMU_FLAVOUR"] = "tsan"
    assert "DSV4SPEC_EMU_FLAVOUR: expected asan or shadow, got tsan" in python(["-c", LOAD], environment)
