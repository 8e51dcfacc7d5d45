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


def spread(rows: np.ndarray, first: np.ndarray, counts: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
    """The numbers first .. first + count - 1 of each row, packed in row order, and the row of each of them."""
    shift = first - (np.cumsum(counts) - counts)
    return np.repeat(rows, counts), np.arange(int(counts.sum())) + np.repeat(shift, counts)


class PageTable:
    """Pages of one pool, ``page`` units each (tokens or compressed entries), and who holds them.

    ``table[row, c]`` is the page of the units c*page .. c*page + page - 1 of a request, or -1. A row owns the
    columns ``low[row] .. high[row] - 1`` and nothing else: ``plan`` and ``grow`` move ``high``, ``drop_below`` moves
    ``low``. There is one row more than requests: index -1 is the padding row, which never owns a page, so that padding
    needs no branch.
    """

    def __init__(self, name: str, pages: int, page: int, *, requests: int, columns: int):
        self.name, self.total, self.free, self.page = name, pages, pages, page
        self.table = np.full((requests + 1, columns), -1, np.int32)
        self.low = np.zeros(requests + 1, np.int64)
        self.high = np.zeros(requests + 1, np.int64)
        self.version = 0  # grows with every change of the table: part of the key of copies made from it
        self._stack = np.arange(pages - 1, -1, -1, dtype=np.int32)  # the free pages are _stack[:free]
        self._taken = np.zeros(pages, bool)

    def columns(self, units):
        """Columns that hold ``units`` units."""
        return -(-units // self.page)

    def locate(self, rows: np.ndarray, units: np.ndarray) -> np.ndarray:
        """Slot (page id * page + offset, int64) of each unit of each row, -1 where no page is held."""
        columns, offsets = np.divmod(units, self.page)
        pages = self.table[rows, columns]
        return np.where(pages < 0, -1, pages * np.int64(self.page) + offsets)

    def plan(self, rows: np.ndarray, high: np.ndarray):
        """What it takes for the (distinct, real) rows to hold pages up to column ``high``. CacheFull if too many."""
        old = self.high[rows]
        more = np.maximum(high - old, 0)
        needed = int(more.sum())
        if needed > self.free:
            raise CacheFull(self.name, needed, self.free, self.total)
        return rows, old, more, needed

    def grow(self, plan) -> None:
        """Carry a plan out; nothing may have changed since it was made."""
        rows, old, more, needed = plan
        if needed == 0:
            return
        self.free -= needed
        pages = self._stack[self.free:self.free + needed][::-1]
        owners, columns = spread(rows, old, more)
        self.table[owners, columns] = pages
        self._taken[pages] = True
        self.high[rows] = old + more
        self.version += 1

    def drop_below(self, rows: np.ndarray, low: np.ndarray) -> None:
        """Take back the columns below ``low`` of each of the (distinct) rows."""
        old = self.low[rows]
        less = np.maximum(np.minimum(low, self.high[rows]) - old, 0)
        if not less.any():
            return
        owners, columns = spread(rows, old, less)
        self._give(self.table[owners, columns])
        self.table[owners, columns] = -1
        self.low[rows] = old + less
        self.version += 1

    def release(self, row: int) -> None:
        """Take back every page of a row; it starts again at column 0."""
        columns = slice(int(self.low[row]), int(self.high[row]))
        self._give(self.table[row, columns])
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
