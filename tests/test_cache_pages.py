# SPDX-License-Identifier: Apache-2.0
"""The pieces: pages, compressor state, sizes and refusals, and the batch of a known case."""
import numpy as np
import pytest
import torch

from cache_driver import Driver, config
from dsv4spec import ops
from dsv4spec.cache import CacheFull, CompressorState, ForwardMode, KVCache
from dsv4spec.cache.compressor_state import ring_rows_for
from dsv4spec.cache.pages import PageTable, spread
from util import BACKENDS


def rows(*numbers):
    return np.array(numbers, np.int64)


def test_spread_packs_ranges_in_row_order():
    owners, numbers = spread(rows(7, 8, 9), rows(5, 0, 2), rows(2, 0, 3))
    assert owners.tolist() == [7, 7, 9, 9, 9] and numbers.tolist() == [5, 6, 2, 3, 4]
    assert [len(x) for x in spread(rows(), rows(), rows())] == [0, 0]


def test_page_table_grows_drops_and_releases():
    t = PageTable("SWA", 5, 4, requests=2, columns=4)
    t.grow(t.plan(rows(0, 1), rows(2, 1)))
    assert t.table[:2].tolist() == [[0, 1, -1, -1], [2, -1, -1, -1]] and t.free == 2
    assert t.locate(rows(0, 0, 1, 1, -1), rows(3, 4, 0, 4, 0)).tolist() == [3, 4, 8, -1, -1]
    with pytest.raises(CacheFull, match="SWA pool: expected at least 3 free pages, got 2 of 5"):
        t.plan(rows(0, 1), rows(4, 2))
    t.drop_below(rows(0, 1), rows(1, 0))
    assert t.table[0].tolist() == [-1, 1, -1, -1] and t.free == 3
    t.drop_below(rows(0), rows(1))  # again: nothing
    assert t.free == 3
    t.grow(t.plan(rows(0), rows(4)))
    assert t.table[0, 1:].tolist() == [1, 0, 3] and t.table[1, 0] == 2
    t.release(0)
    t.release(1)
    t.release(1)  # owns nothing
    assert t.free == 5 and (t.table == -1).all()


def test_a_double_free_is_an_error():
    t = PageTable("C4", 4, 4, requests=1, columns=4)
    t.grow(t.plan(rows(0), rows(2)))
    page = t.table[0, :1].copy()
    t._give(page)
    with pytest.raises(RuntimeError, match=r"C4 pool: pages \[0\] are freed twice"):
        t._give(page)
    with pytest.raises(RuntimeError, match="freed twice"):
        t._give(np.array([1, 1], np.int32))


@pytest.mark.parametrize("ratio,ring,widest", [(4, 8, 2), (4, 16, 10), (128, 128, 2), (128, 256, 130)])
def test_compressor_state_refuses_too_wide_windows(ratio, ring, widest):
    state = CompressorState(ratio, ring, head_dim=8, max_requests=2, num_draft_tokens=widest)
    assert state.data.shape == (2, ring, 2 * (2 if ratio == 4 else 1) * 8) and state.data.dtype == torch.float32
    assert (state.kv == 0).all() and (state.score == -torch.inf).all()
    with pytest.raises(ValueError, match=rf"num_draft_tokens: expected 1 <= n <= .* - lookback \+ 2 = {widest} "):
        CompressorState(ratio, ring, head_dim=8, max_requests=2, num_draft_tokens=widest + 1)


def test_default_rings_are_as_wide_as_the_window_needs():
    assert [ring_rows_for(4, n) for n in (1, 4, 10, 11, 20)] == [16, 16, 16, 17, 26]
    assert [ring_rows_for(128, n) for n in (1, 130, 131)] == [256, 256, 257]


def test_compressor_state_other_refusals_and_clear():
    with pytest.raises(ValueError, match="ratio: expected 4 or 128, got 8"):
        CompressorState(8, 16, head_dim=8, max_requests=1)
    state = CompressorState(4, 16, head_dim=8, max_requests=2)
    state.data.fill_(3)
    state.clear(0)
    assert (state.kv[0] == 0).all() and (state.score[0] == -torch.inf).all() and (state.data[1] == 3).all()


@pytest.mark.parametrize("ring,right", [(8, False), (9, False), (10, True), (16, True)])
def test_the_ring_rule_is_sharp(ring, right):
    """n = 4: a C4 ring of 10 rows is enough for every length and accept count, 9 rows are not."""
    good = True
    for length in range(1, 18):
        d = Driver((4,), num_draft_tokens=4, max_requests=1, seed=length)
        layer = d.cache.target[0]
        state = layer.state
        state.ring_rows, state.data = ring, state.data[:, :ring].contiguous()
        row = d.add(length)
        for accept in (1, 1, 2, 1, 3, 1, 4):
            d.round([row], 4, [accept])
            try:
                d._check_compressed(row, d.cache.length(row), 4, state, layer.c_pages, 0)
            except AssertionError:
                good = False
    assert good == right


def test_open_clears_the_state_of_the_request_before():
    d = Driver(max_requests=1)
    row = d.add(50)
    d.drop(row)
    assert d.cache.open() == row
    for layer in d.cache.target:
        for state in (layer.state, layer.index_state):
            assert state is None or ((state.kv[row] == 0).all() and (state.score[row] == -torch.inf).all())


def make(**changes):
    sizes = dict(page_size=4, max_requests=2, max_total_tokens=64, max_len=32, num_draft_tokens=4, prefill_chunk=8,
                 draft=True)
    return KVCache(config(changes.pop("ratios", (0, 4, 128)), 8), **{**sizes, **changes})


def test_layers_and_sizes():
    cache = make()
    kinds = [(x.c_pages is not None, x.index_pages is not None, x.state and x.state.ratio) for x in cache.target]
    assert kinds == [(False, False, None), (True, True, 4), (True, False, 128)]
    pages = min(16, 2 * cache.pages_per_request)
    assert cache.target[0].kv_pages.shape == cache.draft.kv_pages.shape == (pages, 4, 16)
    assert cache.target[1].c_pages.shape == (16, 1, 16) and cache.target[2].c_pages.shape == (2, 16, 16)
    assert make(draft=False).draft is None
    assert make(page_size=3, ratios=(0, 1)).usage()["pools"].keys() == {"SWA"}  # ratio 1 is no compressed part (A6)


@pytest.mark.parametrize("change,text", [
    ({"page_size": 6}, "page_size: expected a multiple of 4 .C4 layers., got 6"),
    ({"page_size": 0}, "page_size: expected at least 1, got 0"),
    ({"max_requests": 0}, "max_requests: expected at least 1, got 0"),
    ({"max_len": 0}, "max_len: expected at least 1, got 0"),
    ({"num_draft_tokens": 0}, "num_draft_tokens: expected at least 1, got 0"),
])
def test_sizes_out_of_range(change, text):
    with pytest.raises(ValueError, match=text):
        make(**change)


def test_calls_out_of_contract():
    cache, mode, ids = make(), ForwardMode.TARGET_PREFILL, torch.zeros(4, dtype=torch.int64)
    a, b = cache.open(), cache.open()
    with pytest.raises(ValueError, match="open: expected a free row, got all 2 in use"):
        cache.open()
    cache.free(b)
    for call, text in [
        (lambda: cache.batch(mode, [b], ids, 4), "batch: rows: expected an open row, got row 1, which is free"),
        (lambda: cache.batch(mode, [5], ids, 4), "batch: rows: expected 0 <= row < 2, got 5"),
        (lambda: cache.batch(mode, [a, a], ids, 2), "batch: rows: expected each row once"),
        (lambda: cache.batch(mode, [a], ids, 3), "batch: input_ids: expected 3 ids of 1 requests, got 4"),
        (lambda: cache.batch(mode, [a], ids, [2, 2]), "batch: input_ids"),
        (lambda: cache.batch(ForwardMode.TARGET_VERIFY, [a], ids.repeat(2)[:5], 5),
         "batch: counts: expected at most num_draft_tokens = 4, got 5"),
        (lambda: cache.batch(mode, [a], ids.repeat(3)[:9], [9]),
         "batch: counts: expected at most prefill_chunk = 8, got .9."),
        (lambda: cache.batch(ForwardMode.TARGET_VERIFY, [a], ids, [4]),
         "batch: counts: expected one number for target_verify, got .4."),
        (lambda: cache.batch(ForwardMode.TARGET_DECODE, [-1, a], ids[:2], 1),
         "batch: rows: expected rows with tokens before a target_decode, got row 0 at length 0"),
        (lambda: cache.commit([a], [1]), "commit: counts: expected 0 <= count <= 0"),
        (lambda: cache.free(b), "free: rows: expected an open row"),
        (lambda: cache.free(-1), "free: rows: expected 0 <= row"),
    ]:
        with pytest.raises(ValueError, match=text):
            call()
    cache.batch(mode, [a], ids, 4)
    with pytest.raises(ValueError, match="commit: counts: .* for row 0, got -1"):
        cache.commit([a], [-1])
    cache.commit([a], [4])
    cache.free(a)
    with pytest.raises(ValueError, match="which is free"):
        cache.batch(mode, [a], ids, 4)  # the same list of rows as before: not remembered


def test_a_batch_of_known_numbers():
    cache = make(max_len=256, max_total_tokens=600, prefill_chunk=130)
    a, b = cache.open(), cache.open()
    prompt = cache.batch(ForwardMode.TARGET_PREFILL, [a, b], torch.zeros(133, dtype=torch.int64), [126, 7])
    assert prompt.query_start_loc.tolist() == [0, 126, 133] and prompt.seq_lens.tolist() == [126, 7]
    assert prompt.c4.positions.tolist() == [*range(0, 124, 4), 0] and prompt.c128.positions.tolist() == []
    cache.commit([a, b], [126, 7])
    v = cache.batch(ForwardMode.TARGET_VERIFY, [a, b], torch.zeros(8, dtype=torch.int64), 4)
    assert v.positions.tolist() == [126, 127, 128, 129, 7, 8, 9, 10] and v.query_start_loc.tolist() == [0, 4, 8]
    assert v.seq_lens.tolist() == [130, 11] and v.live_seq_lens.tolist() == [126, 7] and v.rows.tolist() == [a, b]
    assert v.slots.tolist() == [int(v.table[i, p // 4]) * 4 + p % 4 for i, p in
                                [(0, 126), (0, 127), (0, 128), (0, 129), (1, 7), (1, 8), (1, 9), (1, 10)]]
    assert v.table[0, :29].tolist() == [-1] * 29 and (v.table[0, 29:] >= 0).all()  # from key 126 - 7 = 4 * 29 + 3
    assert v.c4.positions.tolist() == [124, 4, 0, 0]
    assert v.c4.locs.tolist() == [int(v.c4.table[0, 31]), int(v.c4.table[1, 1]), -1, -1]
    assert v.c128.positions.tolist() == [0, 0] and v.c128.locs.tolist() == [int(v.c128.table[0, 0]) * 16, -1]
    assert v.c4.emits and v.c128.emits and prompt.c4.emits and not prompt.c128.emits
    for tensor in (v.positions, v.rows, v.slots, v.c4.positions, v.c4.locs):
        assert tensor.dtype == torch.int64
    for tensor in (v.query_start_loc, v.seq_lens, v.live_seq_lens, v.table, v.c4.table):
        assert tensor.dtype == torch.int32


def prefilled(lengths, n, page):
    """A cache of max_len 381 whose rows have these lengths, and the rows with two padding requests among them."""
    cache = make(page_size=page, max_requests=len(lengths), max_len=381, max_total_tokens=4000, num_draft_tokens=n,
                 prefill_chunk=381)
    rows_ = [cache.open() for _ in lengths]
    cache.batch(ForwardMode.TARGET_PREFILL, rows_, torch.zeros(sum(lengths), dtype=torch.int64), lengths)
    cache.commit(rows_, lengths)
    return cache, rows_[:3] + [-1, -1] + rows_[3:]


def entries_of_a_window(table, rows_, starts, n, ratio, max_len):
    """(position, loc) of each entry, row by row."""
    for row, s in zip(rows_, starts):
        for p in range(s, s + n) if row >= 0 else ():
            if p % ratio == ratio - 1:
                w = p // ratio
                loc = int(table.table[row, w // table.page]) * table.page + w % table.page
                yield p - ratio + 1, loc if p < max_len else -1


@pytest.mark.parametrize("page", [4, 16])
@pytest.mark.parametrize("n", [1, 2, 4, 7])
def test_slots_and_views_of_a_window(n, page):
    """Views of fixed sizes, whatever is emitted; lengths around group ends, and (A16) windows that pass max_len."""
    mode = ForwardMode.TARGET_DECODE if n == 1 else ForwardMode.TARGET_VERIFY
    past = 0
    for lengths in ([126, 127, 255, 1, 3, 59], [2, 4, 5, 124, 128, 141], [380, 375, 252, 376, 4, 379],
                    [1, 4, 8, 12, 16, 20]):
        cache, rows_ = prefilled(lengths, n, page)
        starts, ids = [0 if r < 0 else cache.length(r) for r in rows_], torch.zeros(8 * n, dtype=torch.int64)
        for backend in BACKENDS:
            with ops.use_backend(backend):
                b = cache.batch(mode, rows_, ids, n)
            located = cache.batch(ForwardMode.NEXTN_EXTEND, rows_, ids, n)
            assert b.slots.dtype == torch.int64 and torch.equal(b.slots, located.slots)
            for ratio, view in ((4, b.c4), (128, b.c128)):
                size = min(8 * n, 8 * n // ratio + 8)
                want = list(entries_of_a_window(cache._pages.compressed[ratio], rows_, starts, n, ratio, 381))
                past += sum(loc < 0 for _, loc in want)
                want += [(0, -1)] * (size - len(want))
                assert list(zip(view.positions.tolist(), view.locs.tolist())) == want
                assert view.emits == any(loc >= 0 for _, loc in want)
                assert [x.numel() for x in view.entries()] == [size if view.emits else 0] * 2
    assert (past > 0) == (n >= 4)


def test_a_round_asks_the_ops_once_each(monkeypatch):
    calls = []

    def counted(f):
        return lambda *args, **kw: calls.append(f.__name__) or f(*args, **kw)

    for name in ("assign_draft_slots", "verify_metadata"):
        monkeypatch.setattr(ops, name, counted(getattr(ops, name)))
    d = Driver(num_draft_tokens=6)
    rows_ = [d.add(9), d.add(30)]
    assert calls == []
    d.round(rows_, 6, [2, 6])
    assert calls == ["assign_draft_slots", "verify_metadata"]
    d.decode(rows_)
    assert calls[2:] == ["assign_draft_slots", "verify_metadata"]


def test_slots_of_a_prefill_are_those_of_alloc_extend():
    """Same pages handed out in the same order: the table and the op give each token the same slot."""
    cache = make(page_size=4, max_requests=2, ratios=(0,), max_len=64, prefill_chunk=16)
    rows_ = [cache.open(), cache.open()]
    ids = torch.zeros(32, dtype=torch.int64)
    first = cache.batch(ForwardMode.TARGET_PREFILL, rows_, ids[:13], [5, 8])
    cache.commit(rows_, [5, 8])
    last = first.slots[first.query_start_loc[1:].long() - 1]
    table = cache._pages.swa
    free = torch.arange(table.total, dtype=torch.int64)[table.total - table.free:]
    second = cache.batch(ForwardMode.TARGET_PREFILL, rows_, ids[:7], [6, 1])
    slots, pages = ops.alloc_extend(torch.tensor([5, 8]), torch.tensor([11, 9]), last, free, extend_num_tokens=7,
                                    page_size=4)
    assert torch.equal(slots, second.slots) and pages.item() == 2
