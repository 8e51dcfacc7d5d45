# SPDX-License-Identifier: Apache-2.0
import pytest
import torch
from test_verify_positions_padding import model as positions_model
from test_verify_positions_padding import padded_size, window
from util import BACKENDS, UNCHECKED, Guarded, rng, strided

from dsv4spec import ops, use_backend

NAMES = ("c4_positions", "c128_positions", "start_pos", "seqused", "c4_loc", "c128_loc")


def loc_model(live, table, n, page, ratio):
    out = []
    for b, s in enumerate(live.tolist()):
        for j in range(n):
            if s > 0 and (s + j + 1) % ratio == 0:
                w = (s + j) // ratio
                out.append(int(table[b, w // page]) * page + w % page)
    size = padded_size(live.shape[0] * n, live.shape[0], ratio)
    return torch.tensor(out + [-1] * (size - len(out)))


def model(positions, live, c4_table, c128_table, n, c4_page, c128_page):
    return (positions_model(positions, live, n, 4), positions_model(positions, live, n, 128), live.int(),
            torch.where(live > 0, n, 0).int(), loc_model(live, c4_table, n, c4_page, 4),
            loc_model(live, c128_table, n, c128_page, 128))


def make(B, n, c4_page, c128_page, dtype):
    """Tables with pages only where the window needs them, -1 elsewhere and for padding."""
    g = rng("metadata", B, n, c4_page, c128_page)
    live = torch.randint(1, 700, (B,), generator=g)
    live[1::3] = 0
    tables = []
    for page, ratio in ((c4_page, 4), (c128_page, 128)):
        width = (700 + n) // ratio // page + 1
        table = torch.randint(0, 1000, (B, width), generator=g)
        used = torch.arange(width)[None]
        first, last = live[:, None] // ratio // page, (live[:, None] + n - 1) // ratio // page
        tables.append(torch.where((used >= first) & (used <= last) & (live[:, None] > 0), table, -1).to(dtype))
    return window(live, n), live.to(dtype), *tables


@pytest.mark.parametrize("backend", BACKENDS)
def test_worked_numbers(backend):
    """Worked example 10.1, first case, with pages 5, 6 of 16 C4 entries and page 9 of 2 C128 entries."""
    live = torch.tensor([126, 7, 0], dtype=torch.int32)
    positions = (live[:, None] + torch.arange(4)).reshape(-1).long()
    c4 = torch.tensor([[1, 5], [6, -1], [-1, -1]], dtype=torch.int32)
    c128 = torch.tensor([[9], [-1], [-1]], dtype=torch.int32)
    with use_backend(backend):
        got = ops.verify_metadata(positions, live, c4, c128, 4, c4_page=16, c128_page=2)
    assert [t.tolist() for t in got] == [[124, 4, 0, 0, 0, 0], [0, 0, 0], [126, 7, 0], [4, 4, 0],
                                         [5 * 16 + 15, 6 * 16 + 1, -1, -1, -1, -1], [18, -1, -1]]
    assert [t.dtype for t in got] == [torch.int64] * 2 + [torch.int32] * 2 + [torch.int64] * 2


@pytest.mark.parametrize("backend", BACKENDS)
@pytest.mark.parametrize("dtype", [torch.int32, torch.int64], ids=str)
@pytest.mark.parametrize("B,n,c4_page,c128_page", [(0, 4, 16, 2), (1, 1, 16, 2), (3, 4, 1, 1), (41, 3, 16, 4), (17, 5, 7, 3),
                                               (9, 129, 64, 16)])
def test_matches_model(backend, dtype, B, n, c4_page, c128_page):
    positions, live, c4, c128 = make(B, n, c4_page, c128_page, dtype)
    want = model(positions, live, c4, c128, n, c4_page, c128_page)
    outs = [Guarded(w.shape, w.dtype) for w in want]
    with use_backend(backend):
        for _ in range(2):
            ops.verify_metadata(positions, live, strided(c4), strided(c128), n, c4_page=c4_page, c128_page=c128_page,
                                out=tuple(o.tensor for o in outs))
            for name, o, w in zip(NAMES, outs, want):
                assert o.tensor.equal(w), name
        for name, got, w in zip(NAMES, ops.verify_metadata(positions, live, c4, c128, n, c4_page=c4_page,
                                                           c128_page=c128_page), want):
            assert got.equal(w) and got.dtype == w.dtype, name
    for o in outs:
        o.check()


@pytest.mark.parametrize("backend", BACKENDS)
def test_choice_and_destination_by_lengths_value_by_positions(backend):
    table = torch.tensor([[3]], dtype=torch.int32)
    with use_backend(backend):
        got = ops.verify_metadata(torch.tensor([7, 8, 8, 9, 9]), torch.tensor([7]), table, table, 5, c4_page=16, c128_page=16)
    assert got[0].tolist() == [4, 6] and got[4].tolist() == [3 * 16 + 1, 3 * 16 + 2]


@pytest.mark.parametrize("backend", BACKENDS)
def test_page_0_is_an_ordinary_page_and_no_pool_reads_no_table(backend):
    empty, table = torch.zeros(1, 0, dtype=torch.int32), torch.zeros(1, 1, dtype=torch.int32)
    positions = torch.arange(126, 130)
    with use_backend(backend):
        got = ops.verify_metadata(positions, torch.tensor([126]), empty, table, 4, c4_page=0, c128_page=4)
    assert got[0].tolist() == [0, 0] and got[4].tolist() == [-1, -1]
    assert got[1].tolist() == [0] and got[5].tolist() == [0]  # position 0 and slot 0 are real


@pytest.mark.parametrize("table,got", [(torch.tensor([[0, -1]]), "a negative entry"), (torch.tensor([[0]]), "a table that")])
@pytest.mark.parametrize("dtype", [torch.int32, torch.int64], ids=str)
def test_missing_page_is_refused_on_the_cpu_and_never_read_elsewhere(table, got, dtype):
    args = torch.arange(126, 130), *(t.to(dtype) for t in (torch.tensor([126]), table, torch.tensor([[0]])))
    outs = tuple(torch.full((k,), -7, dtype=t) for k, t in
                 zip((2, 1, 1, 1, 2, 1), [torch.int64] * 2 + [torch.int32] * 2 + [torch.int64] * 2))
    with pytest.raises(ValueError, match=rf"^verify_metadata: c4_table: expected a page in column 1 of request 0, got {got}"):
        ops.verify_metadata(*args, 4, c4_page=16, c128_page=16, out=outs)
    assert all((o == -7).all() for o in outs)  # nothing was written
    with use_backend("reference"):
        assert ops.verify_metadata(*args, 4, c4_page=16, c128_page=16)[4].tolist() == [-1, -1]


@pytest.mark.parametrize("backend", UNCHECKED)
def test_hostile_tables_and_lengths_leave_the_other_rows_right(backend):
    """Entries that are no page id, groups far beyond the table, lengths at the ends of their type: -1 there."""
    entries = [5, 2 ** 31, -2 ** 63, 2 ** 63 - 1, -7, 6]
    live = torch.tensor([126] * 6 + [2 ** 62, -2 ** 63, 126])
    table = Guarded((9, 2), torch.int64, values=torch.tensor([[1, e] for e in entries + [3, 3, 7]]))
    positions = torch.arange(126, 130).repeat(9)
    sizes = [padded_size(36, 9, ratio) for ratio in (4, 128)]
    outs = [Guarded((k,), t) for k, t in zip((*sizes, 9, 9, *sizes), [torch.int64] * 2 + [torch.int32] * 2 + [torch.int64] * 2)]
    with use_backend(backend):
        ops.verify_metadata(positions, live, table.tensor, table.tensor[:, 1:], 4, c4_page=16, c128_page=2,
                            out=tuple(o.tensor for o in outs))
    values, _, start, used, c4, c128 = (o.tensor.tolist() for o in outs)
    want = [e if 0 <= e < 2 ** 31 else None for e in entries] + [None, 7]  # the request of length 2^62, then the last
    assert c4 == [-1 if e is None else e * 16 + 15 for e in want] + [-1] * (sizes[0] - 8)
    assert c128 == [-1 if e is None else e * 2 for e in want[:6] + [7]] + [-1] * (sizes[1] - 7)
    assert values == [124] * 6 + [126] + [124] + [0] * (sizes[0] - 8)
    assert start[:6] == [126] * 6 and start[7:] == [0, 126] and used == [4] * 7 + [0, 4]
    for o in (*outs, table):
        o.check()


def test_no_requests_of_any_number_of_rows():
    """No length is there to be looked at."""
    none, table = torch.zeros(0, dtype=torch.int64), torch.zeros(0, 3, dtype=torch.int32)
    with use_backend("cpu"):
        for n in (1, 2**31, 2**40):
            got = ops.verify_metadata(none, none, table, table, n, c4_page=16, c128_page=2)
            assert [t.tolist() for t in got] == [[0], [0], [], [], [-1], [-1]]


@pytest.mark.parametrize("change,message", [
    (dict(positions=torch.zeros(9, dtype=torch.int64)), r"positions: expected B\*n = 2\*4 rows, got 9"),
    (dict(c4_table=torch.zeros(3, 1, dtype=torch.int32)), r"c4_table: expected shape \[B=2, c4 pages\], got \[3, 1\]"),
    (dict(c128_table=torch.zeros(2, 1)), r"c128_table: expected dtype int32 or int64, got float32"),
    (dict(c4_page=-1), r"c4_page: expected at least 0, got -1"),
    (dict(c128_page=-1), r"c128_page: expected at least 0, got -1"),
    (dict(num_draft_tokens=0), r"num_draft_tokens: expected at least 1, got 0"),
])
def test_refuses(change, message):
    args = dict(positions=torch.zeros(8, dtype=torch.int64), live_seq_lens=torch.ones(2, dtype=torch.int32),
                c4_table=torch.zeros(2, 1, dtype=torch.int32), c128_table=torch.zeros(2, 1, dtype=torch.int32),
                num_draft_tokens=4, c4_page=16, c128_page=16) | change
    out = [torch.zeros(k, dtype=t) for k, t in zip((4, 2, 2, 2, 4, 2), [torch.int64] * 2 + [torch.int32] * 2 + [torch.int64] * 2)]
    with pytest.raises(ValueError, match=r"^verify_metadata: " + message):
        ops.verify_metadata(**args, out=tuple(out))
    for i, name in enumerate(NAMES):
        wrong = list(out)
        wrong[i] = torch.zeros(9, dtype=out[i].dtype)
        with pytest.raises(ValueError, match=rf"^verify_metadata: {name}: expected shape"):
            ops.verify_metadata(torch.zeros(8, dtype=torch.int64), args["live_seq_lens"], torch.zeros(2, 1, dtype=torch.int32),
                                torch.zeros(2, 1, dtype=torch.int32), 4, c4_page=16, c128_page=16, out=tuple(wrong))
