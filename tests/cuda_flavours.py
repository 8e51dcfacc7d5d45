# SPDX-License-Identifier: Apache-2.0
"""The cases of emu_cases.py on the CUDA emulator, tensors in memory that ends at a page out of reach.
``python cuda_flavours.py FLAVOUR`` runs them in a process of its own, a line a case."""
from __future__ import annotations

import sys
import traceback

from emu_cases import CASES
from emu_runner import Guarded, Runner
from emu_util import FIFO, LIFO, RANDOM, WARP_PRIORITY, Emulator, library

ORDERS = [dict(order=order, seed=seed) for order, seed in (
    (FIFO, 1), (LIFO, 1), (RANDOM, 1), (RANDOM, 2), (WARP_PRIORITY, 1), (WARP_PRIORITY, 2))]


WITHOUT_CLUSTERS = dict(capability=80)


def on_clusters(case: str) -> bool:
    """Does the case have one launch where the device has clusters, and another path where it has none?"""
    op, sizes = case.split()[:2]
    if op == "nextn_fuse_hidden":
        return sizes in ("1x4x1040", "2x2x1040", "16x4x144")
    return op in ("mhc_pre", "mhc_post_pre", "mhc_head", "move_accepted_kv", "swa_paged_attention")


class CudaMemory(Guarded):
    """The last byte of a tensor is the last one in reach, or near it."""

    def memory(self, size, element):
        with self.emulator.settings(align=element if self.exact else 16):
            raw = self.emulator.array(size, "uint8")
        self.kept.append(raw.ctypes.data)
        return raw

    def release(self, address):
        self.emulator.lib.cuda_emu_free(address)


def cuda_runner(flavour: str = "") -> Runner:
    return Runner("cuda_emu", CudaMemory(Emulator(library("dsv4spec_cuda_emu", flavour))), ORDERS)


def main(flavour: str) -> int:
    runner = cuda_runner(flavour)
    if flavour == "shadow":
        runner.emulator.configure(count=0)
    failures = 0
    runs = [(name, {}) for name in CASES] + [(name, WITHOUT_CLUSTERS) for name in CASES if on_clusters(name)]
    for name, settings in runs:
        print(f"case {name}", flush=True)  # what ends the process at once leaves this behind
        try:
            with runner.emulator.settings(**settings):
                runner.case(name, slice(1))
            print(f"ok {name}", flush=True)
        except Exception:  # the list of cases goes on
            failures += 1
            print(f"failed {name}: {traceback.format_exc()[-3000:]}", flush=True)
    with open("/proc/self/maps") as maps:
        assert f"emu_{flavour}/libdsv4spec_cuda_emu.so" in maps.read(), "another flavour was run"
    return failures


if __name__ == "__main__":
    sys.exit(main(sys.argv[1]) != 0)
