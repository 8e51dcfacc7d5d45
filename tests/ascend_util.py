# SPDX-License-Identifier: Apache-2.0
"""The AscendC emulator as tests reach it: its C functions, its "device" memory as NumPy arrays, its settings."""
from __future__ import annotations

import contextlib
import ctypes
import json

import numpy as np
from emu_util import library, pointer

EAGER, LAZY, SHUFFLED = range(3)
ORDERS = [(EAGER, 1), (LAZY, 1)] + [(SHUFFLED, seed) for seed in range(1, 5)]
DEFAULTS = {"order": EAGER, "seed": 1, "cores": 4, "check": 1}


class AscendEmulator:
    def __init__(self, name: str = "ascend_emu_selftest"):
        self.lib = ctypes.CDLL(str(library(name)))
        self.lib.ascend_emu_report.restype = ctypes.c_char_p
        self.lib.ascend_emu_counters.restype = ctypes.c_char_p
        self.lib.ascend_emu_malloc.restype = ctypes.c_void_p
        self.lib.ascend_emu_malloc.argtypes = [ctypes.c_size_t]
        self.lib.ascend_emu_free.argtypes = [ctypes.c_void_p]
        self.lib.ascend_emu_configure.argtypes = [ctypes.c_char_p, ctypes.c_long]

    def report(self) -> str:
        return self.lib.ascend_emu_report().decode()

    def counters(self) -> dict:
        return json.loads(self.lib.ascend_emu_counters())

    def clear(self) -> None:
        self.lib.ascend_emu_clear()

    def configure(self, **settings) -> None:
        for key, value in settings.items():
            assert self.lib.ascend_emu_configure(key.encode(), value) == 0, f"{key}={value} is refused"

    @contextlib.contextmanager
    def settings(self, **settings):
        self.configure(**settings)
        try:
            yield self
        finally:
            self.configure(**{key: DEFAULTS[key] for key in settings})

    def array(self, shape, dtype) -> np.ndarray:
        """Memory between guard zones, filled with NaN bytes; never given back."""
        dtype = np.dtype(dtype)
        count = int(np.prod(shape))
        address = self.lib.ascend_emu_malloc(count * dtype.itemsize)
        assert address
        raw = (ctypes.c_uint8 * (count * dtype.itemsize)).from_address(address)
        return np.frombuffer(raw, dtype=dtype, count=count).reshape(shape)

    def run(self, case: str, *, plant=0, a=None, b=None, out=None, work=None, n=0, blocks=1) -> int:
        """A case of tests/emu/ascendc/selftest: 0 if it is clean, 1 if ``report()`` says what is not."""
        given = [None if x is None else pointer(x) for x in (a, b, out, work)]
        self.lib.selftest_names.restype = ctypes.c_char_p
        result = self.lib.selftest_run(case.encode(), plant, *given, ctypes.c_long(n), blocks)
        assert result >= 0, f"no case {case}"
        return result
