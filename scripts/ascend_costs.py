#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""What the AscendC kernels cost at Flash sizes, counted by the emulator: writes docs/ascend_costs.md, or with names of
ops prints their rows. Counts do not depend on the data nor on the machine that emulates.

    python scripts/ascend_costs.py [OP ...]
"""
from __future__ import annotations

import math
import sys
from dataclasses import dataclass
from pathlib import Path

from dsv4spec.bench_cases import QUICK, Case, cases
from dsv4spec.bench_emulated import Library, model
from dsv4spec.bench_model import ATLAS_A2, VECTOR_CORES, Cost
from dsv4spec.ops.table import NO_KERNEL

OUT = Path(__file__).resolve().parents[1] / "docs" / "ascend_costs.md"
NAMES = {"memory": "memory", "L2": "scratch", "products": "cube", "arithmetic": "vector"}
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


def emulator() -> Library:
    return Library("ascend_emu")


@dataclass(frozen=True)
class Row:
    case: Case
    cost: Cost

    @property
    def moved(self) -> int:     # between tensors and local memory
        return self.cost.total("memory")

    @property
    def scratch(self) -> int:   # likewise scratch
        return self.cost.total("cache")

    @property
    def launches(self) -> int:
        return self.cost.total("launches")

    @property
    def ratio(self) -> float:
        return self.moved / self.case.bytes

    def text(self) -> str:
        terms, clock = self.cost.cycles_of("parallel"), ATLAS_A2.clock / 1e6
        us = {name: cycles / clock for name, cycles in terms.items()}
        longest = max(us, key=us.get)
        bound = "launch" if us[longest] < ATLAS_A2.launch * 1e6 else f"{NAMES[longest]}, {us[longest]:.0f} us"
        launch = self.case.bytes <= LAUNCH or self.case.goal == QUICK
        over = ["-" if launch else f"{n / self.case.bytes:.2f}" for n in (self.moved, self.scratch)]
        cycles = [f"{math.ceil(terms[n])} ({us[n]:.1f})" if terms[n] else "-" for n in ("arithmetic", "products")]
        blocks = max(kernel.blocks // kernel.launches for kernel in self.cost.kernels)
        return (f"| `{self.case.op}` | {self.case.label} | {self.launches}, {blocks} | {self.moved} | {over[0]} | "
                f"{self.scratch} | {over[1]} | {cycles[0]} | {cycles[1]} | {us['memory']:.1f} | {us['L2']:.1f} | {bound} |")


def measure(case: Case, lib: Library) -> Row:
    return Row(case, model(case, lib))


def table(rows) -> str:
    lines = ["| op | | launches, blocks | bytes moved | / fewest | through L2 | / fewest | vector | cube | memory | L2 | bound |",
             "| --- " * 12 + "|"]
    return "\n".join([*lines, *(row.text() for row in rows)])


TEXT = f"""# Costs of the AscendC kernels, predicted

Written by `scripts/ascend_costs.py` from the emulator's counters, not measured: one call at the sizes of
DeepSeek-V4 Flash, bf16, {VECTOR_CORES} vector and {ATLAS_A2.cores} cube cores. *bytes moved*: between the op's tensors
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

Rates: Ascend C's guide names {ATLAS_A2.memory / 1e12:.1f} TB/s for global memory and 11.06 TOPS of float for a chip of
48 vector cores, which is one repeat of 256 bytes a cycle at {ATLAS_A2.clock / 1e9:.1f} GHz. The documentation's table of vector
instructions gives most of them that; 2 cycles take a repeat of floats of Exp, Ln, Sqrt, Div and MulAddDst, 7 one
that is reduced to a value, 12.8 one of Gather. What an instruction takes to start, and how long one waits for the
result of another, is documented nowhere and not counted. The table of the cube names 16 x 16 x 16 multiply-adds
a cycle in 16 bit and 16 x 16 x 4 in fp32; the page about the second-level cache names {ATLAS_A2.cache / 1e12:.0f} TB/s for
reading and writing that. The guide also says that a launch on all
cores takes {ATLAS_A2.launch * 1e6:.0f} us before a kernel does anything, so that everything below that is bound by the
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
