# SPDX-License-Identifier: Apache-2.0
"""Every AscendC kernel on the emulator, on small odd shapes, with all tensors between guard zones: equal to the
reference, the same bits in every order of execution and on any number of cores, and without a report."""
import functools
import re

import pytest
from ascend_util import LAZY, ORDERS, SHUFFLED, AscendEmulator
from emu_cases import CASES, HALF, of
from emu_runner import Guarded, Runner
from emu_util import library

from dsv4spec import _C
from dsv4spec.ops import OPS
from dsv4spec.ops.table import NO_KERNEL

KERNELS = sorted(set(OPS) - NO_KERNEL["ascendc"])
# A device has 40 or 48 vector cores; one core has all the work.
SETTINGS = [dict(order=order, seed=seed) for order, seed in ORDERS]
SETTINGS += [dict(order=LAZY, cores=1), dict(order=SHUFFLED, seed=5, cores=48)]


class AscendMemory(Guarded):
    """Memory of 512 bytes' alignment; ``exact``: one element behind that, so that nothing is aligned any more."""

    def memory(self, size, element):
        before = element if self.exact else 0
        raw = self.emulator.array(before + size, "uint8")
        self.kept.append(raw.ctypes.data)
        return raw[before:]

    def release(self, address):
        assert self.emulator.lib.ascend_emu_free(address) == 0


@functools.cache
def runner(flavour: str = ""):
    return Runner("ascend_emu", AscendMemory(AscendEmulator("dsv4spec_ascend_emu", flavour)), SETTINGS)


def test_every_kernel_has_cases_and_every_order_is_run():
    assert {name.split()[0] for name in CASES} == set(KERNELS)
    assert all(len(of(op)) >= 3 for op in KERNELS)
    assert sum(s["order"] == SHUFFLED and "cores" not in s for s in SETTINGS) == 4


def longest_op(entry: str) -> str:
    """mhc_post of dsv4_mhc_post_bf16, mhc_post_pre of dsv4_mhc_post_pre_finish_bf16."""
    return max((op for op in KERNELS if entry.startswith(f"dsv4_{op}_")), key=len, default="")


def takes_half(op: str) -> bool:
    return op in _C.backends()["ascend_emu"]["float16"]


def cases(op: str) -> list[str]:
    return of(op, CASES | HALF if takes_half(op) else CASES)


def entries(op: str, flavour: str = "") -> set[str]:
    """The entries of an op's kernels, whose names the plug-in holds: one that no case launches is one that no test has seen."""
    names = re.findall(rb"\0(dsv4_[a-z0-9_]+)(?=\0)", library("dsv4spec_ascend_emu", flavour).read_bytes())
    found = {n for n in (name.decode() for name in names) if longest_op(n) == op}
    return found if takes_half(op) else {n for n in found if "f16" not in n.split("_")}


@pytest.mark.parametrize("op", KERNELS)
def test_same_bits_in_every_order(op):
    emulator = runner().emulator
    emulator.clear()
    for name in cases(op):
        runner().case(name)
        assert emulator.report() == "", name
    assert entries(op) and set(emulator.counters()) == entries(op)
    assert all(row["launches"] >= len(SETTINGS) for row in emulator.counters().values())
