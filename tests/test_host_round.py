# SPDX-License-Identifier: Apache-2.0
"""What native code does of a round on the host is what the ops and the Python code beside it give, bit for bit."""
import numpy as np
import pytest
import torch

from cache_driver import config
from dsv4spec import _C, ops
from dsv4spec.cache import CacheFull, ForwardMode, KVCache, Window
from dsv4spec.cache.allocation import Allocation
from dsv4spec.spec.accept import embeddable, window_candidates
from dsv4spec.spec.round import picked_rows
from dsv4spec.spec.tree import chain_links

NAN, INF = float("nan"), float("inf")
FIELDS = ("input_ids", "positions", "query_start_loc", "seq_lens", "live_seq_lens", "rows", "slots", "table")


def test_argmax_rows_is_the_first_of_the_largest():
    rng = np.random.default_rng(0)
    for V in (1, 2, 15, 16, 127, 128, 129, 300, 1024):
        x = rng.integers(-3, 4, (40, V)).astype(np.float32)  # many equal
        x[:8] = rng.standard_normal((8, V))
        for row in range(16, 40):  # one to three of these anywhere
            x[row, rng.integers(0, V, 1 + row % 3)] = (NAN, INF, -INF, -0.0)[row % 4]
        x[10], x[11], x[12] = -INF, NAN, INF
        found = torch.full((40,), -7)
        _C.argmax_rows(torch.from_numpy(x), found)
        assert found.tolist() == x.argmax(-1).tolist()


@pytest.mark.parametrize("logits, message", [
    (torch.zeros(2, 3, dtype=torch.float64), "expected float32 values in C order"),
    (torch.zeros(3, 2).t(), "expected float32 values in C order"), (torch.zeros(5), "expected 2 rows, got 5 values"),
    (torch.zeros(0, 2), "expected 2 rows, got 0 values")])
def test_argmax_rows_refuses_other_tensors(logits, message):
    with pytest.raises(ValueError, match="argmax_rows: logits: " + message):
        _C.argmax_rows(logits, torch.zeros(2, dtype=torch.int64))


def allocation(lengths):
    pages = Allocation((4, 128), window=8, page_size=4, max_requests=6, max_total_tokens=4096, max_len=150,
                       num_draft_tokens=4, prefill_chunk=160)
    rows = np.array([pages.open() for _ in lengths])
    pages.allocate(rows, rows * 0, np.minimum(np.array(lengths) + 5, 150), every_pool=True)
    pages.commit(rows, np.array(lengths))
    return pages


def test_commit():
    rng, refused = np.random.default_rng(1), 0
    for _ in range(300):
        lengths = rng.integers(0, 151, 6)
        native, python = allocation(lengths), allocation(lengths)
        rows = rng.permutation(6)[:rng.integers(1, 7)]
        rows = np.insert(rows, rng.integers(0, len(rows) + 1), [-1] * int(rng.integers(0, 3)))
        counts = rng.integers(0, 4, len(rows))
        if rng.random() < 0.3:
            counts[rng.integers(0, len(rows))] = rng.choice([-1, 5, 9])
        done = native.native.commit(tuple(rows.tolist()), counts.tolist())
        if done:
            python.commit(rows, counts)
        else:
            refused += 1
            with pytest.raises(ValueError, match="^commit: counts: "):
                python.commit(rows, counts)
        assert native.length.tolist() == python.length.tolist()
    assert 50 < refused < 250


def same(a, b):
    return (a is None) == (b is None) and (a is None or a.dtype == b.dtype and torch.equal(a, b))


def described(window, n):
    """All tensors of a window's forwards."""
    ids = torch.zeros(window.size, dtype=torch.int64)
    for batch in (window.verify, *(window.step(i, ids) for i in range(n))):
        yield from (getattr(batch, name) for name in FIELDS[1:])
        for view in (batch.c4, batch.c128):
            yield from (None,) * 4 if view is None else (view.table, view.positions, view.locs, torch.tensor(view.emits))


@pytest.mark.parametrize("ratios", [(0,), (0, 4), (0, 128), (0, 4, 128)])
def test_windows(ratios):
    """Random rounds of two caches, by native code and by the ops: pages taken and recycled (window 8, pages of 4), requests
    that end and others in their rows, lengths up to max_len and windows across it, padding, pools that run out."""
    rng, sizes = np.random.default_rng(2), dict(page_size=4, max_requests=5, max_len=300, num_draft_tokens=5,
                                                prefill_chunk=512, draft=True)
    native, python = (KVCache(config(ratios), max_total_tokens=1000, **sizes) for _ in range(2))
    natively, full, rows = 0, 0, []
    for round_ in range(400):
        while len(rows) < 5:
            length = int(rng.choice([1, 3, 120, 127, 250, 290]))
            opened = [cache.open() for cache in (native, python)]
            assert opened[0] == opened[1]
            try:
                for cache in (native, python):
                    cache.batch(ForwardMode.TARGET_PREFILL, [opened[0]], torch.zeros(length, dtype=torch.int64), length)
                    cache.commit([opened[0]], [length])
            except CacheFull:
                full += 1
                for cache in (native, python):
                    cache.free(opened[0])
                break
            rows.append(opened[0])
        n = int(rng.integers(1, 6))
        batch = [*rng.permutation(rows)[:rng.integers(1, len(rows) + 1)].tolist(), *[-1] * int(rng.random() < 0.1)]
        try:
            a = Window(native, batch, n, n)
        except CacheFull:
            a = None
        with ops.use_backend("cpu"):
            try:
                b = Window(python, batch, n, n)
            except CacheFull:
                b = None
            assert (a is None) == (b is None)
            if b is not None:
                assert b.room is None and a.last == b.last
                assert all(same(x, y) for x, y in zip(described(a, n), described(b, n), strict=True))
        full += a is None
        natively += a is not None and a.room is not None
        assert native.usage() == python.usage()
        if a is not None:
            kept = [max(0, min(int(rng.integers(1, n + 1)), 300 - native.length(r))) if r >= 0 else 1 for r in batch]
            native.commit(batch, kept)
            python.commit(batch, np.array(kept))  # by Python
        done = [r for r in rows if native.length(r) >= 300 or a is None or rng.random() < 0.01]
        for row in done[:None if a is not None else 1]:
            rows.remove(row)
            native.free(row), python.free(row)
    assert natively > 200 and natively < 400 - 10


@pytest.mark.parametrize("n", [2, 3, 5])
def test_tokens_and_acceptance_along_a_chain(n):
    rng, B, V = np.random.default_rng(n), 6, 40
    cache = KVCache(config(), page_size=4, max_requests=B, max_total_tokens=1000, max_len=64, num_draft_tokens=n,
                    prefill_chunk=16, draft=True)
    rows = [cache.open() for _ in range(B)]
    cache.batch(ForwardMode.TARGET_PREFILL, rows, torch.zeros(2 * B, dtype=torch.int64), 2)
    cache.commit(rows, [2] * B)
    window, links, walked = Window(cache, rows, n, n), chain_links(B, n - 1, "cpu"), set()
    for _ in range(60):
        bonus, logits = torch.from_numpy(rng.integers(0, V, B)), torch.from_numpy(rng.random((B * n, V), np.float32))
        predict = logits.argmax(-1)
        drafts = predict.view(B, n)[:, :-1].clone()  # right, but for some
        wrong = torch.from_numpy(rng.random((B, n - 1)) < 0.3)
        drafts[wrong] = torch.from_numpy(rng.integers(-2, V + 2, int(wrong.sum())))
        tokens = window_candidates(bonus, drafts, V, None)
        window.room.native.candidates(bonus, [x.contiguous() for x in drafts.unbind(1)], V)
        host = window.room.native.accept(logits)
        _, _, accepted = ops.verify_tree_greedy(tokens, links.retrieve_index, links.next_token, links.next_sibling,
                                                predict.view(B, n), num_steps=n - 1)
        assert window.verify.input_ids.equal(embeddable(tokens).view(-1)) and window.room.predict.equal(predict)
        assert host == torch.cat([predict.view(B, n), accepted[:, None]], 1).tolist()
        kept = rng.integers(1, n + 1, B).tolist()
        window.room.native.pick(kept)
        assert window.room.picked.tolist() == picked_rows(n, n - 1, kept)
        walked |= set(accepted.tolist())
    assert walked == set(range(n))
