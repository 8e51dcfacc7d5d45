# SPDX-License-Identifier: Apache-2.0
"""Which pages each request holds: reservation, commit, recycling, free. Host only, exact, no tensors.

Which window pages may go, and when. A query at position p reads the window keys max(0, p - W + 1) .. p. In the
round that starts at committed length s, queries stand at s .. s + n - 1: those of the draft forwards, of the verify
forward, and of the draft extend too, which runs *after* commit but starts at the old s. So nobody may lose a key
>= s - W + 1 before the round's last forward, whatever was committed meanwhile; once the *next* round begins at
s' > s, nobody can ask for a key < s' - W + 1 any more. Hence commit recycles nothing. Pages go where a reservation
or forward starts at a position b and needs new pages: column c of the table (positions c*P .. c*P + P - 1) goes iff

    c*P + P - 1 < min(b, s) - W + 1,   that is   c < max(0, min(b, s) - W + 1) // P.

One column more would take a key that the query at b still reads; one less would keep a page that nobody reads. A
row gets pages only after its dead ones went, so it never holds more than the pages of W - 1 + max(chunk, n) tokens
(``pages_per_request``), in chunked prefill too. A forward that starts where keys are gone is refused.
"""
from __future__ import annotations

import numpy as np

from dsv4spec import _C

from .pages import PageTable

C128_PAGE = 16  # entries


class Allocation:
    """Pages and committed lengths of up to ``max_requests`` rows; row -1 is padding and never holds anything.

    ``swa`` is the table of window pages (Target layers and draft), ``compressed`` maps a ratio to its table. The
    compressed pools have allocators of their own, since their pages live as long as the request.
    """

    def __init__(self, ratios, *, window: int, page_size: int, max_requests: int, max_total_tokens: int,
                 max_len: int, num_draft_tokens: int, prefill_chunk: int):
        self.window, self.max_len, self.max_requests = window, max_len, max_requests
        held = window - 1 + max(prefill_chunk, num_draft_tokens)  # tokens, at any alignment to pages:
        self.pages_per_request = (held + page_size - 2) // page_size + 1
        pages = -(-max_total_tokens // page_size)
        slack = max_len + num_draft_tokens  # a window may run past max_len: the tables have columns for it
        self.swa = PageTable("SWA", min(pages, max_requests * self.pages_per_request), page_size,
                             requests=max_requests, columns=slack // page_size + 1)
        self.compressed: dict[int, PageTable] = {}
        for ratio, page in ((4, page_size // 4), (128, C128_PAGE)):
            if ratio in ratios:
                # Each request may waste most of a long C128 page, so this pool has one more for each.
                total = pages if ratio == 4 else -(-max_total_tokens // (ratio * page)) + max_requests - 1
                self.compressed[ratio] = PageTable(f"C{ratio}", total, page, requests=max_requests,
                                                   columns=slack // ratio // page + 1)
        self.tables = (self.swa, *self.compressed.values())
        self.length = np.zeros(max_requests + 1, np.int64)  # committed tokens
        self.is_open = np.zeros(max_requests + 1, bool)
        # Positions below _ready[0][row] have their SWA pages, below _ready[1][row] their pages in every pool.
        self._ready = np.zeros((2, max_requests + 1), np.int64)
        self.native = _C.HostPages(self.length, self._ready[1], max_len, self.swa.table, page_size)  # of the same memory

    def open(self) -> int:
        row = int(np.argmin(self.is_open[:-1]))
        if self.is_open[row]:
            raise ValueError(f"open: expected a free row, got all {self.max_requests} in use")
        self.is_open[row] = True
        return row

    def free(self, row: int) -> None:
        self.check_open(np.asarray([row]), "free")
        for table in self.tables:
            table.release(row)
        self.length[row] = 0
        self._ready[:, row] = 0
        self.is_open[row] = False

    def allocate(self, rows: np.ndarray, begin: np.ndarray, end: np.ndarray, *, every_pool: bool) -> None:
        """Pages for positions up to ``end`` (at most max_len, 0 for padding), all or nothing, for a forward that
        starts at ``begin``; window pages that such a forward cannot read go back first. Raises CacheFull."""
        if (end <= self._ready[int(every_pool), rows]).all():
            return
        reads_from = np.maximum(np.minimum(begin, self.length[rows]) - self.window + 1, 0)
        self.swa.drop_below(rows, reads_from // self.swa.page)
        plans = [(self.swa, self.swa.plan(rows, self.swa.columns(end)))]
        if every_pool:
            plans += [(t, t.plan(rows, t.columns(end // ratio))) for ratio, t in self.compressed.items()]
        for table, plan in plans:
            table.grow(plan)
        ready = self.swa.high[rows] * self.swa.page
        self._ready[0, rows] = ready
        for ratio, table in self.compressed.items():  # the next entry without a page ends at ratio * (w + 1) - 1
            ready = np.minimum(ready, (table.high[rows] * table.page + 1) * ratio - 1)
        self._ready[1, rows] = ready
        self._ready[:, -1] = 0

    def check_start(self, rows: np.ndarray, begin: np.ndarray) -> None:
        """ValueError if a forward from ``begin`` would read recycled keys."""
        gone = self.swa.low[rows] * self.swa.page
        wrong = np.maximum(begin - self.window + 1, 0) < gone
        if wrong.any():
            i = int(np.argmax(wrong))
            raise ValueError(f"batch: start: expected at least {gone[i] + self.window - 1} for row {rows[i]}, "
                             f"whose keys below {gone[i]} are recycled, got {begin[i]}")

    def commit(self, rows: np.ndarray, counts: np.ndarray) -> None:
        live = self.length[rows]
        after = live + counts
        limit = np.minimum(self._ready[1, rows], self.max_len)
        wrong = (after > limit) | (counts < 0)
        if wrong.any() and (wrong := wrong & (rows >= 0)).any():
            i = int(np.argmax(wrong))
            raise ValueError(f"commit: counts: expected 0 <= count <= {limit[i] - live[i]} (reserved, below "
                             f"max_len) for row {rows[i]}, got {counts[i]}")
        self.length[rows] = after
        self.length[-1] = 0

    def check_open(self, rows: np.ndarray, what: str) -> None:
        for row in rows[(rows < 0) | (rows >= self.max_requests)]:
            raise ValueError(f"{what}: rows: expected 0 <= row < {self.max_requests}, got {row}")
        for row in rows[~self.is_open[rows]]:
            raise ValueError(f"{what}: rows: expected an open row, got row {row}, which is free")

    def usage(self) -> dict:
        rows = {int(r): {"committed": int(self.length[r]), "allocated": int(self._ready[0, r]),
                         "swa_pages": int(self.swa.high[r] - self.swa.low[r])}
                for r in np.flatnonzero(self.is_open)}
        return {"pools": {t.name: t.usage() for t in self.tables}, "rows": rows}
