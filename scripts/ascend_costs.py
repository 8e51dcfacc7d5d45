#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""What the AscendC kernels cost at Flash sizes, counted by the emulator: writes docs/ascend_costs.md, or with names of
ops prints their rows. Counts do not depend on the data nor on the machine that emulates.

    python scripts/ascend_costs.py [OP ...]
"""
from __future__ import annotations

import ctypes
import json
import sys
from dataclasses import dataclass
from pathlib import Path

import torch

import dsv4spec
from dsv4spec import ops, use_backend
from dsv4spec.bench_cases import SIZES, Case, cases
from dsv4spec.ops.table import NO_KERNEL

OUT = Path(__file__).resolve().parents[1] / "docs" / "ascend_costs.md"
# Documented by Ascend C's guide for one chip with 48 vector cores ("Analysing performance data"): 1.8 TB/s between global
# memory and all cores, 11.06 TOPS of float on the vector cores. 48 cores of 64 lanes, a multiply and an add each, make
# that at 1.8 GHz: one repeat (256 bytes) a cycle. The cube does 16 x 16 x 16 multiply-adds a cycle in 16 bit and
# 16 x 16 x 4 in fp32 ("Theoretical performance of cube instructions"); 24 of them.
VECTOR_CORES, CUBE_CORES, CLOCK, MEMORY = 48, 24, 1.8e9, 1.8e12
START_US = 20.0  # the same guide: what a launch on all cores takes before a kernel does anything
FEW = ("T=1 ", "T=16 ", "T=64 ")
LAUNCH = 100 * 64  # bytes: bench_cases' figure for 64 requests of the ops whose whole cost is the launch


@dataclass(frozen=True)
class Row:
    case: Case
    fewest: int
    launches: int
    blocks: int
    moved: int
    vector: int    # repeats of one vector core, if all have the same
    cube: int      # cycles of one cube core, likewise
    us: dict[str, float]

    @property
    def ratio(self) -> float:
        return self.moved / self.fewest

    @property
    def bound(self) -> str:
        return max(self.us, key=self.us.get)


def fewest(case: Case, args) -> int:
    """The case's bytes with the small things that bench_cases leaves out: rows of tables, slots, weights of norms."""
    size, T = case.size, args[0].shape[0]
    turns = 4 * size.rope + 8  # cosines and sines of a row, its position
    more = {"q_norm_rope": T * turns, "swa_store_kv": T * (turns + 8) + 2 * size.head_dim, "mhc_post": 80 * T,
            "mhc_pre": 80 * T + 2 * size.d, "mhc_post_pre": 160 * T + 2 * size.d, "mhc_head": 2 * size.d,
            "nextn_fuse_hidden": 4 * size.d, "move_accepted_kv": 16 * T}
    return case.bytes + more.get(case.op, 0)


def emulator():
    path = Path(dsv4spec.__file__).parent / "lib" / "libdsv4spec_ascend_emu.so"
    lib = ctypes.CDLL(str(path))
    lib.ascend_emu_counters.restype = ctypes.c_char_p
    lib.ascend_emu_configure.argtypes = [ctypes.c_char_p, ctypes.c_long]
    return lib


def measure(case: Case, lib) -> Row:
    """One call of the case, counted."""
    torch.manual_seed(0)
    args, kwargs = case.make(torch.device("cpu"))
    assert lib.ascend_emu_configure(b"cores", VECTOR_CORES) == 0 and lib.ascend_emu_configure(b"check", 0) == 0
    try:
        with use_backend("ascend_emu"):
            lib.ascend_emu_clear()
            getattr(ops, case.op)(*args, **kwargs)
    finally:
        lib.ascend_emu_configure(b"check", 1)
        lib.ascend_emu_configure(b"cores", 4)
    counters = json.loads(lib.ascend_emu_counters())
    rows = counters.values()
    moved = sum(r["bytes"]["MTE2"] + r["bytes"]["MTE3"] + r["bytes"]["FIX"] for r in rows)
    blocks = max(r["blocks"] // r["launches"] for r in rows)
    mixed = any(r["cube_steps"] for r in rows)
    vector_cores = min(VECTOR_CORES, blocks * (2 if mixed else 1))
    vector = -(-sum(r["vector_repeats"] for r in rows) // vector_cores)
    # A step is 16 x 16 outputs by 32 bytes of depth: a cycle in 16 bit, two in fp32.
    steps = sum(r["cube_steps"] * (2 if name.endswith("_f32") else 1) for name, r in counters.items())
    cube = -(-steps // min(CUBE_CORES, blocks))
    us = {"memory": moved / MEMORY * 1e6, "vector": vector / CLOCK * 1e6, "cube": cube / CLOCK * 1e6}
    return Row(case, fewest(case, args), sum(r["launches"] for r in rows), blocks, moved, vector, cube, us)


def wanted(names=()):
    """The cases of the table: tokens of a step of decode or verify, and every kind of attention that is quick to emulate."""
    for case in cases(SIZES["flash"]):
        if case.op in NO_KERNEL["ascendc"] or names and case.op not in names or "e4m3" in case.label:
            continue
        few = any((case.label + " ").startswith(n) for n in FEW)
        if few or case.label == "B=64" or case.label in ("decode B=1 rows=1", "verify B=1 rows=4", "extend B=1 rows=64"):
            yield case


def table(rows) -> str:
    lines = ["| op | | launches, blocks | bytes moved | / fewest | vector | cube | memory | bound |",
             "| --- | --- | --- | --- | --- | --- | --- | --- | --- |"]
    for r in rows:
        launch = r.case.bytes <= LAUNCH
        cycles = [f"{c} ({r.us[n]:.1f})" if c else "-" for n, c in (("vector", r.vector), ("cube", r.cube))]
        lines.append(f"| `{r.case.op}` | {r.case.label} | {r.launches}, {r.blocks} | {r.moved} | "
                     f"{'-' if launch else f'{r.ratio:.2f}'} | {cycles[0]} | {cycles[1]} | {r.us['memory']:.1f} | "
                     f"{'launch' if max(r.us.values()) < START_US else r.bound + f', {max(r.us.values()):.0f} us'} |")
    return "\n".join(lines)


TEXT = f"""# Costs of the AscendC kernels, predicted

Written by `scripts/ascend_costs.py` from the emulator's counters, not measured: one call at the sizes of
DeepSeek-V4 Flash, bf16, {VECTOR_CORES} vector and {CUBE_CORES} cube cores. *bytes moved*: between global and
local memory, by MTE2, MTE3 and the cube's output; */ fewest*: over what the op must at least read and write
once (bench_cases.py; the goal is 1.10 where memory is the bound). *vector* and *cube*: cycles of one core if
the work is even over the cores used, in brackets in microseconds; *memory*: microseconds.

Rates: Ascend C's guide names {MEMORY / 1e12:.1f} TB/s for global memory and 11.06 TOPS of float for a chip of
48 vector cores, which is one repeat of 256 bytes a cycle at {CLOCK / 1e9:.1f} GHz; its table of the cube
names 16 x 16 x 16 multiply-adds a cycle in 16 bit and 16 x 16 x 4 in fp32. It also says that a launch on all
cores takes {START_US:.0f} us before a kernel does anything, so that everything below that is bound by the
launch. Bytes that several cores read from the second-level cache count here as if they came from memory.
Stalls between the pipes, and how well bursts use the bandwidth, are not in these figures: a device has not
run the kernels yet.

"""


def main(names) -> None:
    lib = emulator()
    rows = []
    for case in wanted(names):
        rows.append(measure(case, lib))
        print(table(rows[-1:]).splitlines()[-1], flush=True)
    if not names:
        OUT.write_text(TEXT + table(rows) + "\n")


if __name__ == "__main__":
    main(sys.argv[1:])
