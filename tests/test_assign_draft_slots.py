# SPDX-License-Identifier: Apache-2.0
import pytest
import torch
from util import BACKENDS, UNCHECKED, Guarded, rng, strided

from dsv4spec import ops, use_backend


def model(table, live, k, steps, page):
    rows = []
    for b, s in enumerate(live.tolist()):
        branch_pages = -(-(s % page + steps) // page)
        row = []
        for c in range(k):
            for i in range(steps):
                position = (s // page + c * branch_pages) * page + s % page + i
                column = position // page
                entry = int(table[b, column]) if s > 0 and column < table.shape[1] else -1
                row.append(entry * page + position % page if entry >= 0 else -1)
        rows.append(row)
    return torch.tensor(rows, dtype=torch.int64).view(len(rows), k * steps)


@pytest.mark.parametrize("backend", BACKENDS)
@pytest.mark.parametrize("dtype", [torch.int32, torch.int64], ids=str)
@pytest.mark.parametrize("B,k,steps,page", [(0, 1, 3, 64), (1, 1, 1, 1), (3, 1, 3, 64), (17, 1, 5, 4), (5, 2, 3, 4), (4, 4, 4, 64),
                                            (3, 3, 2, 1), (2, 1, 0, 16), (7, 2, 9, 4)])
def test_matches_model(backend, dtype, B, k, steps, page):
    """Tables that are too short for some requests, with holes."""
    g = rng("assign", B, k, steps, page)
    live = torch.randint(1, 6 * page + 2, (B,), generator=g).to(dtype)
    live[2::3] = 0
    table = torch.randint(0, 500, (B, 7), generator=g)
    table[torch.rand(table.shape, generator=g) < 0.2] = -1
    table[2::3] = -1
    table = table.to(dtype)
    want = model(table, live, k, steps, page)
    out = Guarded(want.shape, torch.int64)
    with use_backend(backend):
        for _ in range(2):
            ops.assign_draft_slots(strided(table), live, topk=k, num_steps=steps, page_size=page, out=out.tensor)
            assert out.tensor.equal(want)
        assert ops.assign_draft_slots(table, live, topk=k, num_steps=steps, page_size=page).equal(want)
    out.check()


@pytest.mark.parametrize("backend", BACKENDS)
@pytest.mark.parametrize("P", range(60, 65))
def test_a9_a_missing_page_is_never_an_address(backend, P):
    """Page 64, P = 60..64, 4 steps. P = 62: 62, 63 in page 0, 64, 65 in the next one. One page short: -1 there."""
    with use_backend(backend):
        for pages, second in (([7, 5], 5), ([7, -1], None), ([7], None), ([0, 3], 3)):
            got = ops.assign_draft_slots(torch.tensor([pages], dtype=torch.int32), torch.tensor([P]), topk=1, num_steps=4,
                                         page_size=64)
            want = [pages[0] * 64 + p if p < 64 else (-1 if second is None else second * 64 + p - 64) for p in range(P, P + 4)]
            assert got.tolist() == [want]


@pytest.mark.parametrize("backend", BACKENDS)
def test_branches_start_on_pages_of_their_own(backend):
    """s = 6, P = 4, 3 steps, 2 branches: 2 + 3 places need two pages a branch. Branch 0 continues column 1, branch 1 begins
    at the same offset of column 3."""
    table = torch.tensor([[10, 11, 12, 13, 14]], dtype=torch.int32)
    with use_backend(backend):
        got = ops.assign_draft_slots(table, torch.tensor([6]), topk=2, num_steps=3, page_size=4)
    assert got.tolist() == [[46, 47, 48, 54, 55, 56]]
    assert len(set(s // 4 for s in got[0, :3].tolist()) & set(s // 4 for s in got[0, 3:].tolist())) == 0


@pytest.mark.parametrize("backend", BACKENDS)
def test_a20_padding_rows_are_skip_markers(backend):
    """3 real rows padded to 8: table -1, length 0; also a padding row whose table holds real pages."""
    live = torch.tensor([3, 9, 5, 0, 0, 0, 0, 0], dtype=torch.int32)
    table = torch.full((8, 4), -1, dtype=torch.int32)
    table[:3] = torch.arange(12).view(3, 4)
    table[7] = 1
    with use_backend(backend):
        got = ops.assign_draft_slots(table, live, topk=1, num_steps=3, page_size=4)
        alone = ops.assign_draft_slots(table[:3], live[:3], topk=1, num_steps=3, page_size=4)
        empty = ops.assign_draft_slots(table[:0], live[:0], topk=1, num_steps=3, page_size=4)
        columns = ops.assign_draft_slots(table[:, :0], live, topk=1, num_steps=3, page_size=4)
    assert got[:3].equal(alone) and (got[3:] == -1).all() and (got[:3] >= 0).all()
    assert empty.shape == (0, 3) and (columns == -1).all()


@pytest.mark.parametrize("backend", UNCHECKED)
@pytest.mark.parametrize("k", [1, 2])
def test_hostile_tables_and_lengths_leave_the_other_rows_right(backend, k):
    live = torch.tensor([6, 2 ** 63 - 1, -2 ** 63, 2 ** 62, 6, 6, 6, 6, 6])
    table = torch.arange(10, 15).repeat(9, 1)
    for b, entry in zip((4, 5, 6, 7), (-2 ** 63, -2, 2 ** 31, 2 ** 63 - 1)):
        table[b, 1] = entry
    table = Guarded(table.shape, torch.int64, values=table)
    out = Guarded((9, 3 * k), torch.int64)
    with use_backend(backend):
        ops.assign_draft_slots(table.tensor, live, topk=k, num_steps=3, page_size=4, out=out.tensor)
    good = [46, 47, 48, 54, 55, 56][:3 * k]
    assert out.tensor.tolist() == [good] + [[-1] * 3 * k] * 3 + [[-1, -1] + good[2:]] * 4 + [good]
    out.check()
    table.check()


@pytest.mark.parametrize("change,message", [
    (dict(block_table=torch.zeros(2, 4)), r"block_table: expected dtype int32 or int64, got float32"),
    (dict(live_seq_lens=torch.zeros(3, dtype=torch.int32)), r"live_seq_lens: expected shape \[B=2\], got \[3\]"),
    (dict(topk=0), r"topk: expected at least 1, got 0"),
    (dict(num_steps=-1), r"num_steps: expected at least 0, got -1"),
    (dict(page_size=0), r"page_size: expected at least 1, got 0"),
    (dict(out=torch.zeros(2, 4, dtype=torch.int64)), r"slots: expected shape \[B=2, 3\], got \[2, 4\]"),
    (dict(out=torch.zeros(2, 3, dtype=torch.int32)), r"slots: expected dtype int64, got int32"),
])
def test_refuses(change, message):
    args = dict(block_table=torch.zeros(2, 4, dtype=torch.int32), live_seq_lens=torch.ones(2, dtype=torch.int32), topk=1,
                num_steps=3, page_size=4, out=torch.zeros(2, 3, dtype=torch.int64)) | change
    with pytest.raises(ValueError, match=r"^assign_draft_slots: " + message):
        ops.assign_draft_slots(**args)
