# SPDX-License-Identifier: Apache-2.0
import pytest
import torch
from util import BACKENDS, UNCHECKED, Guarded, rng

from dsv4spec import ops, use_backend

UNREAD = -(2 ** 40)


def model(prefix, seq, last, free, page, extend):
    """Slots and pages taken, a token at a time."""
    slots, taken = [], 0
    for a, b, slot in zip(prefix.tolist(), seq.tolist(), last.tolist()):
        for position in range(a, b if b > 0 else a):
            if position % page == 0:
                slot = int(free[taken]) * page
                taken += 1
            else:
                slot += 1
            slots.append(slot)
    return torch.tensor(slots + [-1] * (extend - len(slots)), dtype=torch.int64), torch.tensor([taken], dtype=torch.int32)


def make(B, page, dtype):
    g = rng("alloc_extend", B, page)
    prefix = torch.randint(0, 3 * page + 2, (B,), generator=g)
    seq = prefix + torch.randint(0, 2 * page + 3, (B,), generator=g)
    seq[1::4] = 0
    last = torch.where(prefix % page == 0, UNREAD, 1000 * page + prefix % page - 1)
    last[1::4] = UNREAD
    prefix[1::4] = 2 ** 30
    free = torch.randperm(6 * B + 1, generator=g)
    return prefix.to(dtype), seq.to(dtype), last, free.to(dtype)


@pytest.mark.parametrize("backend", BACKENDS)
@pytest.mark.parametrize("dtype", [torch.int32, torch.int64], ids=str)
@pytest.mark.parametrize("page", [1, 4, 64])
@pytest.mark.parametrize("B", [0, 1, 2, 7, 33])
@pytest.mark.parametrize("slack", [0, 5])
def test_matches_model(backend, dtype, page, B, slack):
    prefix, seq, last, free = make(B, page, dtype)
    extend = int((seq - prefix)[seq > 0].sum()) + slack
    want = model(prefix, seq, last, free, page, extend)
    slots, pages, status = (Guarded(s, t) for s, t in (((extend,), torch.int64), ((1,), torch.int32), ((1,), torch.int32)))
    keywords = dict(extend_num_tokens=extend, page_size=page)
    with use_backend(backend):
        for _ in range(2):
            ops.alloc_extend(prefix, seq, last, free, **keywords, status=status.tensor, out=(slots.tensor, pages.tensor))
            assert slots.tensor.equal(want[0]) and pages.tensor.equal(want[1]) and status.tensor.tolist() == [0]
        got = ops.alloc_extend(prefix, seq, last, free, **keywords)
    assert got[0].equal(want[0]) and got[1].equal(want[1])
    for guarded in (slots, pages, status):
        guarded.check()


@pytest.mark.parametrize("backend", BACKENDS)
def test_worked_numbers(backend):
    """Worked example 10.6."""
    t = torch.tensor
    with use_backend(backend):
        slots, pages = ops.alloc_extend(t([5, 8]), t([11, 9]), t([12, 11]), t([5, 6, 9]), extend_num_tokens=7, page_size=4)
    assert slots.tolist() == [13, 14, 15, 20, 21, 22, 24] and pages.tolist() == [2]


@pytest.mark.parametrize("backend", BACKENDS)
@pytest.mark.parametrize("lag", range(5))
@pytest.mark.parametrize("P", range(60, 65))
def test_a9_a_draft_over_a_page_edge(backend, P, lag):
    """Page 64, P committed tokens, a window of 4 more, the host's count lagging by 0..4: exact slots with enough pages, and
    with one page short an error and no write."""
    t = torch.tensor
    prefix = P - lag
    last = t([7 * 64 + prefix - 1]) if prefix % 64 else t([-1])
    needed = -(-(P + 4) // 64) - -(-prefix // 64)
    free = t([3, 9])[:needed]
    keywords = dict(extend_num_tokens=4 + lag, page_size=64)
    with use_backend(backend):
        slots, pages = ops.alloc_extend(t([prefix]), t([P + 4]), last, free, **keywords)
        assert pages.tolist() == [needed]
        assert slots.tolist() == [(7 if p < 64 else 3) * 64 + p % 64 for p in range(prefix, P + 4)]
        if needed:
            out = t([-7] * (4 + lag)), t([-7], dtype=torch.int32)
            status = t([-7], dtype=torch.int32)
            ops.alloc_extend(t([prefix]), t([P + 4]), last, free[:needed - 1], **keywords, status=status, out=out)
            assert status.tolist() == [1] and (out[0] == -7).all() and (out[1] == -7).all()
            mine = ops.alloc_extend(t([prefix]), t([P + 4]), last, free[:needed - 1], **keywords, status=status)
            assert (mine[0] == -1).all() and mine[1].tolist() == [0]
    if needed and backend == "cpu":
        with pytest.raises(ValueError, match=rf"^alloc_extend: free_pages: expected at least {needed} pages, got {needed - 1}"):
            ops.alloc_extend(t([prefix]), t([P + 4]), last, free[:needed - 1], **keywords, out=out)
        assert (out[0] == -7).all()


@pytest.mark.parametrize("backend", BACKENDS)
def test_too_small_an_output_is_a_status(backend):
    t = torch.tensor
    status = t([0], dtype=torch.int32)
    with use_backend(backend):
        got = ops.alloc_extend(t([0]), t([9]), t([-1]), t([1, 2, 3]), extend_num_tokens=8, page_size=4, status=status)
    assert status.tolist() == [1] and (got[0] == -1).all() and got[1].tolist() == [0]


@pytest.mark.parametrize("backend", UNCHECKED)
def test_hostile_values_leave_the_other_requests_right(backend):
    """Lengths that no request can have count as padding, slots of a bad last slot or page are -1; nothing else changes."""
    t = torch.tensor
    prefix = t([5, 12, -1, 5, 6, -2 ** 63, 7, 8, 2 ** 62])
    seq = t([7, 11, 3, 10, 7, 4, 9, 9, 2 ** 61])
    last = t([12, 3, 3, 13, 2 ** 63 - 1, 0, -2 ** 63, 11, 1])
    free = t([2 ** 31, -1, 9, 2 ** 62, 4])
    out = [Guarded((14,), torch.int64), Guarded((1,), torch.int32), Guarded((1,), torch.int32)]
    with use_backend(backend):
        ops.alloc_extend(prefix, seq, last, free, extend_num_tokens=14, page_size=4, status=out[2].tensor,
                         out=(out[0].tensor, out[1].tensor))
    slots, pages, status = (o.tensor.tolist() for o in out)
    # requests 0; 3 (bad last slot, then bad page 2^31 for two tokens); 4; 6 (bad last slot, then page -1); 7 (page 9)
    assert slots == [13, 14] + [-1] * 3 + [-1] * 2 + [-1] + [-1] * 2 + [36] + [-1] * 3
    assert pages == [3] and status == [0]
    for o in out:
        o.check()


@pytest.mark.parametrize("backend", UNCHECKED)
@pytest.mark.parametrize("page", [1, 48, 64])
def test_int32_lengths_at_the_ends_of_their_type_count_as_padding(backend, page):
    """Among 1100 requests: negative prefixes, prefixes beyond the length, no length; the others get what they got alone."""
    prefix, seq, last, free = make(1100, page, torch.int32)
    bad = torch.arange(1100) % 5 == 3
    ends = torch.tensor([[-2 ** 31, 7], [-1, 2 ** 31 - 1], [9, 8], [2 ** 31 - 1, 2 ** 31 - 2], [5, -2 ** 31]], dtype=torch.int32)
    ends = ends[torch.arange(1100) % 7 % 5]
    want = model(prefix, torch.where(bad, 0, seq), last, free, page, extend := int((seq - prefix)[(seq > 0) & ~bad].sum()) + 3)
    prefix, seq = torch.where(bad, ends[:, 0], prefix), torch.where(bad, ends[:, 1], seq)
    with use_backend(backend):
        got = ops.alloc_extend(prefix, seq, last, free, extend_num_tokens=extend, page_size=page)
    assert got[0].equal(want[0]) and got[1].equal(want[1])


@pytest.mark.parametrize("backend", UNCHECKED)
def test_sums_beyond_all_bounds_are_a_status(backend):
    lens = torch.full((7 if backend == "reference" else 300,), 2 ** 60)  # the reference's sums are plain int64
    status = Guarded((1,), torch.int32)
    out = Guarded((9,), torch.int64), Guarded((1,), torch.int32)
    with use_backend(backend):
        ops.alloc_extend(torch.zeros_like(lens), lens, lens, torch.arange(4), extend_num_tokens=9, page_size=4,
                         status=status.tensor, out=tuple(o.tensor for o in out))
    assert status.tensor.tolist() == [1]
    assert (out[0].tensor == -7777777).all() and (out[1].tensor == -7777777).all()
    for o in (*out, status):
        o.check()


@pytest.mark.parametrize("change,message", [
    (dict(prefix_lens=torch.tensor([12, 8])), r"prefix_lens: expected 0 to seq_lens = 11 for request 0, got 12"),
    (dict(prefix_lens=torch.tensor([-1, 8])), r"prefix_lens: expected 0 to seq_lens = 11 for request 0, got -1"),
    (dict(last_slots=torch.tensor([13, 11])), r"last_slots: expected a slot in which position 4 of request 0 can lie, got 13"),
    (dict(last_slots=torch.tensor([-4, 11])), r"last_slots: expected a slot in which position 4 of request 0 can lie, got -4"),
    (dict(free_pages=torch.tensor([5, -1, 9])), r"free_pages: expected page ids from 0 to 2\^31 - 1, got -1"),
    (dict(extend_num_tokens=6), r"extend_num_tokens: expected at least 7 .*, got 6"),
    (dict(extend_num_tokens=-1), r"extend_num_tokens: expected at least 0, got -1"),
    (dict(page_size=0), r"page_size: expected at least 1, got 0"),
    (dict(seq_lens=torch.tensor([11])), r"seq_lens: expected shape \[B=2\], got \[1\]"),
    (dict(last_slots=torch.tensor([12, 11], dtype=torch.int32)), r"last_slots: expected dtype int64, got int32"),
    (dict(free_pages=torch.zeros(3)), r"free_pages: expected dtype int32 or int64, got float32"),
    (dict(status=torch.zeros(2, dtype=torch.int32)), r"status: expected shape \[1\], got \[2\]"),
])
def test_refuses(change, message):
    t = torch.tensor
    out = torch.full((7,), -7), torch.full((1,), -7, dtype=torch.int32)
    args = dict(prefix_lens=t([5, 8]), seq_lens=t([11, 9]), last_slots=t([12, 11]), free_pages=t([5, 6, 9]),
                extend_num_tokens=7, page_size=4) | change
    if args["extend_num_tokens"] == 6:
        out = out[0][:6], out[1]
    with pytest.raises(ValueError, match=r"^alloc_extend: " + message):
        ops.alloc_extend(**args, out=out)
    assert (out[0] == -7).all() and (out[1] == -7).all()
