# SPDX-License-Identifier: Apache-2.0
"""A pool of equal pages and the block table of its owners, on the host (NumPy, no loop over tokens or rows)."""
from __future__ import annotations

import numpy as np


class CacheFull(RuntimeError):
    """A pool has too few free pages. Raised before any page was taken, in this pool or another.

    Attributes: ``pool`` (name), ``needed``, ``free``, ``total`` (pages). ``needed > total`` can never be served.
    """

    def __init__(self, pool: str, needed: int, free: int, total: int):
        super().__init__(f"cache: {pool} pool: expected at least {needed} free pages, got {free} of {total}; "
                         "finish or preempt requests, or raise max_total_tokens")
        self.pool, self.needed, self.free, self.total = pool, needed, free, total


class PageTable:
    """Pages of one pool and who holds them.

    ``table[row, c]`` is the page that holds the units c*page .. c*page + page - 1 of a request, or -1. A row owns the
    columns ``low[row] .. high[row] - 1`` and nothing else: ``grow`` moves ``high``, ``drop_below`` moves ``low``.
    There is one row more than requests: index -1 is the padding row, which never owns a page, so that padding needs
    no branch.
    """

    def __init__(self, name: str, pages: int, requests: int, columns: int):
        self.name, self.total, self.free = name, pages, pages
        self.table = np.full((requests + 1, columns), -1, np.int32)
        self.low = np.zeros(requests + 1, np.int64)
        self.high = np.zeros(requests + 1, np.int64)
        self.version = 0  # grows with every change of the table: key of copies made from it
        self._stack = np.arange(pages - 1, -1, -1, dtype=np.int32)  # free pages are _stack[:free]
        self._taken = np.zeros(pages, bool)

    def missing(self, rows: np.ndarray, high: np.ndarray) -> int:
        """Pages that ``grow(rows, high)`` would take."""
        more = high - self.high[rows]
        return int(more[more > 0].sum())

    def check(self, needed: int) -> None:
        if needed > self.free:
            raise CacheFull(self.name, needed, self.free, self.total)

    def grow(self, rows: np.ndarray, high: np.ndarray) -> None:
        """Give each of the (distinct, not padding) rows pages up to column ``high``. Raises CacheFull first."""
        old = self.high[rows]
        more = np.maximum(high - old, 0)
        needed = int(more.sum())
        if needed == 0:
            return
        self.check(needed)
        self.free -= needed
        pages = self._stack[self.free:self.free + needed][::-1]
        first = np.cumsum(more) - more
        columns = np.arange(needed) + np.repeat(old - first, more)
        self.table[np.repeat(rows, more), columns] = pages
        self._taken[pages] = True
        self.high[rows] = old + more
        self.version += 1

    def drop_below(self, rows: np.ndarray, low: np.ndarray) -> None:
        """Take back the columns below ``low`` of each of the (distinct) rows."""
        low = np.minimum(low, self.high[rows])
        old = self.low[rows]
        less = np.maximum(low - old, 0)
        count = int(less.sum())
        if count == 0:
            return
        first = np.cumsum(less) - less
        columns = np.arange(count) + np.repeat(old - first, less)
        owners = np.repeat(rows, less)
        self._give(self.table[owners, columns])
        self.table[owners, columns] = -1
        self.low[rows] = old + less
        self.version += 1

    def release(self, row: int) -> None:
        """Take back every page of a row; it starts again at column 0."""
        columns = slice(int(self.low[row]), int(self.high[row]))
        self._give(self.table[row, columns].copy())
        self.table[row, columns] = -1
        self.low[row] = self.high[row] = 0
        self.version += 1

    def _give(self, pages: np.ndarray) -> None:
        if not self._taken[pages].all() or len(set(pages.tolist())) != len(pages):
            raise RuntimeError(f"cache: {self.name} pool: pages {pages.tolist()} are freed twice")
        self._taken[pages] = False
        self._stack[self.free:self.free + len(pages)] = pages
        self.free += len(pages)

    def usage(self) -> dict[str, int]:
        return {"total": self.total, "free": self.free, "allocated": self.total - self.free}
