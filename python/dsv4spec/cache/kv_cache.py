# SPDX-License-Identifier: Apache-2.0
"""The caches of all requests: SWA pages, C4 and C128 pages, compressor state, and the metadata of each forward.

Which window pages may go, and when. A query at position p reads the window keys max(0, p - W + 1) .. p. In the round
that starts at committed length s, queries stand at s .. s + n - 1: the draft forwards, the verify forward, and the
draft extend too, which runs *after* commit but starts at the old s (its rows 0 .. n - 1 sit at s .. s + n - 1, and
accepted draft rows are rewritten there). Before the round's last forward nobody may lose a key >= s - W + 1, whatever
was committed meanwhile; when the *next* round begins, at s' > s, nobody can ask for a key < s' - W + 1 any more. So
pages are recycled where a forward or reservation starts at a position b, never by commit: column c of the table
(positions c*P .. c*P + P - 1) goes iff c*P + P - 1 < min(b, s) - W + 1, that is c < max(0, min(b, s) - W + 1) // P.
One column more would take a key that row b still reads; one less would keep a page that nobody reads. Recycling comes
before the allocation of the same call, so a request holds at most the pages of W - 1 + max(chunk, n) tokens
(``pages_per_request``), in chunked prefill as well. A forward that starts below its row's last start by more than
that is refused: its keys are gone.
"""
from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
import torch

from .batch import CompressedView, ForwardBatch, ForwardMode
from .compressor_state import CompressorState, ring_rows_for
from .pages import PageTable

C128_PAGE = 16  # entries


@dataclass
class LayerCache:
    """One layer's memory. Page ids of ``kv_pages`` are those of the SWA table, the same in all layers and the draft."""

    kv_pages: torch.Tensor                  # [P, page, D] stream dtype
    c_pages: torch.Tensor | None = None     # [Pc, c_page, D] compressed entries (ratio 4 or 128)
    index_pages: torch.Tensor | None = None  # [Pc, c_page, index_head_dim] the indexer's keys (ratio 4)
    state: CompressorState | None = None
    index_state: CompressorState | None = None


def _ceil(a, b):
    return -(-a // b)


class KVCache:
    """Caches of up to ``max_requests`` requests (rows).

    Args:
        config: has ``num_hidden_layers, compress_ratios, sliding_window, head_dim, index_head_dim``.
        page_size: tokens of an SWA page; a multiple of 4 if the model has C4 layers (whose pages have page_size // 4
            entries; C128 pages have 16).
        max_requests, max_len: requests at once; positions of one request (0 .. max_len - 1 are ever written).
        max_total_tokens: tokens that all requests together can hold, each rounded up to whole pages.
        num_draft_tokens: the widest verify window. prefill_chunk: the most prefill tokens of one row in one batch.
        dtype, device: of the paged pools. draft: make the draft layer's pool.

    Raises:
        ValueError: a size out of range, named.
    """

    def __init__(self, config, *, page_size: int, max_requests: int, max_total_tokens: int, max_len: int,
                 num_draft_tokens: int, prefill_chunk: int, dtype=torch.float32, device="cpu", draft: bool):
        ratios = [r if r > 1 else 0 for r in config.compress_ratios[:config.num_hidden_layers]]
        for name, value in (("page_size", page_size), ("max_requests", max_requests), ("max_len", max_len),
                            ("max_total_tokens", max_total_tokens), ("num_draft_tokens", num_draft_tokens),
                            ("prefill_chunk", prefill_chunk)):
            if value < 1:
                raise ValueError(f"KVCache: {name}: expected at least 1, got {value}")
        if 4 in ratios and page_size % 4:
            raise ValueError(f"KVCache: page_size: expected a multiple of 4 (C4 layers), got {page_size}")
        self.window, self.page_size, self.max_len = config.sliding_window, page_size, max_len
        self.max_requests, self.num_draft_tokens, self.prefill_chunk = max_requests, num_draft_tokens, prefill_chunk
        self.device = torch.device(device)
        held = self.window - 1 + max(prefill_chunk, num_draft_tokens)  # tokens; any alignment to pages:
        self.pages_per_request = (held + page_size - 2) // page_size + 1
        pages = _ceil(max_total_tokens, page_size)
        slack = max_len + num_draft_tokens  # table columns exist for a window that runs past max_len
        self._swa = PageTable("SWA", min(pages, max_requests * self.pages_per_request), max_requests,
                              _ceil(slack, page_size))
        self._compressed: dict[int, tuple[PageTable, int]] = {}  # ratio -> (table, entries per page)
        for ratio, page in ((4, page_size // 4), (128, C128_PAGE)):
            if ratio in ratios:
                # C128 pages are long, so that every request may waste most of one: the pool has one more for each.
                total = pages if ratio == 4 else _ceil(max_total_tokens, ratio * page) + max_requests - 1
                table = PageTable(f"C{ratio}", total, max_requests, _ceil(slack // ratio + 1, page))
                self._compressed[ratio] = (table, page)
        self._length = np.zeros(max_requests + 1, np.int64)  # committed tokens; the last row is padding
        self._open = np.zeros(max_requests + 1, bool)
        self._shared: tuple = (None,)
        self.target = [self._layer(ratio, config, dtype) for ratio in ratios]
        self.draft = self._layer(0, config, dtype) if draft else None

    def _layer(self, ratio: int, config, dtype) -> LayerCache:
        def pool(pages, page, width):
            return torch.zeros(pages, page, width, dtype=dtype, device=self.device)

        def state(width):
            return CompressorState(ratio, ring_rows_for(ratio, self.num_draft_tokens), head_dim=width,
                                   max_requests=self.max_requests, num_draft_tokens=self.num_draft_tokens,
                                   device=self.device)

        layer = LayerCache(pool(self._swa.total, self.page_size, config.head_dim))
        if ratio:
            table, page = self._compressed[ratio]
            layer.c_pages, layer.state = pool(table.total, page, config.head_dim), state(config.head_dim)
            if ratio == 4:
                layer.index_pages = pool(table.total, page, config.index_head_dim)
                layer.index_state = state(config.index_head_dim)
        return layer

    # ------------------------------------------------------------------------------------------- life of a request
    def open(self, *, prefix_tokens: int = 0) -> int:
        """A free row with s = 0 and cleared compressor state. ValueError if all rows are taken."""
        if prefix_tokens:
            raise ValueError(f"open: prefix_tokens: expected 0, got {prefix_tokens}: a prefix computed for another "
                             "request cannot be reused, since its window pages and compressor rows are not kept")
        closed = np.flatnonzero(~self._open[:-1])
        if not len(closed):
            raise ValueError(f"open: expected a free row, got {self.max_requests} of {self.max_requests} rows open")
        row = int(closed[0])
        self._open[row] = True
        for layer in self.target:
            for state in (layer.state, layer.index_state):
                if state is not None:
                    state.clear(row)
        return row

    def free(self, row: int) -> None:
        """Finish, abort or preempt a request: every page goes back. ValueError if the row is not open."""
        self._check_open(np.asarray([row]), "free")
        for table in self._tables():
            table.release(row)
        self._length[row] = 0
        self._open[row] = False

    def length(self, row: int) -> int:
        """Committed length s of a row."""
        return int(self._length[row])

    def reserve(self, rows: Sequence[int], count: int) -> None:
        """Pages for positions s .. s + count - 1 of each row, all or nothing (CacheFull). Begins a round: see above."""
        rows = self._rows(rows, "reserve")
        live = self._length[rows]
        self._allocate(rows, live, np.minimum(live + count, self.max_len), target=True)

    def commit(self, rows: Sequence[int], counts: Sequence[int]) -> None:
        """s += count. No page moves, so a draft extend from the old s can still run. ValueError past the reservation."""
        rows = self._rows(rows, "commit")
        after = self._length[rows] + np.asarray(counts, np.int64)
        limit = np.minimum(self._swa.high[rows] * self.page_size, self.max_len)
        wrong = np.flatnonzero((after > limit) | (after < self._length[rows]))
        if len(wrong):
            i = int(wrong[0])
            raise ValueError(f"commit: counts: expected 0 <= count <= {limit[i] - self._length[rows[i]]} reserved rows "
                             f"below max_len for row {rows[i]}, got {counts[i]}")
        self._length[rows] = after

    def usage(self) -> dict:
        """Pages per pool, and per open row its committed tokens and the tokens that its pages are allocated up to."""
        rows = {int(r): {"committed": int(self._length[r]), "allocated": int(self._swa.high[r]) * self.page_size,
                         "swa_pages": int(self._swa.high[r] - self._swa.low[r])} for r in np.flatnonzero(self._open)}
        return {"pools": {t.name: t.usage() for t in self._tables()}, "rows": rows}

    # --------------------------------------------------------------------------------------------------- a forward
    def batch(self, mode: ForwardMode, rows: Sequence[int], input_ids: torch.Tensor, counts: int | Sequence[int], *,
              start: Sequence[int] | None = None) -> ForwardBatch:
        """Reserve pages for ``counts`` token rows per request from ``start`` (default s) on, and describe the forward.

        Args:
            rows: open cache rows, each at most once; -1 = padding (any number of times).
            input_ids: int64 ``[sum of counts]``, request-major, on the cache's device.
            counts: one number for all rows, or one per row.

        Positions >= max_len keep their value, and get slot -1 and no entry. Raises CacheFull (nothing taken).
        """
        rows = self._rows(rows, "batch", padding=True)
        begin = self._length[rows] if start is None else np.asarray(start, np.int64)
        uniform = isinstance(counts, int)
        counts = np.full(len(rows), counts, np.int64) if uniform else np.asarray(counts, np.int64)
        if len(counts) != len(rows) or len(begin) != len(rows) or input_ids.numel() != counts.sum():
            raise ValueError(f"batch: expected start and counts of {len(rows)} rows, and sum(counts) = {counts.sum()} "
                             f"input_ids, got {len(begin)}, {len(counts)} and {input_ids.numel()}")
        real = rows >= 0
        end = np.where(real, begin + counts, 0)
        begin = np.where(real, begin, 0)
        stored = np.minimum(end, self.max_len)
        self._allocate(rows, begin, stored, target=mode.is_target)

        first = np.cumsum(counts) - counts
        owner = np.repeat(np.arange(len(rows)), counts)
        positions = np.arange(len(owner)) + (begin - first)[owner]
        columns, offsets = np.divmod(positions, self.page_size)
        pages = self._swa.table[rows[owner], columns]
        slots = np.where((pages < 0) | (positions >= self.max_len), -1, pages * np.int64(self.page_size) + offsets)
        table = self._gather(self._swa, rows, _ceil(int(end.max(initial=0)), self.page_size))
        views = {r: self._view(r, rows, begin, stored, end) for r in self._compressed} if mode.is_target else {}
        query_start = np.append(first, len(owner)).astype(np.int32)
        return ForwardBatch(mode, input_ids, self._tensor(positions), self._tensor(query_start),
                            self._tensor(end.astype(np.int32)), self._tensor(begin.astype(np.int32)),
                            self._tensor(rows), self._tensor(slots), table, views.get(4), views.get(128))

    def _view(self, ratio, rows, begin, stored, end) -> CompressedView:
        """Entries first .. last - 1 of each row are completed by its tokens begin .. stored - 1 (entry w by the
        token at ratio * (w + 1) - 1)."""
        table, page = self._compressed[ratio]
        first = begin // ratio
        counts = np.maximum(stored // ratio - first, 0)
        owner = np.repeat(np.arange(len(rows)), counts)
        entries = np.arange(len(owner)) + (first - (np.cumsum(counts) - counts))[owner]
        columns, offsets = np.divmod(entries, page)
        locs = table.table[rows[owner], columns] * np.int64(page) + offsets
        gathered = self._gather(table, rows, _ceil(int(end.max(initial=0)) // ratio, page))
        return CompressedView(ratio, page, gathered, self._tensor(entries * ratio), self._tensor(locs))

    def _allocate(self, rows, begin, stored, *, target: bool) -> None:
        live = self._length[rows]
        reads_from = np.maximum(np.minimum(begin, live) - self.window + 1, 0)
        gone = self._swa.low[rows] * self.page_size
        if (reads_from < gone).any():
            i = int(np.argmax(reads_from < gone))
            raise ValueError(f"batch: start: expected at least {gone[i] + self.window - 1} for row {rows[i]}, whose "
                             f"keys below {gone[i]} are recycled, got {begin[i]}")
        self._swa.drop_below(rows, reads_from // self.page_size)
        wanted = [(self._swa, _ceil(stored, self.page_size))]
        if target:
            wanted += [(table, _ceil(stored // ratio, page)) for ratio, (table, page) in self._compressed.items()]
        for table, high in wanted:
            table.check(table.missing(rows, high))
        for table, high in wanted:
            table.grow(rows, high)

    # ----------------------------------------------------------------------------------------------------- helpers
    def _tables(self) -> list[PageTable]:
        return [self._swa, *(table for table, _ in self._compressed.values())]

    def _gather(self, table: PageTable, rows, columns: int) -> torch.Tensor:
        return self._tensor(table.table[rows, :max(columns, 1)])

    def _tensor(self, array: np.ndarray) -> torch.Tensor:
        return torch.from_numpy(array).to(self.device)

    def _rows(self, rows, what: str, padding: bool = False) -> np.ndarray:
        rows = np.asarray(rows, np.int64)
        real = rows[rows >= 0] if padding else rows
        self._check_open(real, what)
        if len(set(real.tolist())) != len(real):
            raise ValueError(f"{what}: rows: expected each row once, got {rows.tolist()}")
        return rows

    def _check_open(self, rows: np.ndarray, what: str) -> None:
        for row in rows[(rows < 0) | (rows >= self.max_requests)]:
            raise ValueError(f"{what}: rows: expected 0 <= row < {self.max_requests}, got {row}")
        for row in rows[~self._open[rows]]:
            raise ValueError(f"{what}: rows: expected an open row, got row {row}, which is free")
