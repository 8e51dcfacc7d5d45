# SPDX-License-Identifier: Apache-2.0
"""The AscendC emulator as tests reach it: its settings, and the cases of its self-test."""
from __future__ import annotations

import ctypes

from emu_util import Emulator, library, pointer

EAGER, LAZY, SHUFFLED = range(3)
ORDERS = [(EAGER, 1), (LAZY, 1)] + [(SHUFFLED, seed) for seed in range(1, 5)]
DEFAULTS = {"order": EAGER, "seed": 1, "cores": 4, "check": 1}


class AscendEmulator(Emulator):
    prefix, defaults = "ascend_emu", DEFAULTS

    def __init__(self, name: str = "ascend_emu_selftest", flavour: str = ""):
        super().__init__(library(name, flavour))

    def run(self, case: str, *, plant=0, a=None, b=None, out=None, work=None, n=0, blocks=1) -> int:
        """A case of tests/emu/ascendc/selftest: 0 if it is clean, 1 if ``report()`` says what is not."""
        given = [None if x is None else pointer(x) for x in (a, b, out, work)]
        self.lib.selftest_names.restype = ctypes.c_char_p
        result = self.lib.selftest_run(case.encode(), plant, *given, ctypes.c_long(n), blocks)
        assert result >= 0, f"no case {case}"
        return result
