#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""What the AscendC kernels cost at Flash sizes, counted by the emulator: writes docs/ascend_costs.md, or with names of
ops prints their rows. Counts do not depend on the data nor on the machine that emulates.

    python scripts/ascend_costs.py [OP ...]
"""
from __future__ import annotations

import sys
from pathlib import Path

from dsv4spec.bench_cases import QUICK, cases
from dsv4spec.bench_emulated import CACHE, CLOCK, CUBE_CORES, MEMORY, VECTOR_CORES
from dsv4spec.bench_emulated import ascend_cost as measure
from dsv4spec.bench_emulated import ascend_library as emulator
from dsv4spec.ops.table import NO_KERNEL

OUT = Path(__file__).resolve().parents[1] / "docs" / "ascend_costs.md"
START_US = 20.0  # Ascend C's guide: what a launch on all cores takes before a kernel does anything
FEW = ("T=1 ", "T=16 ", "T=64 ")
LAUNCH = 6400  # bytes, below which the launch is the whole cost


def wanted(names=()):
    """The cases of the table: tokens of a step of decode or verify, and every kind of attention that is quick to emulate."""
    for case in cases("flash"):
        if case.op in NO_KERNEL["ascendc"] or names and case.op not in names or "e4m3" in case.label:
            continue
        few = any((case.label + " ").startswith(n) for n in FEW)
        if few or case.label == "B=64" or case.label in ("decode B=1 rows=1", "verify B=1 rows=4", "extend B=1 rows=64"):
            yield case


def table(rows) -> str:
    lines = ["| op | | launches, blocks | bytes moved | / fewest | through L2 | / fewest | vector | cube | memory | L2 | bound |",
             "| --- " * 12 + "|"]
    for r in rows:
        launch = r.case.bytes <= LAUNCH or r.case.goal == QUICK
        over = ["-" if launch else f"{n / r.case.bytes:.2f}" for n in (r.moved, r.scratch)]
        cycles = [f"{c} ({r.us[n]:.1f})" if c else "-" for n, c in (("vector", r.vector), ("cube", r.cube))]
        lines.append(f"| `{r.case.op}` | {r.case.label} | {r.launches}, {r.blocks} | {r.moved} | "
                     f"{over[0]} | {r.scratch} | {over[1]} | {cycles[0]} | {cycles[1]} | {r.us['memory']:.1f} | "
                     f"{r.us['scratch']:.1f} | "
                     f"{'launch' if max(r.us.values()) < START_US else r.bound + f', {max(r.us.values()):.0f} us'} |")
    return "\n".join(lines)


TEXT = f"""# Costs of the AscendC kernels, predicted

Written by `scripts/ascend_costs.py` from the emulator's counters, not measured: one call at the sizes of
DeepSeek-V4 Flash, bf16, {VECTOR_CORES} vector and {CUBE_CORES} cube cores. *bytes moved*: between the op's tensors
and local memory, by MTE2, MTE3 and the cube's output, every time they are; */ fewest*: over what the op must at least
read and write once (`dsv4spec bench --list`; the goal is 1.10 where memory is the bound). *through L2*: bytes that
cores pass to each other, or keep, in the op's scratch. On this architecture global memory is the only way from vector
cores to a cube core and back; what is written and soon read again stays in the second-level cache, which holds 192 MB
and much more than any scratch here. *vector* and *cube*: cycles of one core if the work is even over the cores used,
in brackets in microseconds; *memory*, *L2*: microseconds.

What is passed: `nextn_fuse_hidden`: normed rows, which every cube core reads for each of its tiles of channels, and
sums; the weights are read once up to 64 tokens. `swa_paged_attention`: queries and keys, which the vector cores free
of NaN (the cube must not see one), scores, weights, and the sums that RoPE turns; a group of cores owns a request, or,
where requests are few and have many rows, part of one as long as the keys read twice stay below the goal: decode and
verify of a single request therefore run on one group. The mHC ops: partial sums.

Rates: Ascend C's guide names {MEMORY / 1e12:.1f} TB/s for global memory and 11.06 TOPS of float for a chip of
48 vector cores, which is one repeat of 256 bytes a cycle at {CLOCK / 1e9:.1f} GHz. The documentation's table of vector
instructions gives most of them that; 2 cycles take a repeat of floats of Exp, Ln, Sqrt, Div and MulAddDst, 7 one
that is reduced to a value, 12.8 one of Gather. What an instruction takes to start, and how long one waits for the
result of another, is documented nowhere and not counted. The table of the cube names 16 x 16 x 16 multiply-adds
a cycle in 16 bit and 16 x 16 x 4 in fp32; the page about the second-level cache names {CACHE / 1e12:.0f} TB/s for
reading and writing that. The guide also says that a launch on all
cores takes {START_US:.0f} us before a kernel does anything, so that everything below that is bound by the
launch. Bytes of tensors that several cores read count here as if they came from memory each time.
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
