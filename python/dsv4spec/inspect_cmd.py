# SPDX-License-Identifier: Apache-2.0
"""``dsv4spec inspect DIR``: a checkpoint's layers, dtypes, sizes, and what is missing, from the headers alone."""
from __future__ import annotations

import json
import sys
from collections import Counter


def add_arguments(parser) -> None:
    parser.add_argument("directory", metavar="DIR", help="holds config.json and *.safetensors")
    parser.add_argument("--json", action="store_true", help="print one JSON object")


def run(args) -> int:
    """Exit code 0: loadable; 1: tensors missing or wrong, or not a checkpoint of this model."""
    try:
        report = inspect(args.directory)
    except ValueError as error:  # ConfigError, CheckpointError
        print(f"dsv4spec inspect: {error}", file=sys.stderr)
        return 1
    print(json.dumps(report, indent=1) if args.json else text(report))
    return 1 if report["missing"] or report["wrong"] else 0


def inspect(directory) -> dict:
    """What is in a checkpoint: ``parts`` (rows of the table), ``missing``, ``wrong``, ``unknown``, ``nextn``, totals."""
    from .models import Checkpoint, DeepseekV4Config, weights

    config = DeepseekV4Config.from_dir(directory)
    checkpoint = Checkpoint(directory, config.num_hidden_layers)
    nextn = weights.has_nextn(checkpoint)
    specs = weights.target_tensors(config) | (weights.nextn_tensors(config) if nextn else {})
    missing, wrong = weights.faults(checkpoint, specs, config.block)
    unknown = set(weights.unknown(checkpoint, specs))
    parts = [_part("embed, head", "", lambda n: n.split(".")[0] not in ("layers", "mtp"), checkpoint, unknown)]
    for i, ratio in enumerate(config.compress_ratios):
        kind = f"{'window' if not ratio else f'C{ratio}'}, {'hash' if i < config.num_hash_layers else 'top-k'} MoE"
        parts.append(_part(f"layers.{i}", kind, lambda n, p=f"layers.{i}.": n.startswith(p), checkpoint, unknown))
    if nextn:
        parts.append(_part("mtp.0", "window, top-k MoE (NextN)", lambda n: n.startswith("mtp.0."), checkpoint, unknown))
    sizes = dict(hidden=config.hidden_size, heads=config.num_attention_heads, head_dim=config.head_dim,
                 layers=config.num_hidden_layers, window=config.sliding_window, streams=config.hc_mult,
                 experts=config.n_routed_experts, experts_per_token=config.num_experts_per_tok, vocab=config.vocab_size)
    entries = checkpoint.entries
    return dict(directory=str(directory), sizes=sizes, files=sorted({e.shard for e in entries.values()}), parts=parts,
                nextn=nextn, tensors=len(entries), bytes=sum(e.nbytes for e in entries.values()), missing=missing,
                wrong=wrong, unknown=sorted(unknown))


def _part(name: str, kind: str, mine, checkpoint, unknown: set[str]) -> dict:
    entries = {n: e for n, e in checkpoint.entries.items() if mine(n) and n not in unknown}
    per_dtype = Counter()
    for e in entries.values():
        per_dtype[e.dtype] += e.nbytes
    return dict(name=name, kind=kind, tensors=len(entries), bytes=sum(per_dtype.values()),
                dtypes=dict(per_dtype.most_common()))


def _size(n: float) -> str:
    for unit in ("B", "KiB", "MiB", "GiB"):
        if n < 1024 or unit == "GiB":
            return f"{n:.0f} {unit}" if unit == "B" else f"{n:.1f} {unit}"
        n /= 1024
    raise AssertionError


def text(report: dict) -> str:
    from .models.checkpoint import listed

    lines = [f"{report['directory']}: " + ", ".join(f"{k} {v}" for k, v in report["sizes"].items()),
             f"{report['tensors']} tensors, {_size(report['bytes'])} in {len(report['files'])} file(s)", ""]
    rows = [("part", "kind", "tensors", "size", "dtypes by size")]
    rows += [(p["name"], p["kind"], str(p["tensors"]), _size(p["bytes"]),
              " ".join(f"{d} {_size(n)}" for d, n in p["dtypes"].items())) for p in report["parts"]]
    widths = [max(len(row[i]) for row in rows) for i in range(4)]
    lines += ["  ".join([*(c.ljust(w) for c, w in zip(row, widths)), row[4]]).rstrip() for row in rows] + [""]
    lines.append("NextN layer: " + ("mtp.0" if report["nextn"] else "absent (no mtp.* tensors): plain decoding only"))
    lines.append("missing: " + (listed(report["missing"], 60) if report["missing"] else "nothing"))
    lines += [f"wrong: {w}" for w in report["wrong"]]
    if report["unknown"]:
        lines.append(f"not used: {listed(report['unknown'], 40)}")
    return "\n".join(lines)
