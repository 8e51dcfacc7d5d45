# SPDX-License-Identifier: Apache-2.0
"""The rows of one round at positions s, s+1, ... of each request, as each of its forwards sees them.

:class:`Window` is made for a round. :class:`StaticWindow` stays at its addresses from round to round, for steps
that are captured once and replayed: the host writes rows, lengths and page tables into it before a replay, everything
else is computed from them on the device.
"""
from __future__ import annotations

from typing import Sequence

import numpy as np
import torch

from dsv4spec.ops._dispatch import use_native

from .batch import CompressedView, ForwardBatch, ForwardMode
from .kv_cache import KVCache
from .views import window_entries, window_slots


class Window:
    """A verify window of n rows a request. ``verify`` is the Target's forward over it, whose
    ``input_ids`` are anything until they are known. ``room``: where it lies and may be computed by native code (None:
    elsewhere, or by ops).

    Args:
        width: KV rows that the round may write (n, or more for trees); their pages are reserved, CacheFull before
            anything was taken.
    """

    def __init__(self, cache: KVCache, rows: Sequence[int], n: int, width: int):
        self.cache, self.rows, self.n = cache, rows, n
        if width > n:
            cache.reserve(rows, width)
        self.verify, room, self.last = cache.window(rows, n)  # the largest end of a window
        self.room = room if room is not None and use_native(cache.device) else None
        self._each = cache.query_start(1, len(rows))
        self._by_step = None if room is None else (room.lens, room.step_positions, room.step_slots)

    @property
    def size(self) -> int:
        return len(self.rows)

    def step(self, i: int, ids: torch.Tensor) -> ForwardBatch:
        """Draft step i of a chain: one row a request, at position s + i."""
        whole = self.verify
        if self._by_step is None:  # of all steps at once: positions, lengths and slots, each [n, B]
            lens = whole.live_seq_lens + self.cache.steps(self.n)
            columns = (x.view(-1, self.n).t().contiguous() for x in (whole.positions, whole.slots))
            self._by_step = [x.unbind() for x in (lens, *columns)]
        lens, positions, slots = self._by_step
        return ForwardBatch(ForwardMode.NEXTN_DECODE, ids, positions[i], self._each, lens[i], whole.live_seq_lens,
                            whole.rows, slots[i], whole.table, None, None)

    def nodes(self, mode: ForwardMode, m: int, ids: torch.Tensor) -> ForwardBatch:
        """A NextN forward of m rows a request, at positions s .. s + m - 1."""
        return self.cache.batch(mode, self.rows, ids, m)


class StaticWindow:
    """A window of n rows of B requests at fixed addresses; rows that no request takes are padding (row -1, lengths 0,
    slots and pages -1).

    Args:
        width: KV rows that a round may write (n, or more for trees).

    :meth:`fill` is the host's half, before a replay. :meth:`locate` and the forwards belong inside the capture: they
    read tensors of this object only, and nothing of them depends on values.
    """

    room = None

    def __init__(self, cache: KVCache, size: int, n: int, width: int):
        self.cache, self.size, self.n, self.width = cache, size, n, width
        device = cache.device
        longs, ints = size * (1 + 2 * width), size * (1 + width)
        words = longs + (ints + 1) // 2
        self._memory = torch.zeros(words, dtype=torch.int64, device=device)
        self._staged = torch.zeros(words, dtype=torch.int64, pin_memory=device.type == "cuda")
        self.rows, self._positions, self._by_step, self.live, self._lens = _parts(self._memory, size, width)
        self._host = [part.numpy() for part in _parts(self._staged, size, width)]
        self._tables = {name: _StaticTable(table, size, device) for name, table in cache.page_tables.items()}
        self._starts = {m: cache.query_start(m, size) for m in range(1, width + 1)}

    def fill(self, rows: Sequence[int]) -> None:
        """Reserve pages for the round of ``rows`` (at most B) and describe it. CacheFull before anything was taken;
        the window must end before max_len."""
        padded = np.full(self.size, -1, np.int64)
        padded[:len(rows)] = rows
        live = self.cache.reserve_window(padded, self.width)
        real, steps = padded >= 0, np.arange(self.width)
        host_rows, positions, by_step, host_live, lens = self._host
        host_rows[:], host_live[:] = padded, live
        positions[:] = live[:, None] + steps
        by_step[:] = positions.T
        lens[:] = (by_step + 1) * real  # of padding 0 in every step
        self._memory.copy_(self._staged, non_blocking=True)
        for table in self._tables.values():
            table.fill(padded)

    # ------------------------------------------------------------------------------------ inside the capture
    def locate(self) -> None:
        """Slots and compressed entries of the round, from lengths and page tables."""
        cache, table = self.cache, self._tables["SWA"].device
        slots = window_slots(table, self.live, self._positions, self.width, page_size=cache.page_size, limit=None)
        self._slots = slots.view(self.size, self.width)
        self._slots_by_step = self._slots.t().contiguous()
        n, views = self.n, {}
        positions, slots = self._first(self._positions, n), self._first(self._slots, n)
        pools = {ratio: self._tables[f"C{ratio}"] for ratio in (4, 128) if f"C{ratio}" in self._tables}
        if pools:
            starts, locs = window_entries(positions, self.live, {r: t.device for r, t in pools.items()},
                                          {r: t.page for r, t in pools.items()}, n)
            views = {r: CompressedView(r, t.page, t.device, starts[r], locs[r], True) for r, t in pools.items()}
        self.verify = ForwardBatch(ForwardMode.TARGET_VERIFY, positions.new_empty(self.size * n), positions,
                                   self._starts[n], self._lens[n - 1], self.live, self.rows, slots, table, views.get(4),
                                   views.get(128))

    def step(self, i: int, ids: torch.Tensor) -> ForwardBatch:
        """See :meth:`Window.step`."""
        return ForwardBatch(ForwardMode.NEXTN_DECODE, ids, self._by_step[i], self._starts[1], self._lens[i], self.live,
                            self.rows, self._slots_by_step[i], self._tables["SWA"].device, None, None)

    def nodes(self, mode: ForwardMode, m: int, ids: torch.Tensor) -> ForwardBatch:
        """See :meth:`Window.nodes`."""
        return ForwardBatch(mode, ids, self._first(self._positions, m), self._starts[m], self._lens[m - 1], self.live,
                            self.rows, self._first(self._slots, m), self._tables["SWA"].device, None, None)

    @staticmethod
    def _first(columns: torch.Tensor, m: int) -> torch.Tensor:
        """The first m columns, request-major; a view if these are all."""
        return columns[:, :m].reshape(-1)


def _parts(memory: torch.Tensor, size: int, width: int) -> list[torch.Tensor]:
    """int64 rows [B], positions [B, w] and their transpose; int32 live lengths [B], and lengths [w, B] after step i."""
    rows, positions, by_step, rest = memory.split([size, size * width, size * width,
                                                   len(memory) - size * (1 + 2 * width)])
    live, lens = rest.view(torch.int32)[:size * (1 + width)].split([size, size * width])
    return [rows, positions.view(size, width), by_step.view(width, size), live, lens.view(width, size)]


class _StaticTable:
    """The table rows of B requests of one pool, as wide as the table: int32 [B, columns]."""

    def __init__(self, table, size: int, device: torch.device):
        self._table, self._key, self.page = table, None, table.page
        shape = (size, table.table.shape[1])
        self._staged = torch.full(shape, -1, dtype=torch.int32, pin_memory=device.type == "cuda")
        self.device = self._staged.to(device, copy=True)

    def fill(self, rows: np.ndarray) -> None:
        key = (self._table.version, tuple(rows.tolist()))
        if key != self._key:
            np.take(self._table.table, rows, axis=0, out=self._staged.numpy(), mode="wrap")
            self.device.copy_(self._staged, non_blocking=True)
            self._key = key
