# SPDX-License-Identifier: Apache-2.0
"""Memory-bound CUDA kernels move what they must, and little more: 32-byte sectors as counted by the shadow flavour of the
emulator, against the bytes of each op's formula: every byte once, but for what memory_truth.py states beside it.

``cuda_memory_truth.json`` holds the figures; ``python tests/test_cuda_memory_truth.py`` writes it. Of each case:
``sectors``, different ones of each block, so what leaves the L1 at best, and ``warp_sectors``, all that warps ask for, both
over bytes / 32; ``bank_conflicts``, the share of shared-memory passes that a better layout would save."""
import ctypes
import functools
import json
import subprocess
import sys
from pathlib import Path

import numpy as np
import pytest
from emu_util import Emulator, flavour_environment, library, pointer
from memory_truth import CASES

TABLE = Path(__file__).with_name("cuda_memory_truth.json")
MOST = 1.10
OPS = {"nextn_fuse_hidden", "mhc_pre", "mhc_post", "mhc_post_pre", "mhc_head", "q_norm_rope", "swa_store_kv",
       "swa_paged_attention", "move_accepted_kv"}


@functools.cache
def measured() -> dict:
    script = Path(__file__).with_name("memory_truth.py")
    out = subprocess.run([sys.executable, str(script)], env=flavour_environment("shadow"), text=True, capture_output=True)
    assert out.returncode == 0, out.stderr[-3000:]
    found = {}
    for line in out.stdout.splitlines():
        found |= json.loads(line)
    return found


def test_every_memory_bound_op_is_measured():
    assert {name.split()[0] for name in CASES} == OPS
    assert set(json.loads(TABLE.read_text())) == set(CASES), f"{TABLE.name} is of other cases: run this file to write it"


@pytest.mark.parametrize("name", CASES)
def test_sectors_over_the_fewest(name):
    got, kept = measured()[name], json.loads(TABLE.read_text())[name]
    assert 0.97 < got["sectors"] <= MOST, f"{name}: {got}"  # fewer than must be moved: the count or the formula is wrong
    assert got["sectors"] <= got["warp_sectors"] + 0.02
    assert got["bytes"] == kept["bytes"]
    for figure in ("sectors", "warp_sectors", "bank_conflicts"):
        assert got[figure] <= kept[figure] + 0.005, f"{name}: {figure} rose from {kept[figure]} to {got[figure]}"


# ------------------------------------------------------------------------------ the counters, where the answer is known
READ = {"coalesced": (32, 32 * 4 // 32), "coalesced 16 bytes": (32, 32 * 16 // 32), "strided by 2": (32, 8),
        "a sector each": (32, 32), "one address": (32, 1), "off by one": (32, 5)}


@pytest.mark.parametrize("name", READ)
def test_sectors_of_known_patterns(name):
    lib = Emulator(library("cuda_emu_selftest", "shadow"))
    lib.lib.selftest_read.argtypes = [ctypes.c_void_p, ctypes.c_void_p, ctypes.c_int, ctypes.c_int]
    x, y = lib.copy(np.arange(4096, dtype=np.float32)), lib.array(32, np.float32)
    x, y = x[-(x.ctypes.data // 4) % 64:], y[-(y.ctypes.data // 4) % 8:]
    stride, vector, first = {"coalesced": (1, 0, 0), "coalesced 16 bytes": (4, 1, 0), "strided by 2": (2, 0, 0),
                             "a sector each": (8, 0, 0), "one address": (0, 0, 0), "off by one": (1, 0, 1)}[name]
    lib.clear()
    assert lib.lib.selftest_read(x.ctypes.data + 4 * first, y.ctypes.data, stride, vector) == 0, lib.report()
    counters = lib.counters()["read_pattern"]
    lanes, sectors = READ[name]
    size = 16 if vector else 4
    assert counters["read"] | {"block_sectors": 0} == {
        "accesses": 1, "bytes": lanes * size, "sectors": sectors, "block_sectors": 0,
        "touched_bytes": size if stride == 0 else lanes * size, "touched_sectors": sectors}
    assert counters["read"]["block_sectors"] == sectors


@pytest.mark.parametrize("stride, size, wavefronts", [(1, 4, 1), (2, 4, 2), (32, 4, 32), (33, 4, 1), (0, 4, 1), (4, 16, 4),
                                                      (8, 16, 8), (2, 8, 2), (4, 8, 4)])
def test_bank_conflicts_of_known_patterns(stride, size, wavefronts):
    lib = Emulator(library("cuda_emu_selftest", "shadow"))
    y = lib.array(64, np.float32)
    lib.clear()
    with lib.settings(races=0):  # nothing was written there
        assert lib.lib.selftest_banks(pointer(y), stride, size) == 0, lib.report()
    phases = max(1, size // 4)
    shared = lib.counters()["bank_pattern"]["shared"]
    assert shared == {"accesses": 1, "wavefronts": wavefronts, "conflicts": wavefronts - phases}


if __name__ == "__main__":
    TABLE.write_text("{\n" + ",\n".join(f"  {json.dumps(n)}: {json.dumps(f)}" for n, f in measured().items()) + "\n}\n")
