# SPDX-License-Identifier: Apache-2.0
"""Memory of verify windows on the host."""
from __future__ import annotations

import numpy as np
import torch

from dsv4spec import _C

from .allocation import Allocation
from .batch import CompressedView, ForwardBatch, ForwardMode
from .groups import Group, Groups
from .views import entry_room


class WindowRoom:
    """Tensors that describe windows of n rows of B requests, and the arrays that they lie in: made once, written for each
    window, so that one window of a size is alive at a time. All are request-major, or by step ``[n][B]``.

    Attributes: ``positions``, ``slots`` int64 ``[B * n]``; ``live`` int32 ``[B]``; ``lens`` int32, ``step_positions`` and
    ``step_slots`` int64, lists of n tensors ``[B]``; ``entries``: outputs of ops.verify_metadata, ``entries_of[ratio]``
    (positions, locs) of them. Of a chain's round: ``ids`` of the verify window and ``predict``, the Target's choices, int64
    ``[B * n]``; ``picked`` int64 ``[B]``, see round.picked_rows.
    """

    def __init__(self, requests: int, n: int, pages: Allocation):
        with torch.inference_mode(False):  # plain tensors, that any later mode may write
            self._steps = np.arange(n)
            self._positions, self._slots = (np.zeros((requests, n), np.int64) for _ in "ps")
            self._by_step, self._slots_by_step = (np.zeros((n, requests), np.int64) for _ in "ps")
            self._live, self._lens = np.zeros(requests, np.int32), np.zeros((n, requests), np.int32)
            self.positions, self.slots = (torch.from_numpy(x).view(-1) for x in (self._positions, self._slots))
            self.slots_of = torch.from_numpy(self._slots)
            self.live = torch.from_numpy(self._live)
            self.lens, self.step_positions, self.step_slots = (
                torch.from_numpy(x).unbind() for x in (self._lens, self._by_step, self._slots_by_step))
            self.entries = entry_room(self.positions, self.live)
            self._chain = [np.zeros(size, np.int64) for size in (requests * n,) * 3 + (requests,)]
            _, self.ids, self.predict, self.picked = map(torch.from_numpy, self._chain)
            self.entries_of = {4: (self.entries[0], self.entries[4]), 128: (self.entries[1], self.entries[5])}
            self.native = _C.HostWindow(  # fills the same memory in one call
                pages.native, self._positions, self._by_step, self._slots, self._slots_by_step, self._live, self._lens,
                *self._chain, [(ratio, table.table, table.page, *(x.numpy() for x in self.entries_of[ratio]))
                                for ratio, table in pages.compressed.items()])

    def fill(self, begin: np.ndarray) -> None:
        """Positions and lengths of windows that start at ``begin``, int64 [B]."""
        np.add(begin[:, None], self._steps, out=self._positions)
        self._by_step[...] = self._positions.T
        self._live[...] = begin
        np.add(self._by_step, 1, out=self._lens, casting="unsafe")

    def place(self) -> None:
        """Once ``slots_of`` is written: the same by step."""
        self._slots_by_step[...] = self._slots.T

    def describe(self, pages: Allocation, groups: Groups, group: Group) -> tuple[ForwardBatch, WindowRoom, int] | None:
        """What KVCache.window gives, by one native call instead of allocate, fill, the ops and place; None where pages are
        missing, or rows, lengths or max_len ask for another way."""
        found = self.native.fill(group.key)
        if found is None:
            return None
        last, *emits = found
        views = {ratio: CompressedView(ratio, table.page, groups.gather(table, group, last // ratio),
                                       *self.entries_of[ratio], some)
                 for (ratio, table), some in zip(pages.compressed.items(), emits)}
        return self.forward(groups, group, groups.gather(pages.swa, group, last), views), self, last

    def forward(self, groups: Groups, group: Group, table: torch.Tensor, views: dict[int, CompressedView]) -> ForwardBatch:
        """The Target's forward over the window that lies here."""
        starts = groups.query_start(len(self.lens), len(group.rows))
        return ForwardBatch(ForwardMode.TARGET_VERIFY, self.ids, self.positions, starts, self.lens[-1], self.live,
                            group.tensor, self.slots, table, views.get(4), views.get(128))


def check_window(mode: ForwardMode, rows: np.ndarray, begin: np.ndarray, counts) -> None:
    """ValueError unless all requests have as many rows, behind at least one token."""
    if not isinstance(counts, int):
        raise ValueError(f"batch: counts: expected one number for {mode.value}, got {counts}")
    wrong = begin < 1
    if wrong.any() and (wrong := wrong & (rows >= 0)).any():
        raise ValueError(f"batch: rows: expected rows with tokens before a {mode.value}, got row "
                         f"{rows[np.argmax(wrong)]} at length 0, which the ops take for padding")
