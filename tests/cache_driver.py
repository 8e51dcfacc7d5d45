# SPDX-License-Identifier: Apache-2.0
"""A stand-in for Target and draft that drives a KVCache: what it stores is a function of (token, position) alone, so
that the right content of every place is known without running anything. ``check`` compares all that future forwards
can read with it, and every forward first checks what it is about to read."""
from __future__ import annotations

from dataclasses import replace
from types import SimpleNamespace

import numpy as np
import torch

from cache_values import COFF, D, R, draft_value, parameters, phase, truth, value_at
from dsv4spec import ops
from dsv4spec.cache import ForwardMode, KVCache
from dsv4spec.models.rope import rope_table

WRONG = 5000  # added to a token that the Target would not have chosen


def config(ratios=(0, 4, 128), window=8):
    return SimpleNamespace(num_hidden_layers=len(ratios), compress_ratios=[*ratios, 0], sliding_window=window,
                           head_dim=D, index_head_dim=D)


class Driver:
    def __init__(self, ratios=(0, 4, 128), *, window=8, page_size=4, max_requests=4, max_total_tokens=4096,
                 max_len=256, num_draft_tokens=4, prefill_chunk=16, seed=0):
        self.rng, self.window, self.ratios = np.random.default_rng(seed), window, ratios
        self.cache = KVCache(config(ratios, window), page_size=page_size, max_requests=max_requests, max_len=max_len,
                             max_total_tokens=max_total_tokens, num_draft_tokens=num_draft_tokens,
                             prefill_chunk=prefill_chunk, dtype=torch.float32, device="cpu", draft=True)
        self.chunk, self.limit = prefill_chunk, max_len
        self.text: dict[int, np.ndarray] = {}  # row -> all tokens that the Target will ever choose
        self.cos_sin = rope_table(max_len + num_draft_tokens, R, 10000.0)

    # ------------------------------------------------------------------------------------------- requests
    def add(self, length: int, text=None) -> int:
        return self.add_all(length, [text])[0]

    def add_all(self, length: int, texts) -> list[int]:
        """New requests of one length, prefilled together; a text None is drawn."""
        rows = []
        for text in texts:
            rows.append(self.cache.open())
            self.text[rows[-1]] = self.rng.integers(0, 1000, self.limit + 64) if text is None else text
        try:
            self.prefill(rows, length)
        except Exception:
            for row in rows:
                self.drop(row)
            raise
        return rows

    def drop(self, row: int) -> np.ndarray:
        self.cache.free(row)
        return self.text.pop(row)

    def prefill(self, rows, length: int, chunks=None) -> None:
        """Target prefill and its draft extend, chunk by chunk, of rows that have one length."""
        left = length - self.cache.length(rows[0])
        for count in chunks or [self.chunk] * (left // self.chunk) + [left % self.chunk]:
            if count:
                s, counts = self.cache.length(rows[0]), [count] * len(rows)
                tokens, pairs = (np.concatenate([self.text[r][s:s + count + x] for r in rows]) for x in (0, 1))
                self.target(ForwardMode.TARGET_PREFILL, rows, tokens, counts)
                self.cache.commit(rows, counts)
                self.draft(ForwardMode.NEXTN_EXTEND, rows, pairs, counts, start=[s] * len(rows))

    def decode(self, rows) -> None:
        """One plain step."""
        self.target(ForwardMode.TARGET_DECODE, rows, np.concatenate([self._window(r, 1, 1) for r in rows]), 1)
        self.cache.commit(rows, [1] * len(rows))

    def round(self, rows, n: int, accepts, *, abort_after=None) -> None:
        """A speculative round with a window of n rows; ``accepts[i]`` rows of request i are kept (1 .. n).
        ``abort_after`` "reserve" | "draft" leaves it there. Draft steps are columns of the window, as the worker's."""
        start = [self.cache.length(r) for r in rows]
        self.cache.reserve(rows, n)
        if abort_after == "reserve":
            return
        windows = [self._window(r, n, a) for r, a in zip(rows, accepts)]
        batch = self.cache.batch(ForwardMode.TARGET_VERIFY, rows, torch.as_tensor(np.concatenate(windows)), n)
        for i in range(n - 2):
            first, second = (torch.as_tensor([w[i + j] for w in windows]) for j in (0, 1))
            live = batch.live_seq_lens + i
            step = replace(batch, mode=ForwardMode.NEXTN_DECODE, input_ids=second, positions=batch.positions[i::n],
                           slots=batch.slots[i::n], live_seq_lens=live, seq_lens=live + 1, c4=None, c128=None)
            self._draft(step, first)
        if abort_after == "draft":
            return
        self._target(batch)
        accepts = [min(a, self.limit - s) for a, s in zip(accepts, start)]
        self.cache.commit(rows, accepts)
        predicted = [self._window(r, n + 1, a + 1, s) for r, a, s in zip(rows, accepts, start)]
        self.draft(ForwardMode.NEXTN_EXTEND, rows, np.concatenate(predicted), n, start=start)

    def _window(self, row, n, right, s=None):
        """n tokens from position s on, of which only the first ``right`` are the Target's."""
        s = self.cache.length(row) if s is None else s
        return self.text[row][s:s + n] + np.where(np.arange(n) < right, 0, WRONG + self.rng.integers(0, 99, n))

    # ------------------------------------------------------------------------------------------- forwards
    def target(self, mode, rows, tokens, counts):
        self._target(self.cache.batch(mode, rows, torch.as_tensor(tokens), counts))

    def _target(self, batch):
        self._check_reads(batch, [layer.kv_pages for layer in self.cache.target])
        with ops.use_backend(None, missing="reference"):
            phases = phase(batch.input_ids, batch.positions)
            for salt, (ratio, layer) in enumerate(zip(self.ratios, self.cache.target)):
                self._store(layer.kv_pages, batch, value_at(phases, salt))
                if ratio:
                    self._compress(batch, phases, ratio, layer.state, layer.c_pages, salt)
                if ratio == 4:
                    self._compress(batch, phases, ratio, layer.index_state, layer.index_pages, salt + 50)

    def draft(self, mode, rows, tokens, counts, start):
        """``tokens`` of each request: one more than its rows; row i pairs tokens i and i + 1."""
        each = [counts] * len(rows) if isinstance(counts, int) else counts
        parts = np.split(np.asarray(tokens), np.cumsum([c + 1 for c in each])[:-1])
        first, second = (np.concatenate([p[i:len(p) - 1 + i] for p in parts]) for i in (0, 1))
        batch = self.cache.batch(mode, rows, torch.as_tensor(second), counts, start=start)
        self._draft(batch, first)

    def _draft(self, batch, first):
        """Row i stores what tokens ``first[i]`` and ``batch.input_ids[i]`` make."""
        assert batch.c4 is None and batch.c128 is None
        self._check_reads(batch, [self.cache.draft.kv_pages])
        self._store(self.cache.draft.kv_pages, batch, draft_value(first, batch.input_ids, batch.positions))

    def _store(self, pages, batch, rows):
        keep = batch.slots >= 0
        assert len(set(batch.slots[keep].tolist())) == int(keep.sum()), "two rows share a slot"
        pages.flatten(0, 1)[batch.slots[keep]] = rows[keep]

    def _compress(self, batch, phases, ratio, state, pages, salt):
        view = batch.c4 if ratio == 4 else batch.c128
        width, (ape, norm) = COFF[ratio] * D, parameters(ratio, salt)
        kv, gate = (value_at(phases, salt + x, width) for x in (100, 200))
        ops.compress_kv(kv, gate, ape, norm, self.cos_sin, state.data, batch.rows, batch.query_start_loc,
                        batch.seq_lens, *view.entries(), pages, ratio=ratio, eps=1e-6)

    # --------------------------------------------------------------------------------------------- checks
    def _check_reads(self, batch, pools) -> None:
        """Every key before the forward's own rows that they can see is there and is the committed text's."""
        for b, row in enumerate(batch.rows.tolist()):
            if row < 0:
                continue
            begin = min(int(batch.live_seq_lens[b]), self.cache.length(row))
            keys = np.arange(max(0, begin - self.window + 1), begin)
            self._check_window(row, keys, batch.table[b].numpy(), pools)

    def _check_window(self, row, keys, table, pools) -> None:
        page = self.cache.page_size
        pages = table[keys // page]
        assert (pages >= 0).all(), f"keys {keys[pages < 0]} of row {row} are read, but their page is gone"
        slots, right = torch.as_tensor(pages.astype(np.int64) * page + keys % page), truth(self.text[row])
        for salt, pool in enumerate(pools):
            stored = right.draft_rows() if pool is self.cache.draft.kv_pages else right.rows(salt)
            assert torch.equal(pool.flatten(0, 1)[slots], stored[keys]), f"row {row}: window of pool {salt}"

    def check(self, draft=True) -> None:
        """State of every open request = serial decode of its committed tokens; the page accounting closes."""
        self.check_pages()
        for row in self.text:
            s = self.cache.length(row)
            pools = [layer.kv_pages for layer in self.cache.target] + [self.cache.draft.kv_pages] * draft
            keys = np.arange(max(0, s - self.window + 1), s)
            self._check_window(row, keys, self.cache._pages.swa.table[row], pools)
            for salt, (ratio, layer) in enumerate(zip(self.ratios, self.cache.target)):
                if ratio:
                    self._check_compressed(row, s, ratio, layer.state, layer.c_pages, salt)
                if ratio == 4:
                    self._check_compressed(row, s, ratio, layer.index_state, layer.index_pages, salt + 50)

    def check_pages(self) -> None:
        """Every page is free or has one owner; committed <= allocated; SWA pages stay within their bound."""
        alloc = self.cache._pages
        for table in alloc.tables:
            held = table.table[table.table >= 0]
            assert len(set(held.tolist())) == len(held), f"{table.name}: a page has two owners"
            assert len(held) == table.total - table.free, f"{table.name}: pages lost"
            assert (table.table[-1] == -1).all() and table.high[-1] == 0, "padding holds pages"
        usage = self.cache.usage()["rows"]
        assert set(usage) == set(self.text)
        for row, use in usage.items():
            assert self.cache.length(row) == use["committed"] <= use["allocated"]
            assert use["swa_pages"] <= self.cache.pages_per_request, "an SWA page too many is held"

    def _check_compressed(self, row, s, ratio, state, pages, salt) -> None:
        kv, score, right = truth(self.text[row]).compressed(ratio, salt)
        needed = torch.arange(max(0, ratio * (s // ratio) - (ratio if ratio == 4 else 0)), s)
        assert torch.equal(state.kv[row, needed % state.ring_rows], kv[needed]), f"row {row}: C{ratio} ring"
        assert torch.equal(state.score[row, needed % state.ring_rows], score[needed]), f"row {row}: C{ratio} ring"
        table, page, entries = self.cache._pages.compressed[ratio], pages.shape[1], np.arange(s // ratio)
        columns = table.table[row, entries // page].astype(np.int64)
        assert (columns >= 0).all()
        got = pages.flatten(0, 1)[torch.as_tensor(columns * page + entries % page)]
        error = (got.double() - right[:s // ratio]).abs()
        assert (error <= 2e-5).all(), f"row {row}: C{ratio} entries, largest error {error.max()}"

    def all_free(self) -> bool:
        return all(pool["free"] == pool["total"] for pool in self.cache.usage()["pools"].values())
