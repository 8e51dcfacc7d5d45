# SPDX-License-Identifier: Apache-2.0
"""After every step the cache equals serial decode of the committed tokens (invariants 2 and 3)."""
import numpy as np
import pytest

from cache_driver import Driver
from dsv4spec.cache import CacheFull, ForwardMode

# (window, page): window below, at, above a page; window not a multiple of it
SHAPES = [(8, 4), (8, 8), (10, 4), (6, 16), (1, 4)]


@pytest.mark.parametrize("window,page,n", [(*shape, 4) for shape in SHAPES] + [(8, 4, 2), (10, 4, 6)])
def test_every_accept_count_at_every_position(window, page, n):
    """All accept counts side by side in one batch, three rounds, from every length around page, window, group."""
    for length in [*range(1, 22), *range(122, 131)]:
        d = Driver(window=window, page_size=page, max_requests=n, num_draft_tokens=n, prefill_chunk=64)
        rows = d.add_all(length, [None] * n)
        for accepts in (range(1, n + 1), range(n, 0, -1), [1] * n):
            d.round(rows, n, list(accepts))
            d.check()


@pytest.mark.parametrize("seed", range(6))
def test_random_mixes(seed):
    """Requests join, grow with changing windows, finish, are aborted at any point, are preempted and come back."""
    rng = np.random.default_rng(seed)
    window, page = SHAPES[seed % len(SHAPES)]
    d = Driver(window=window, page_size=page, max_requests=5, num_draft_tokens=6, max_len=200, seed=seed)
    waiting = []
    for _ in range(60):
        rows = sorted(d.text)
        if len(rows) < 5 and rng.random() < 0.4:
            if waiting and rng.random() < 0.7:
                d.add(*waiting.pop())
            else:
                d.add(int(rng.choice([1, 3, 4, 5, 7, 8, 9, 15, 16, 17, 60, 124, 127, 128, 129])))
            continue
        rows = [r for r in rows if rng.random() < 0.8]
        event = rng.random()
        n = int(rng.integers(1, 7))
        accepts = [int(rng.integers(1, n + 1)) for _ in rows]
        if rows and event < 0.15:  # abort before draft, between draft and verify, or preempt
            d.round(rows, n, accepts, abort_after=("reserve", "draft", None)[seed % 3])
            length, text = d.cache.length(rows[0]), d.drop(rows[0])
            if event < 0.08:
                waiting.append((length, text))
        elif rows and all(d.cache.length(r) < 190 for r in rows):
            d.round(rows, n, accepts)
        elif rows:
            d.drop(rows[0])
        d.check()
    for row in list(d.text):
        d.drop(row)
    d.check()
    assert d.all_free()


def test_plain_decode_and_rounds_mix():
    d = Driver(window=8, page_size=4)
    rows = [d.add(3), d.add(5)]
    for step in range(40):
        if step % 3:
            d.round(rows, 4, [1 + step % 4, 2])
            d.check()
        else:
            d.decode(rows)
            d.check(draft=False)  # a plain step writes no draft row: the worker extends the draft when it needs it
            for r in rows:
                s = d.cache.length(r) - 1
                d.draft(ForwardMode.NEXTN_EXTEND, [r], d.text[r][s:s + 2], 1, start=[s])
    d.check()


@pytest.mark.parametrize("window,page", SHAPES[:4])
def test_memory_is_bounded_by_the_window_in_chunked_prefill_and_decode(window, page):
    d = Driver(window=window, page_size=page, max_requests=1, max_len=400, prefill_chunk=12, seed=1)
    row = d.cache.open()
    d.text[row] = d.rng.integers(0, 1000, 500)
    for stop in range(12, 300, 12):
        d.prefill([row], stop)
        d.check()  # at most pages_per_request, also between the chunks
    held = []
    for step in range(80):
        d.round([row], 4, [1 + step % 4])
        d.check()
        held.append(d.cache.usage()["rows"][row]["swa_pages"])
    assert d.cache.pages_per_request == (window - 1 + 12 + page - 2) // page + 1
    assert max(held[10:]) <= (window - 1 + 4 + page - 2) // page + 1


def test_recycling_is_exact_to_the_page():
    """One column more and a window read fails; one column less and the bound fails: both are seen by these tests."""
    def run(change):
        d = Driver(window=8, page_size=4, max_requests=2, prefill_chunk=4)
        d.cache._pages.window += change
        row = d.add(3)
        for step in range(30):
            d.round([row], 4, [1 + step % 4])
            d.check()

    run(0)
    with pytest.raises(AssertionError, match="page is gone"):
        run(-1)  # at some length the oldest key of a query is the last of its page
    with pytest.raises(AssertionError, match="an SWA page too many is held"):
        run(4)


def test_commit_recycles_nothing_and_a_start_below_the_window_is_refused():
    d = Driver(window=8, page_size=4, max_requests=1, prefill_chunk=4)
    row = d.add(40)
    held = d.cache.usage()["rows"][row]["swa_pages"]
    d.cache.reserve([row], 4)
    free = d.cache.usage()["pools"]["SWA"]["free"]
    d.cache.commit([row], [4])
    assert d.cache.usage()["pools"]["SWA"]["free"] == free and held > 0
    with pytest.raises(ValueError, match="batch: start: expected at least"):
        d.draft(ForwardMode.NEXTN_EXTEND, [row], d.text[row][20:25], 4, start=[20])


def test_a_pool_too_small_takes_nothing_and_harms_nobody():
    d = Driver(window=8, page_size=4, max_requests=4, max_total_tokens=64, prefill_chunk=16)
    rows = [d.add(20), d.add(21)]
    before = d.cache.usage()
    with pytest.raises(CacheFull, match="C4 pool: expected at least 3 free pages, got 2 of 16") as e:
        d.add(30)
    assert (e.value.pool, e.value.needed, e.value.free, e.value.total) == ("C4", 3, 2, 16)
    assert d.cache.usage() == before
    d.check()
    with pytest.raises(CacheFull):
        for _ in range(20):
            d.round(rows, 4, [4, 3])
    d.check()
    d.drop(rows[1])
    d.round(rows[:1], 4, [2])  # the other goes on
    d.check()
    d.drop(rows[0])
    assert d.all_free()


def test_reserve_is_all_or_nothing():
    d = Driver(ratios=(0,), window=64, page_size=4, max_requests=2, max_total_tokens=24)
    rows = [d.add(8), d.add(8)]
    before = d.cache.usage()
    with pytest.raises(CacheFull, match="SWA pool: expected at least 4 free pages, got 2 of 6"):
        d.cache.reserve(rows, 8)
    assert d.cache.usage() == before
    d.cache.reserve(rows, 4)
    d.check()
