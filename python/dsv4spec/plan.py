# SPDX-License-Identifier: Apache-2.0
"""``dsv4spec plan``: how many drafts a round should have at each batch size, and from which on speculation does not pay, by
the speed-up formula of multi-token prediction with acceptance per position and a verify cost that grows with the batch."""
from __future__ import annotations

import argparse
import sys
from dataclasses import asdict

from . import plan_model
from ._files import check_writable, write_json
from .demo import ASSET
from .generate import positive

BATCHES = (1, 2, 4, 8, 16, 32, 64, 128, 256)
MEASURED_BATCHES = (1, 2, 4, 8)
DRAFT_COST = 0.02


def share(text: str) -> float:
    """argparse type: a number from 0 to 1."""
    value = float(text)
    if not 0 <= value <= 1:
        raise argparse.ArgumentTypeError(f"expected 0 to 1, got {text}")
    return value


def cost(text: str) -> float:
    """argparse type: a finite number of at least 0."""
    value = float(text)
    if not 0 <= value < float("inf"):
        raise argparse.ArgumentTypeError(f"expected at least 0, got {text}")
    return value


def drafts(text: str) -> int:
    """argparse type: what a verify window can have beside the bonus token."""
    value = positive(text)
    if value > plan_model.MOST_DRAFTS:
        raise argparse.ArgumentTypeError(f"expected at most {plan_model.MOST_DRAFTS}, got {text}")
    return value


def add_arguments(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("--accept", type=share, nargs="+", metavar="A", help="chance that draft 1, 2, ... is accepted if "
                        "those before it were; the last counts for all after it (measured, or 0.87)")
    parser.add_argument("--draft-cost", type=cost, metavar="B",
                        help="a NextN forward in plain decode steps (0.02; not with --costs or --measure, which tell it)")
    parser.add_argument("--max-steps", type=drafts, metavar="N", help="most drafts a round (8; 3 when measured)")
    parser.add_argument("--batch", type=positive, nargs="+", metavar="N",
                        help="batch sizes (1 2 4 ... 256; 1 2 4 8 when measured)")
    verify = parser.add_mutually_exclusive_group()
    verify.add_argument("--verify-knee", type=positive, metavar="ROWS", help="a Target forward takes the same time up to "
                        "so many rows and grows with them beyond (default: always the same)")
    verify.add_argument("--costs", metavar="F.json", help='[{"batch": 8, "draft": 0.1, "verify": [1.1, 1.2, ...]}, ...]: '
                        "the forwards in plain decode steps of that batch, verify with 1, 2, ... drafts")
    verify.add_argument("--measure", nargs="?", const=str(ASSET), metavar="MODEL",
                        help="measure acceptance and costs with this checkpoint on the CPU (default: the one in the box)")
    parser.add_argument("--max-new-tokens", type=positive, default=64, metavar="N", help="of a request, when measured (64)")
    parser.add_argument("--json", metavar="F", help="write everything to this file")
    parser.add_argument("--plot", metavar="F.png", help="speed-up against batch size, a line for each number of drafts")


def run(args: argparse.Namespace) -> int:
    try:
        for path in filter(None, (args.json, args.plot)):
            check_writable(path)
        if args.plot:
            from .bench_plot import pyplot

            pyplot()
        result = planned(args)
    except (ValueError, RuntimeError, OSError, OverflowError) as error:
        print(f"dsv4spec: error: plan: {error}", file=sys.stderr)
        return 1
    print(text(result))
    if args.json:
        write_json(args.json, result)
    if args.plot:
        plot(result, args.plot)
    return 0


def planned(args) -> dict:
    """Acceptance, costs and the plan as JSON-ready values."""
    if args.draft_cost is not None and (args.measure or args.costs):
        other = "measure" if args.measure else "costs"
        raise ValueError(f"--draft-cost: expected nothing beside --{other}, got {args.draft_cost}")
    result = {"published_points": plan_model.check_published(), "measured": None}
    accept = args.accept or [0.87]
    if args.measure:
        from .plan_measure import measure

        result["measured"] = measured = measure(args.measure, args.batch or MEASURED_BATCHES, args.max_steps or 3,
                                                args.max_new_tokens)
        costs = [plan_model.Costs(row["batch"], row["draft"], tuple(row["verify"])) for row in measured["costs"]]
        if not args.accept:
            accept = measured["accept"]
    elif args.costs:
        costs = plan_model.read_costs(args.costs)
        if args.batch:
            costs = [c for c in costs if c.batch in args.batch]
        if args.max_steps:
            costs = [plan_model.Costs(c.batch, c.draft, c.verify[:args.max_steps]) for c in costs]
        if not costs:
            raise ValueError(f"--costs {args.costs}: none of the batch sizes asked for is in it")
    else:
        draft = DRAFT_COST if args.draft_cost is None else args.draft_cost
        costs = plan_model.knee_costs(args.batch or BATCHES, draft, args.max_steps or 8, args.verify_knee)
    rows = plan_model.plan(accept, costs)
    return result | {"accept": list(accept), "costs": [asdict(c) for c in costs], "rows": [asdict(r) for r in rows],
                     "stops_paying_at_batch": plan_model.stops_paying(rows)}


def text(result: dict) -> str:
    """The table: the speed-up with each number of drafts, the best one marked."""
    steps = max(len(row["speedups"]) for row in result["rows"])
    lines = [f"accepted at each position: {'  '.join(f'{a:.3f}' for a in result['accept'])}; the formula agrees with "
             f"{result['published_points']} published points",
             f"{'batch':>6} {'drafts':>7} {'tokens/round':>13} {'speed-up':>9}   speed-up with "
             + "".join(f"{g:>8}" for g in range(1, steps + 1)) + " drafts"]
    for row in result["rows"]:
        each = [f"{s:.2f}{'*' if g == row['best'] else ' '}" for g, s in enumerate(row["speedups"], 1)]
        lines.append(f"{row['batch']:>6} {row['best']:>7} {row['tokens']:>13.2f} {row['speedup']:>9.2f} {'':16}"
                     + "".join(f"{e:>8}" for e in each))
    batch = result["stops_paying_at_batch"]
    dips = [str(row["batch"]) for row in result["rows"] if not row["best"]]
    lines.append(f"speculation does not pay from batch {batch} on" if batch is not None else
                 f"speculation does not pay at batch {', '.join(dips)}, but at larger ones" if dips else
                 "speculation pays at every batch size above")
    if measured := result["measured"]:
        lines += ["measured on this machine, whole runs with prefill, speculative over plain:"]
        lines += [f"{row['batch']:>6} {'':48}" + "".join(f"{s:>7.2f} " for s in row["speedups"])
                  for row in measured["runs"]]
    return "\n".join(line.rstrip() for line in lines)


def plot(result: dict, path: str) -> None:
    from .bench_plot import pyplot, save

    figure, panel = pyplot().subplots(figsize=(9, 6), layout="constrained")
    rows = sorted(result["rows"], key=lambda row: row["batch"])
    for g in range(1, max(len(row["speedups"]) for row in rows) + 1):
        have = [row for row in rows if len(row["speedups"]) >= g]
        panel.plot([row["batch"] for row in have], [row["speedups"][g - 1] for row in have], marker="o", markersize=3,
                   label=f"{g} draft{'s' * (g > 1)}")
    panel.plot([row["batch"] for row in rows], [row["speedup"] for row in rows], color="black", linewidth=3, alpha=0.25,
               label="best")
    panel.axhline(1, color="grey", linestyle="--", linewidth=1)
    panel.set_xscale("log", base=2)
    panel.set(title="speculative over plain decoding", xlabel="requests (batch)", ylabel="speed-up")
    panel.legend(fontsize=8)
    save(figure, path)
