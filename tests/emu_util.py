# SPDX-License-Identifier: Apache-2.0
"""The emulators as tests reach them: C functions, "device" memory as NumPy arrays, settings (here: CUDA's)."""
from __future__ import annotations

import contextlib
import ctypes
import json
import os
import re
import subprocess
from pathlib import Path

import numpy as np
import pytest

import dsv4spec

FIFO, LIFO, RANDOM, WARP_PRIORITY = range(4)
ORDERS = [(FIFO, 1), (LIFO, 1)] + [(o, seed) for o in (RANDOM, WARP_PRIORITY) for seed in range(1, 5)]
DEFAULTS = {"order": FIFO, "seed": 1, "threads": 1, "poison": 1, "defer": 1, "strict": 1, "align": 16,
            "races": 1, "count": 1, "capability": 90, "code": 90, "cluster": 16}
FOLDERS = {"": "", "asan": "emu_asan", "shadow": "emu_shadow"}


class Emulator:
    """An emulator's library. Its C functions are called ``<prefix>_report``, ``<prefix>_malloc`` and so on."""

    prefix, defaults = "cuda_emu", DEFAULTS

    def __init__(self, path):
        self.lib = ctypes.CDLL(str(path))
        self._report = self._function("report", ctypes.c_char_p)
        self._counters = self._function("counters", ctypes.c_char_p)
        self._configure = self._function("configure", ctypes.c_int, ctypes.c_char_p, ctypes.c_long)
        self._malloc = self._function("malloc", ctypes.c_void_p, ctypes.c_size_t)
        self._function("free", ctypes.c_int, ctypes.c_void_p)

    def _function(self, name, result, *arguments):
        function = getattr(self.lib, f"{self.prefix}_{name}")
        function.restype, function.argtypes = result, arguments
        return function

    def report(self) -> str:
        return self._report().decode()

    def counters(self) -> dict:
        return json.loads(self._counters())

    def clear(self) -> None:
        getattr(self.lib, f"{self.prefix}_clear")()

    def configure(self, **settings) -> None:
        for key, value in settings.items():
            assert self._configure(key.encode(), value) == 0, f"{key}={value} is refused"

    @contextlib.contextmanager
    def settings(self, **settings):
        self.configure(**settings)
        try:
            yield self
        finally:
            self.configure(**{key: self.defaults[key] for key in settings})

    def array(self, shape, dtype) -> np.ndarray:
        """Memory between guards (CUDA: it ends where the array does, at a page out of reach), filled with NaN bytes;
        never given back."""
        dtype = np.dtype(dtype)
        count = int(np.prod(shape))
        address = self._malloc(count * dtype.itemsize)
        assert address
        raw = (ctypes.c_uint8 * (count * dtype.itemsize)).from_address(address)
        return np.frombuffer(raw, dtype=dtype, count=count).reshape(shape)

    def copy(self, values) -> np.ndarray:
        values = np.asarray(values)
        out = self.array(values.shape, values.dtype)
        out[...] = values
        return out


def pointer(array: np.ndarray) -> ctypes.c_void_p:
    return ctypes.c_void_p(array.ctypes.data)


def library(name: str, flavour: str = "") -> Path:
    """lib<name>.so of a flavour; a closed gate if this build has no emulator."""
    folder = Path(dsv4spec.__file__).parent / "lib" / FOLDERS[flavour]
    path = folder / f"lib{name}.so"
    if not path.exists():
        name = os.path.join(FOLDERS[flavour], path.name)
        pytest.skip(f"gate: {name} was not built (DSV4SPEC_EMULATE=ON builds it)")
    return path


def flavour_environment(flavour: str, plugin: str = "dsv4spec_cuda_emu") -> dict:
    """For a process of its own in which the emulators are of that flavour. AddressSanitizer must be there first."""
    plugin = library(plugin, flavour)
    environment = os.environ | {"DSV4SPEC_EMU_FLAVOUR": flavour, "OMP_NUM_THREADS": "1"}
    if flavour == "asan":
        needed = subprocess.run(["ldd", str(plugin)], capture_output=True, text=True, check=True).stdout
        runtimes = re.findall(r"lib(?:a|ub)san\S* => (\S+)", needed)
        assert runtimes, needed
        # The standard library too: the run time looks for __cxa_throw when it starts.
        standard = re.findall(r"libstdc\+\+\S* => (\S+)", needed)
        environment |= {"LD_PRELOAD": " ".join(runtimes + standard), "ASAN_OPTIONS": "detect_leaks=0",
                        "UBSAN_OPTIONS": "print_stacktrace=1"}
    return environment
