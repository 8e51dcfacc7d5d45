# SPDX-License-Identifier: Apache-2.0
"""The caches of all requests, and the description of each forward over them."""
from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
import torch

from dsv4spec.ops._dispatch import use_native

from .allocation import Allocation
from .batch import CompressedView, ForwardBatch, ForwardMode
from .compressor_state import CompressorState, ring_rows_for
from .groups import Groups
from .pages import PageTable, spread
from .views import prefill_views, window_slots, window_views
from .window_room import WindowRoom, check_window

_WINDOWS = frozenset((ForwardMode.TARGET_DECODE, ForwardMode.TARGET_VERIFY))


@dataclass
class LayerCache:
    """One layer's memory. SWA page ids are the same in all layers and in the draft, compressed ones per ratio."""

    kv_pages: torch.Tensor                   # [P, page, D] stream dtype
    c_pages: torch.Tensor | None = None      # [Pc, c_page, D] compressed entries (ratio 4 or 128)
    index_pages: torch.Tensor | None = None  # [Pc, c_page, index_head_dim] the indexer's keys (ratio 4)
    state: CompressorState | None = None
    index_state: CompressorState | None = None


class KVCache:
    """Caches of up to ``max_requests`` requests (rows).

    Args:
        config: has ``num_hidden_layers, compress_ratios, sliding_window, head_dim, index_head_dim``.
        page_size: tokens of an SWA page; a multiple of 4 if there are C4 layers (C4 pages have page_size // 4
            entries, C128 pages 16).
        max_requests, max_len: requests at once; positions of one request (only 0 .. max_len - 1 are written).
        max_total_tokens: tokens that all requests together can hold, each rounded up to whole pages.
        num_draft_tokens: the widest verify window. prefill_chunk: the most prefill tokens of a row in a batch.
        dtype, device: of the paged pools. draft: make the draft layer's pool.

    Raises:
        ValueError: a size out of range, named.
    """

    def __init__(self, config, *, page_size: int, max_requests: int, max_total_tokens: int, max_len: int,
                 num_draft_tokens: int, prefill_chunk: int, dtype=torch.float32, device="cpu", draft: bool):
        for name, value in (("page_size", page_size), ("max_requests", max_requests), ("max_len", max_len),
                            ("max_total_tokens", max_total_tokens), ("num_draft_tokens", num_draft_tokens),
                            ("prefill_chunk", prefill_chunk)):
            if value < 1:
                raise ValueError(f"KVCache: {name}: expected at least 1, got {value}")
        ratios = [r if r > 1 else 0 for r in config.compress_ratios[:config.num_hidden_layers]]
        if 4 in ratios and page_size % 4:
            raise ValueError(f"KVCache: page_size: expected a multiple of 4 (C4 layers), got {page_size}")
        self.page_size, self.max_requests, self.max_len = page_size, max_requests, max_len
        self.num_draft_tokens, self.prefill_chunk = num_draft_tokens, prefill_chunk
        self.device = torch.device(device)
        self._pages = Allocation(ratios, window=config.sliding_window, page_size=page_size, max_len=max_len,
                                 max_requests=max_requests, max_total_tokens=max_total_tokens,
                                 num_draft_tokens=num_draft_tokens, prefill_chunk=prefill_chunk)
        self._groups = Groups(self._pages, self.device)
        self._rooms: dict[tuple[int, int], WindowRoom] = {}  # by requests and rows
        # Wider prefills would pass the bound on SWA pages, wider windows the rule of the compressor rings.
        self._limits = {ForwardMode.TARGET_PREFILL: (prefill_chunk, "prefill_chunk"),
                        ForwardMode.TARGET_VERIFY: (num_draft_tokens, "num_draft_tokens")}
        self.target = [self._layer(ratio, config, dtype) for ratio in ratios]
        self.draft = self._layer(0, config, dtype) if draft else None

    def _layer(self, ratio: int, config, dtype) -> LayerCache:
        def pool(table, width):
            return torch.zeros(table.total, table.page, width, dtype=dtype, device=self.device)

        def state(width):
            return CompressorState(ratio, ring_rows_for(ratio, self.num_draft_tokens), head_dim=width,
                                   max_requests=self.max_requests, num_draft_tokens=self.num_draft_tokens,
                                   device=self.device)

        layer = LayerCache(pool(self._pages.swa, config.head_dim))
        if ratio:
            table = self._pages.compressed[ratio]
            layer.c_pages, layer.state = pool(table, config.head_dim), state(config.head_dim)
            if ratio == 4:
                layer.index_pages = pool(table, config.index_head_dim)
                layer.index_state = state(config.index_head_dim)
        return layer

    @property
    def pages_per_request(self) -> int:
        """The most SWA pages that a request ever holds."""
        return self._pages.pages_per_request

    # ----------------------------------------------------------------------------------- life of a request
    def open(self, *, prefix_tokens: int = 0) -> int:
        """A free row with s = 0 and cleared compressor state. ValueError if all rows are taken."""
        if prefix_tokens:
            raise ValueError(f"open: prefix_tokens: expected 0, got {prefix_tokens}: a prefix computed for another "
                             "request is not reused, since its window pages and compressor rows are not kept")
        row = self._pages.open()
        for layer in self.target:
            for state in (layer.state, layer.index_state):
                if state is not None:
                    state.clear(row)
        return row

    def free(self, row: int) -> None:
        """Finish, abort or preempt a request: every page goes back. ValueError if the row is not open."""
        self._pages.free(row)
        self._groups.forget()

    def length(self, row: int) -> int:
        """Committed length s of a row."""
        return int(self._pages.length[row])

    def lengths(self, rows: Sequence[int]) -> np.ndarray:
        """Committed lengths of open rows, int64 [B]."""
        return self._pages.length[self._groups.of(rows, "lengths").rows]

    def reserve(self, rows: Sequence[int], count: int) -> None:
        """Pages for positions s .. s + count - 1 of each row in every pool, all or nothing (CacheFull)."""
        rows = self._groups.of(rows, "reserve").rows
        live = self._pages.length[rows]
        end = np.where(rows < 0, 0, np.minimum(live + count, self.max_len))
        self._pages.allocate(rows, live, end, every_pool=True)

    def reserve_window(self, rows: np.ndarray, width: int) -> np.ndarray:
        """As :meth:`reserve`, of rows whose windows end before max_len; -1 is padding. Committed lengths, int64 [B]."""
        pages = self._pages
        pages.check_open(rows[rows >= 0], "reserve_window")
        live = pages.length[rows]
        check_window(ForwardMode.TARGET_VERIFY, rows, live, width)
        if int(live.max(initial=0)) + width > self.max_len:
            raise ValueError(f"reserve_window: width: expected at most {self.max_len - int(live.max())} rows below max_len "
                             f"{self.max_len}, got {width}")
        pages.allocate(rows, live, np.where(rows < 0, 0, live + width), every_pool=True)
        return live

    @property
    def page_tables(self) -> dict[str, PageTable]:
        """Who holds which pages, by pool: "SWA", "C4", "C128". To be read only."""
        return {table.name: table for table in self._pages.tables}

    def query_start(self, n: int, requests: int) -> torch.Tensor:
        """int32 ``[B + 1]``: the first row of each request of n rows. Kept, read only."""
        return self._groups.query_start(n, requests)

    def steps(self, n: int) -> torch.Tensor:
        """int32 ``[n, 1]``: 1 .. n. Kept, read only."""
        return self._groups.steps(n)

    def commit(self, rows: Sequence[int], counts: Sequence[int]) -> None:
        """s += count (padding rows: ignored). No page moves, so that a draft extend from the old s still can run.

        ValueError if s would pass the reserved positions or max_len; nothing is committed then.
        """
        group, pages = self._groups.of(rows, "commit"), self._pages
        if type(counts) is not list or not pages.native.commit(group.key, counts):
            pages.commit(group.rows, np.asarray(counts, np.int64))  # which says what is wrong

    def usage(self) -> dict:
        """``pools``: pages total, free, allocated. ``rows``: of each open row, its committed tokens, the tokens that
        pages are allocated up to, and its SWA pages."""
        return self._pages.usage()

    # ------------------------------------------------------------------------------------------- a forward
    def batch(self, mode: ForwardMode, rows: Sequence[int], input_ids: torch.Tensor, counts: int | Sequence[int],
              *, start: Sequence[int] | None = None) -> ForwardBatch:
        """Reserve pages for ``counts`` rows per request from ``start`` (default s) on, and describe the forward.

        Args:
            rows: open cache rows, each once; -1 = padding (any number).
            input_ids: int64 ``[sum of counts]``, request-major.
            counts: one number for all requests, or one each.

        Positions >= max_len keep their value, and get slot -1 and no entry. Raises CacheFull (nothing taken), and
        ValueError for a start whose window is recycled (see allocation.py), and for TARGET_VERIFY and TARGET_DECODE
        of different counts or of a row with nothing before it (to the ops, length 0 is padding).
        """
        group = self._groups.of(rows, "batch")
        rows, pages = group.rows, self._pages
        begin = pages.length[rows] if start is None else np.asarray(start, np.int64)
        uniform = isinstance(counts, int)
        each = counts if uniform else np.asarray(counts, np.int64)
        tokens = counts * len(rows) if uniform else int(each.sum())
        if len(begin) != len(rows) or not (uniform or len(each) == len(rows)) or input_ids.numel() != tokens:
            raise ValueError(f"batch: input_ids: expected {tokens} ids of {len(rows)} requests, got "
                             f"{input_ids.numel()} (start: {len(begin)}, counts: {counts})")
        limit, name = self._limits.get(mode, (tokens, ""))
        if tokens > limit and int(np.max(each)) > limit:
            raise ValueError(f"batch: counts: expected at most {name} = {limit}, got {counts}")
        if mode in _WINDOWS:
            check_window(mode, rows, begin, counts)
        end = begin + each
        if group.padded:
            begin, end = np.where(rows < 0, 0, begin), np.where(rows < 0, 0, end)
        last = int(end.max(initial=0))
        stored = end if last <= self.max_len else np.minimum(end, self.max_len)
        pages.allocate(rows, begin, stored, every_pool=mode.is_target)
        if start is not None:
            pages.check_start(rows, begin)

        tensor, views = self._groups.tensor, {}
        table, live = self._groups.gather(pages.swa, group, last), tensor(begin.astype(np.int32))
        if mode in _WINDOWS:
            positions = tensor((begin[:, None] + self._groups.arange(counts)).reshape(-1))
            slots = window_slots(table, live, positions, counts, page_size=self.page_size,
                                 limit=self.max_len if last > self.max_len else None)
            views = window_views(pages.compressed, self._groups, group, positions, live, counts, begin=begin, end=end,
                                 last=last, max_len=self.max_len)
        else:
            owners, positions = spread(rows, begin, np.full(len(rows), counts) if uniform else each)
            slots = pages.swa.locate(owners, positions)
            if last > self.max_len:
                slots[positions >= self.max_len] = -1
            positions, slots = tensor(positions), tensor(slots)
            if mode.is_target:
                views = prefill_views(pages.compressed, self._groups, group, begin, end, max_len=self.max_len)
        starts = self._groups.query_start(counts if uniform else each, len(rows))
        return ForwardBatch(mode, input_ids, positions, starts, tensor(end.astype(np.int32)), live, group.tensor, slots,
                            table, views.get(4), views.get(128))

    def window(self, rows: Sequence[int], n: int) -> tuple[ForwardBatch, WindowRoom | None, int]:
        """:meth:`batch` of a verify window of n rows of each request, of any ids; where it lies; the largest s + n. It lies on
        the host in memory that the next window of its size takes over, elsewhere and near max_len in its own (None)."""
        group, pages = self._groups.of(rows, "window"), self._pages
        room = self._rooms.get((len(group.rows), n))
        if room is not None and use_native(self.device) and (found := room.describe(pages, self._groups, group)):
            return found
        begin = pages.length[group.rows]
        last = int(begin.max(initial=0)) + n
        if self.device.type != "cpu" or group.padded or last > self.max_len or n > self.num_draft_tokens:
            blank = self._groups.tensor(np.zeros(len(begin) * n, np.int64))
            return self.batch(ForwardMode.TARGET_VERIFY, rows, blank, n), None, last
        check_window(ForwardMode.TARGET_VERIFY, group.rows, begin, n)
        end = begin + n
        pages.allocate(group.rows, begin, end, every_pool=True)
        if room is None:
            room = self._rooms[len(begin), n] = WindowRoom(len(begin), n, pages)
        room.fill(begin)
        table = self._groups.gather(pages.swa, group, last)
        window_slots(table, room.live, room.positions, n, page_size=self.page_size, limit=None, out=room.slots_of)
        room.place()
        views = window_views(pages.compressed, self._groups, group, room.positions, room.live, n, begin=begin, end=end,
                             last=last, max_len=self.max_len, room=room.entries)
        return room.forward(self._groups, group, table, views), room, last
