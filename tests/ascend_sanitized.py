# SPDX-License-Identifier: Apache-2.0
"""One case of every op, in a process of its own whose ascend_emu is the asan flavour (test_emu_ascend_asan.py)."""
from __future__ import annotations

import sys

from emu_cases import of
from test_ascend_kernels_hard import KERNELS, runner


def main() -> int:
    for op in KERNELS:
        runner("asan").case(of(op)[0], slice(1, 3))  # lazy, and one shuffled order
        print("ok", op, flush=True)
    with open("/proc/self/maps") as maps:
        assert "emu_asan/libdsv4spec_ascend_emu.so" in maps.read(), "another flavour was run"
    return 0


if __name__ == "__main__":
    sys.exit(main())
