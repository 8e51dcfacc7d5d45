# SPDX-License-Identifier: Apache-2.0
"""Files that a command writes when its work is done."""
from __future__ import annotations

import json
import os


def check_writable(path: str) -> None:
    """OSError now, and not after minutes of work, if ``path`` cannot be written. Leaves no file that was not there."""
    there = os.path.lexists(path)
    with open(path, "a", encoding="utf-8"):
        pass
    if not there:
        os.remove(path)


def write_json(path: str, value) -> None:
    """Replace ``path`` by ``value`` as JSON."""
    with open(path, "w", encoding="utf-8") as file:
        json.dump(value, file, indent=2)
        file.write("\n")
