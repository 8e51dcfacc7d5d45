# SPDX-License-Identifier: Apache-2.0
"""Slots and compressed entries of a forward.

Those of a window (verify, decode, and the draft steps of a chain, which are columns of the verify window) are computed
by the ops, from lengths and tables that are tensors of the device: nothing is read back and no shape depends on
values, so a captured graph can hold these calls. The host adds what it knows from its lengths alone: whether anything
is emitted, and whether rows lie at positions >= max_len, which get no slot and emit no entry.
"""
from __future__ import annotations

import numpy as np
import torch

from .. import ops
from .batch import CompressedView
from .groups import Group, Groups
from .pages import PageTable, spread

RATIOS = (4, 128)


def window_slots(table: torch.Tensor, live_seq_lens: torch.Tensor, positions: torch.Tensor, n: int, *,
                 page_size: int, limit: int | None, out: torch.Tensor | None = None) -> torch.Tensor:
    """Slots int64 ``[B * n]`` of a window's rows, at ``positions`` = live length + 0 .. n - 1; column i of them is draft
    step i. Positions from ``limit`` on (None: there are none) get -1."""
    slots = ops.assign_draft_slots(table, live_seq_lens, topk=1, num_steps=n, page_size=page_size,
                                   out=out).view(-1)
    return slots if limit is None else slots.masked_fill_(positions >= limit, -1)


def window_views(pools: dict[int, PageTable], groups: Groups, group: Group, positions: torch.Tensor,
                 live_seq_lens: torch.Tensor, n: int, *, begin: np.ndarray, end: np.ndarray, last: int,
                 max_len: int, room=None) -> dict[int, CompressedView]:
    """Views of a window of n rows a request, by one call of ``ops.verify_metadata``.

    Args:
        pools: ratio -> table. positions: int64 ``[B * n]``. live_seq_lens: int32 ``[B]``, ``begin`` as a tensor.
        begin, end: positions of each request's rows, from and to; 0 for padding. last: the largest end.
        room: see :func:`window_entries`.
    """
    if not pools:
        return {}
    tables = {ratio: groups.gather(table, group, last // ratio) for ratio, table in pools.items()}
    pages, read = {ratio: table.page for ratio, table in pools.items()}, tables
    if last > max_len:  # the op wants a page for every entry: those past max_len get page 0 here, and no loc below
        read = {ratio: _with_pages_past(table, max_len // ratio, pages[ratio]) for ratio, table in tables.items()}
    starts, locs = window_entries(positions, live_seq_lens, read, pages, n, room)
    stored, views = end if last <= max_len else np.minimum(end, max_len), {}
    for ratio, table in tables.items():
        if last > max_len:
            locs[ratio].masked_fill_(starts[ratio] > max_len - ratio, -1)
        emits = bool((stored // ratio != begin // ratio).any())
        views[ratio] = CompressedView(ratio, pages[ratio], table, starts[ratio], locs[ratio], emits)
    return views


def window_entries(positions: torch.Tensor, live_seq_lens: torch.Tensor, tables: dict[int, torch.Tensor],
                   pages: dict[int, int], n: int, room=None) -> tuple[dict[int, torch.Tensor], dict[int, torch.Tensor]]:
    """(positions, locs) by ratio of the entries that a window may complete, on the device alone.

    Args:
        tables, pages: entry pages int32 ``[B, columns]`` and entries per page, by ratio; of one ratio at least.
        room: of :func:`entry_room`, or None.
    """
    spare = next(iter(tables.values()))  # of a ratio without a pool: page 0 says so, and its table is not read
    args = [tables.get(ratio, spare) for ratio in RATIOS]
    found = ops.verify_metadata(positions, live_seq_lens, *args, n, c4_page=pages.get(4, 0), c128_page=pages.get(128, 0),
                                out=room or entry_room(positions, live_seq_lens))
    return dict(zip(RATIOS, found[:2])), dict(zip(RATIOS, found[4:]))


def entry_room(positions: torch.Tensor, live_seq_lens: torch.Tensor) -> tuple[torch.Tensor, ...]:
    """Outputs for ops.verify_metadata, of two allocations."""
    T, B = positions.shape[0], live_seq_lens.shape[0]
    sizes = [max(1, min(T, T // ratio + B)) for ratio in RATIOS]
    longs = positions.new_empty(2 * sum(sizes)).split_with_sizes(sizes * 2)
    return (*longs[:2], *live_seq_lens.new_empty(2, B).unbind(), *longs[2:])


def _with_pages_past(table: torch.Tensor, entries: int, page: int) -> torch.Tensor:
    """The table with page 0 in the columns behind those of the first ``entries`` entries."""
    table = table.clone()
    table[:, -(-entries // page):] = 0
    return table


def prefill_views(pools: dict[int, PageTable], groups: Groups, group: Group, begin: np.ndarray, end: np.ndarray, *,
                  max_len: int) -> dict[int, CompressedView]:
    """Views of a prefill: entry w is completed by the token at ratio * (w + 1) - 1, one of begin .. end - 1.

    On the host, as the slots of a prefill are: ``PageTable.locate`` finds both for requests of unlike lengths in the
    table that must be kept anyway; ops.alloc_extend would need the list of free pages on the device besides.
    """
    last, views = int(end.max(initial=0)), {}
    for ratio, table in pools.items():
        first = begin // ratio
        owners, entries = spread(group.rows, first, end // ratio - first)
        locs = table.locate(owners, entries)
        if last > max_len:  # such entries keep their place in the packed list, as their tokens do
            locs[entries >= max_len // ratio] = -1
        views[ratio] = CompressedView(ratio, table.page, groups.gather(table, group, last // ratio),
                                      groups.tensor(entries * ratio), groups.tensor(locs), bool((locs >= 0).any()))
    return views
