# SPDX-License-Identifier: Apache-2.0
"""Field reports that the cache answers for: A1, A2, A7, A8, A9, A10, A16, A20."""
import numpy as np
import pytest
import torch

from cache_driver import Driver
from cache_values import COFF, D, draft_value, parameters
from dsv4spec import ops
from dsv4spec.cache import CacheFull, ForwardMode


def ids(count):
    return torch.zeros(count, dtype=torch.int64)


def entries(d, row, layer, count):
    table, pages = d.cache._pages.compressed[4], d.cache.target[layer].c_pages
    w = np.arange(count)
    slots = table.table[row, w // table.page].astype(np.int64) * table.page + w % table.page
    return pages.flatten(0, 1)[torch.as_tensor(slots)]


def test_a1_a_verify_window_wider_than_the_group_keeps_its_first_row():
    """r=4, ring 16: commit 0..10, verify 11..15, keep one, decode 12..15 one by one."""
    d, serial = (Driver((4,), window=8, num_draft_tokens=5) for _ in range(2))
    row = d.add(11)
    assert d.cache.target[0].state.ring_rows == 16
    d.round([row], 5, [1])
    assert d.cache.length(row) == 12
    serial_row = serial.add(1, text=d.text[row])
    for _ in range(4):
        d.decode([row])
    for _ in range(15):
        serial.decode([serial_row])
    assert d.cache.length(row) == serial.cache.length(serial_row) == 16
    assert torch.equal(entries(d, row, 0, 4), entries(serial, serial_row, 0, 4))
    d.check(draft=False)


@pytest.mark.parametrize("accepted", [0, 1, 2, 3])
def test_a2_the_draft_cache_has_one_row_per_committed_position(accepted):
    d = Driver((0,), window=64, num_draft_tokens=4)
    row = d.add(6)
    for _ in range(3):
        d.round([row], 4, [accepted + 1])
        keys = np.arange(d.cache.length(row))
        d._check_window(row, keys, d.cache._pages.swa.table[row], [d.cache.draft.kv_pages])
    assert d.cache.length(row) == 6 + 3 * (accepted + 1)


def test_a7_prefix_reuse_is_refused_and_a_full_recompute_is_right():
    d = Driver(window=128, page_size=64, max_len=512, prefill_chunk=64)
    first = d.add(256)
    with pytest.raises(ValueError, match="open: prefix_tokens: expected 0, got 256: a prefix computed for another"):
        d.cache.open(prefix_tokens=256)
    second = d.add(256, text=d.text[first])
    d.round([first, second], 4, [4, 1])
    d.check()


def test_a8_a_chunked_prompt_fills_the_same_draft_rows():
    whole, cut = (Driver((0, 4), window=64, prefill_chunk=10) for _ in range(2))
    a = whole.add(10)
    b = cut.cache.open()
    cut.text[b] = whole.text[a]
    cut.prefill([b], 10, chunks=[4, 4, 2])
    rows = []
    for d, r in ((whole, a), (cut, b)):
        pages = torch.as_tensor(d.cache._pages.swa.table[r, :3].astype(np.int64))
        rows.append(d.cache.draft.kv_pages[pages].flatten(0, 1)[:10])
    assert torch.equal(*rows)
    text = cut.text[b]  # the last row of a chunk pairs with the next token of the prompt
    assert torch.equal(rows[1][3], draft_value(text[3:4], text[4:5], [3])[0])
    for d, r in ((whole, a), (cut, b)):
        d.round([r], 4, [3])
        d.check()


@pytest.mark.parametrize("lag", range(5))
@pytest.mark.parametrize("committed", range(60, 65))
def test_a9_a_window_across_a_page_edge(committed, lag):
    """The reservation covers a window that starts up to D rows later than the host knows."""
    d = Driver((0,), window=128, page_size=64, num_draft_tokens=8, prefill_chunk=64)
    row = d.add(committed)
    d.cache.reserve([row], 4 + lag)
    batch = d.cache.batch(ForwardMode.TARGET_VERIFY, [row], ids(4), 4, start=[committed + lag])
    table = batch.table[0].tolist()
    want = [table[p // 64] * 64 + p % 64 for p in range(committed + lag, committed + lag + 4)]
    assert batch.slots.tolist() == want and min(want) >= 0
    assert batch.positions.tolist() == list(range(committed + lag, committed + lag + 4))


def test_a9_one_page_short_is_an_error_that_takes_nothing():
    d = Driver((0,), window=128, page_size=64, max_requests=1, max_total_tokens=64, prefill_chunk=64)
    row = d.add(62)
    before = d.cache.usage()
    with pytest.raises(CacheFull, match="SWA pool: expected at least 1 free pages, got 0 of 1"):
        d.cache.batch(ForwardMode.TARGET_VERIFY, [row], ids(4), 4)
    with pytest.raises(CacheFull):
        d.cache.reserve([row], 3)
    assert d.cache.usage() == before
    d.decode([row])  # position 62 is in the page
    assert d.cache.length(row) == 63


@pytest.mark.parametrize("page", [1, 64])
def test_a10_no_page_leaks_over_200_requests(page):
    rng = np.random.default_rng(page)
    d = Driver((0,), window=8, page_size=page, max_requests=5 if page == 1 else 24, max_total_tokens=64 * page,
               max_len=300, prefill_chunk=8 if page == 1 else 64, seed=page)
    pool = d.cache.usage()["pools"]["SWA"]
    assert pool == {"total": 64, "free": 64, "allocated": 0}
    started, preempted, full = 0, [], 0
    while started < 200 or preempted or d.text:
        rows = sorted(d.text)
        try:
            if preempted and rng.random() < 0.5:
                d.add(*preempted[-1])
                preempted.pop()
            elif started < 200 and (len(rows) < 4 or rng.random() < 0.5):
                d.add(int(rng.integers(1, 3 * page + 20)) % 200 + 1)
                started += 1
            elif rows:
                end = rng.choice(["finish", "before draft", "before verify", "preempt", "go on", "go on"])
                d.round(rows[:1] if end != "go on" else rows[:6], 4, rng.integers(1, 5, len(rows)).tolist(),
                        abort_after={"before draft": "reserve", "before verify": "draft"}.get(end))
                if end == "preempt":
                    preempted.append((d.cache.length(rows[0]), d.text[rows[0]]))
                if end != "go on" or d.cache.length(rows[0]) > 250:
                    d.drop(rows[0])
        except (CacheFull, ValueError) as e:
            assert isinstance(e, CacheFull) or "open: expected a free row" in str(e)
            full += 1
            if rows:
                d.drop(rows[-1])
        d.check_pages()
        if started % 10 == 0:
            d.check()
    assert d.cache.usage() == {"pools": {"SWA": pool}, "rows": {}}
    assert full, "the pool was never full: the run is too easy"
    with pytest.raises(ValueError, match="free: rows: expected an open row, got row 0, which is free"):
        d.cache.free(0)


def test_a16_positions_past_max_len_are_not_stored():
    d = Driver((0, 4), window=8, page_size=4, max_len=16, num_draft_tokens=8, prefill_chunk=16)
    short, full = d.add(6), d.add(14)
    batch = d.cache.batch(ForwardMode.TARGET_VERIFY, [full, short], ids(12), 6)
    assert batch.positions.tolist() == [*range(14, 20), *range(6, 12)]
    assert (batch.slots[:6] >= 0).tolist() == [True, True, False, False, False, False]
    assert (batch.slots[6:] >= 0).all()
    assert batch.c4.positions.tolist() == [12, 16, 4, 8, 0]
    assert (batch.c4.locs >= 0).tolist() == [True, False, True, True, False]
    with pytest.raises(ValueError, match="commit: counts: expected 0 <= count <= 2 .* for row 1, got 3"):
        d.cache.commit([full, short], [3, 1])
    assert d.cache.length(full) == 14 and d.cache.length(short) == 6
    for _ in range(2):
        d.round([full, short], 4, [4, 2])
        d.check()
    assert d.cache.length(full) == 16 and d.cache.length(short) == 10
    batch = d.cache.batch(ForwardMode.TARGET_VERIFY, [full], ids(4), 4)
    assert (batch.slots == -1).all() and (batch.c4.locs == -1).all() and not batch.c4.emits


@pytest.mark.parametrize("mode,n", [(ForwardMode.TARGET_VERIFY, 4), (ForwardMode.TARGET_DECODE, 1),
                                    (ForwardMode.TARGET_PREFILL, 4)])
def test_a20_padding_reads_and_writes_nothing(mode, n):
    d = Driver(window=8, page_size=4, max_requests=8)
    real = [d.add(s) for s in (7, 127, 12)]
    rows = [real[0], -1, -1, real[1], -1, real[2], -1, -1]
    counts = n if n > 1 or mode is ForwardMode.TARGET_DECODE else [n] * 8
    batch, alone = (d.cache.batch(mode, r, ids(len(r) * n), counts) for r in (rows, real))
    pad = torch.tensor(rows) < 0
    assert (batch.seq_lens[pad] == 0).all() and (batch.live_seq_lens[pad] == 0).all()
    assert (batch.rows[pad] == -1).all() and (batch.table[pad] == -1).all()
    assert (batch.slots.view(8, n)[pad] == -1).all()
    assert torch.equal(batch.slots.view(8, n)[~pad], alone.slots.view(3, n))
    assert torch.equal(batch.seq_lens[~pad], alone.seq_lens) and torch.equal(batch.table[~pad], alone.table)

    layer, view, lone = d.cache.target[1], batch.c4, alone.c4
    m = int((lone.locs >= 0).sum())
    assert torch.equal(view.locs[:m], lone.locs[:m]) and torch.equal(view.positions[:m], lone.positions[:m])
    assert (view.locs[m:] == -1).all() and (lone.locs[m:] == -1).all()
    kv = torch.randn(8, n, COFF[4] * D)
    kv[pad] = float("nan")
    results = []
    for b, x in ((batch, kv.flatten(0, 1)), (alone, kv[~pad].flatten(0, 1))):
        state, pages = layer.state.data.clone(), layer.c_pages.clone()
        with ops.use_backend(None, missing="reference"):
            ops.compress_kv(x, x, *parameters(4, 1), d.cos_sin, state, b.rows, b.query_start_loc, b.seq_lens,
                            b.c4.positions, b.c4.locs, pages, ratio=4, eps=1e-6)
        results.append((state, pages))
    assert torch.equal(results[0][0], results[1][0]) and torch.equal(results[0][1], results[1][1])
    outside = torch.ones(layer.c_pages.shape[0] * layer.c_pages.shape[1], dtype=torch.bool)
    outside[view.locs[view.locs >= 0]] = False
    assert torch.equal(results[0][1].flatten(0, 1)[outside], layer.c_pages.flatten(0, 1)[outside])
    d.cache.commit(rows, [3] * 8 if n == 4 else [1] * 8)
    assert d.cache.length(-1) == 0
    assert [d.cache.length(r) for r in real] == [s + (3 if n == 4 else 1) for s in (7, 127, 12)]


def test_a20_empty_batches():
    d = Driver()
    for mode in ForwardMode:
        b = d.cache.batch(mode, [], ids(0), 4)
        assert b.positions.shape == b.slots.shape == b.input_ids.shape == (0,) and b.query_start_loc.tolist() == [0]
        assert b.table.shape == (0, 1) and b.seq_lens.shape == (0,)
        assert (b.c4 is None) == (not mode.is_target)
    d.cache.reserve([], 4)
    d.cache.commit([], [])
    all_padding = d.cache.batch(ForwardMode.TARGET_VERIFY, [-1, -1], ids(8), 4)
    assert (all_padding.slots == -1).all() and (all_padding.c4.locs == -1).all()
    assert not all_padding.c4.emits and not all_padding.c128.emits
