# SPDX-License-Identifier: Apache-2.0
"""Which cases of each op ``dsv4spec bench`` measures: rows of a decode or verify step, of a prefill, batches, contexts."""
from __future__ import annotations

from typing import Iterator

from . import bench_specs, bench_specs_integers  # noqa: F401  (they fill bench_cases.SPECS)
from .bench_cases import HALF, MEMORY, QUICK

FEW, MANY, BATCHES, CONTEXTS = (1, 4, 16, 64), 4096, (1, 64, 512), (8192, 32768)
TINY = (1, 3), 20, (1, 2), (72, 136)


def sweep(size: str) -> Iterator[tuple[str, str | None, dict]]:
    """(op, goal on a GPU, parameters that are not the size's own)."""
    few, many, batches, contexts = TINY if size == "tiny" else (FEW, MANY, BATCHES, CONTEXTS)
    large = MEMORY if many >= 4096 else None
    for T in (*few, many // 4):
        for weights in ("bf16", "e4m3"):
            yield "nextn_fuse_hidden", MEMORY if T <= 16 else None, dict(T=T, weights=weights)
    for T in (*few[::2], many):
        for op in ("mhc_pre", "mhc_post", "mhc_post_pre", "mhc_head"):
            yield op, large if T == many else None, dict(T=T)
    for T in (*few[::2], many):
        for op in ("q_norm_rope", "swa_store_kv"):
            yield op, None, dict(T=T)
    low, middle, high = batches[0], batches[1], batches[-1]
    for kind, B, rows, goal in (("decode", low, 1, None), ("decode", middle, 1, None), ("decode", high, 1, MEMORY),
                                ("verify", low, 4, HALF), ("verify", middle, 4, HALF), ("tree", middle, 16, None),
                                ("extend", low, 64, None)):
        yield "swa_paged_attention", goal, dict(kind=kind, B=B, rows=rows)
    yield from _target(few, batches, contexts)
    for B in (low, middle, 2 * high):
        for op in ("verify_positions_padding", "verify_metadata", "select_draft_topk", "build_tree", "verify_tree_greedy",
                   "alloc_extend", "assign_draft_slots"):
            yield op, QUICK, dict(B=B)
        yield "move_accepted_kv", large if B > high else QUICK, dict(B=B)  # 1024 requests: 8 MB of rows
    for B in (low, min(middle, 16)):
        yield "verify_tree_sampling", None, dict(B=B)


def _target(few, batches, contexts):
    batches = sorted({1, min(batches[1], 16)})
    for B in batches:
        for rows in (1, 4):
            for ratio, coff in ((4, 2), (128, 1)):
                yield "compress_kv", None, dict(B=B, rows=rows, ratio=ratio, coff=coff)
            for length in contexts:
                yield "lightning_index", None, dict(B=B, rows=rows, length=length)
                for ratio in (4, 128):
                    yield "sparse_paged_attention", None, dict(B=B, rows=rows, length=length, ratio=ratio)
    for T in few:
        yield "moe_experts", None, dict(T=T)
        yield "linear", None, dict(T=T)
        yield "route_experts", None, dict(T=T)
