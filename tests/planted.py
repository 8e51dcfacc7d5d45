# SPDX-License-Identifier: Apache-2.0
"""The planted bugs of the emulators' self-tests, as their sources have them: [(number or name, file)]."""
from __future__ import annotations

import re
from pathlib import Path

ROOT = Path(__file__).resolve().parents[1]
SOURCES = [path for folder in (ROOT / "kernels", ROOT / "tests" / "emu") for path in sorted(folder.rglob("*.*"))
           if path.suffix in (".cu", ".cuh", ".cpp", ".h")]


def cuda() -> list[tuple[int, str]]:
    """Each ``PLANTED(number, name)``."""
    return [(int(number), path.name) for path in SOURCES
            for number in re.findall(r"^PLANTED\((\d+),", path.read_text(), re.M)]


def ascend() -> list[tuple[str, str]]:
    """Each case of a ``planted_*.cpp`` of the AscendC emulator: SELFTEST, its shorthand CASE, or one added by hand."""
    return [(direct or by_hand, path.name) for path in SOURCES if path.match("ascendc/selftest/planted_*.cpp")
            for direct, by_hand in re.findall(r'^(?:SELFTEST|CASE)\((\w+)|selftest::add\("(\w+)"', path.read_text(), re.M)]
