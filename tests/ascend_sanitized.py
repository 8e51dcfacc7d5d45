# SPDX-License-Identifier: Apache-2.0
"""Every case of every op once, in a process of its own whose ascend_emu is the asan flavour (test_emu_ascend_asan.py). What
they give is the business of test_ascend_kernels_hard.py."""
from __future__ import annotations

import sys

from ascend_util import LAZY
from emu_cases import CASES, HALF
from test_ascend_kernels_hard import KERNELS, cases, entries, runner


def main() -> int:
    run = runner("asan")
    run.emulator.configure(order=LAZY)
    for op in KERNELS:
        run.emulator.clear()
        for name in cases(op):
            print("case", name, flush=True)  # what ends the process leaves this behind
            for run.memory.exact in (False, True) if name in CASES else (True,):  # float16 is the same code once more
                run.once(*(CASES | HALF)[name]())
        assert run.emulator.report() == "" and set(run.emulator.counters()) == entries(op, "asan"), op
        print("ok", op, flush=True)
    with open("/proc/self/maps") as maps:
        assert "emu_asan/libdsv4spec_ascend_emu.so" in maps.read(), "another flavour was run"
    return 0


if __name__ == "__main__":
    sys.exit(main())
