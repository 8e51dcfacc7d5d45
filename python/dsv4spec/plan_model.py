# SPDX-License-Identifier: Apache-2.0
"""How much a round of drafts is worth: tokens it gives over what it costs, in plain decode steps of the same batch."""
from __future__ import annotations

import json
from dataclasses import dataclass
from typing import Sequence

# (a, g, b, speed-up as printed): 1 draft at 87 % and 2 % of a step, from the papers on multi-token prediction; the others from
# Leviathan et al., "Fast Inference from Transformers via Speculative Decoding": Table 1 and the bigram model of section 3.6,
# where drafts are free, and appendix A.5, where 8 of them take 1.5 % of a step each.
PUBLISHED = ((0.87, 1, 0.02, "1.83"), (0.6, 2, 0.0, "1.96"), (0.7, 3, 0.0, "2.53"), (0.8, 2, 0.0, "2.44"),
             (0.8, 5, 0.0, "3.69"), (0.9, 2, 0.0, "2.71"), (0.9, 10, 0.0, "6.86"), (0.2, 3, 0.0, "1.25"),
             (0.75, 8, 0.015, "3.3"), (0.8, 8, 0.015, "3.9"), (0.87, 8, 0.015, "4.9"))

MOST_DRAFTS = 255  # of a tree or a chain of 256 nodes, the root among them


def expected_tokens(accept: Sequence[float]) -> float:
    """Of a round: the Target's own token and each draft times the chance that it and all before it are accepted.
    ``accept[i]``: the chance of draft i if those before it were accepted. All equal to a: (1 - a^(g+1)) / (1 - a)."""
    total = chance = 1.0
    for a in accept:
        chance *= a
        total += chance
    return total


def speedup(accept: Sequence[float], draft_cost: float, verify_cost: float = 1.0) -> float:
    """Tokens a round over its cost: a NextN forward of ``draft_cost`` for each draft, one verify forward of ``verify_cost``,
    both in plain decode steps of the same batch. With a verify cost of 1 it is (1 - a^(g+1)) / ((1 - a)(g*b + 1))."""
    return expected_tokens(accept) / (len(accept) * draft_cost + verify_cost)


def check_published() -> int:
    """How many published points agree to their last digit: all, or RuntimeError."""
    for a, g, b, printed in PUBLISHED:
        value, digits = speedup([a] * g, b), len(printed.partition(".")[2])
        if f"{value:.{digits}f}" != printed:
            raise RuntimeError(f"plan: a={a} g={g} b={b} gives {value:.3f}, published is {printed}")
    return len(PUBLISHED)


def conditional(drafted: Sequence[int], accepted: Sequence[int]) -> list[float]:
    """Acceptance of each position if those before it were accepted, from counts per position (Metrics); positions that were
    never reached are left out."""
    found, before = [], 1.0
    for offered, taken in zip(drafted, accepted):
        if not offered or not before:
            break
        share = taken / offered
        found.append(min(1.0, share / before))
        before = share
    return found


def extended(accept: Sequence[float], steps: int) -> list[float]:
    """For ``steps`` positions: the last one's value again where there are fewer."""
    return [accept[min(i, len(accept) - 1)] for i in range(steps)]


@dataclass(frozen=True)
class Costs:
    """What a round costs at one batch size, in plain decode steps of that batch."""

    batch: int
    draft: float              # a NextN forward
    verify: tuple[float, ...]  # a verify forward with 1, 2, ... drafts


def knee_costs(batches: Sequence[int], draft: float, steps: int, knee: float | None) -> list[Costs]:
    """A Target forward that takes the same time up to ``knee`` rows and grows with them beyond; None: however many."""
    def forward(rows: int) -> float:
        return max(1.0, rows / knee) if knee else 1.0

    return [Costs(b, draft, tuple(forward(b * (g + 1)) / forward(b) for g in range(1, steps + 1))) for b in batches]


@dataclass(frozen=True)
class Row:
    batch: int
    speedups: tuple[float, ...]  # with 1, 2, ... drafts
    best: int                    # drafts; 0: plain decoding is as quick
    speedup: float
    tokens: float                # a round, with that many drafts


def plan(accept: Sequence[float], costs: Sequence[Costs]) -> list[Row]:
    """The best number of drafts for each batch size; ties go to fewer."""
    rows = []
    for c in costs:
        chances = extended(accept, len(c.verify))
        speeds = tuple(speedup(chances[:g], c.draft, v) for g, v in enumerate(c.verify, 1))
        best = max(range(len(speeds) + 1), key=lambda g: speeds[g - 1] if g else 1.0)
        rows.append(Row(c.batch, speeds, best, speeds[best - 1] if best else 1.0, expected_tokens(chances[:best])))
    return rows


def stops_paying(rows: Sequence[Row]) -> int | None:
    """The smallest batch from which on no number of drafts is worth it; None: it pays at the largest one too."""
    first = None
    for row in sorted(rows, key=lambda r: r.batch):
        first = None if row.best else first if first is not None else row.batch
    return first


def read_costs(path: str) -> list[Costs]:
    """``[{"batch": 8, "draft": 0.1, "verify": [1.1, 1.2]}, ...]``, which ``plan --json F`` has under "costs" as well.
    ValueError in one sentence for anything else."""
    with open(path, encoding="utf-8") as file:
        try:
            rows = json.load(file)
        except ValueError as error:
            raise ValueError(f"--costs: {path}: is not JSON: {error}") from error
    rows = rows.get("costs") if isinstance(rows, dict) else rows
    if not isinstance(rows, list) or not rows:
        raise ValueError(f"--costs: {path}: expected a list of objects with batch, draft and verify")
    return [_costs(f"--costs: {path}: row {i}", row) for i, row in enumerate(rows)]


def _costs(where: str, row) -> Costs:
    def number(value, name, rule, ok):
        if not isinstance(value, (int, float)) or isinstance(value, bool) or not (ok(value) and value < float("inf")):
            raise ValueError(f"{where}: {name}: expected {rule}, got {json.dumps(value)}")
        return value

    if not isinstance(row, dict) or not isinstance(row.get("verify"), list) or not row["verify"]:
        raise ValueError(f"{where}: verify: expected a list of numbers, got "
                         f"{json.dumps(row.get('verify') if isinstance(row, dict) else row)}")
    batch = number(row.get("batch"), "batch", "an integer of at least 1", lambda v: v >= 1 and v % 1 == 0)
    draft = number(row.get("draft"), "draft", "a number of at least 0", lambda v: v >= 0)
    return Costs(int(batch), draft, tuple(number(v, "verify", "a number above 0", lambda v: v > 0) for v in row["verify"]))
