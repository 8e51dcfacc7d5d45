# SPDX-License-Identifier: Apache-2.0
import pytest
import torch
from tree_model import build, random_draft
from util import BACKENDS, UNCHECKED, Guarded, rng, strided

from dsv4spec import ops, use_backend

BIT_DTYPE = {8: torch.uint8, 16: torch.uint16, 32: torch.uint32}
CASES = [(0, 2, 3, 6), (1, 1, 0, 1), (1, 1, 1, 2), (2, 1, 3, 4), (3, 2, 3, 6), (17, 4, 2, 8), (40, 3, 4, 7),
         (5, 4, 3, 9), (3, 3, 5, 32), (2, 8, 5, 33), (3, 8, 4, 64), (2, 8, 4, 65), (3, 16, 3, 130), (2, 16, 3, 256)]


def inputs(B, k, steps, n, dtype=torch.int64):
    g = rng("build_tree", B, k, steps, n)
    live = torch.randint(1, 40, (B,), generator=g).to(dtype)
    live[1::3] = 0
    draft = random_draft(B, k, steps, n) if steps else (torch.zeros(B, 0, dtype=torch.int64),) * 3
    return torch.randint(0, 1000, (B,), generator=g), *draft, live


def full_size(live, n):
    return int((n * live.clamp(min=0) + n * n).sum())


def bit_dtype(n):
    return next(d for limit, d in BIT_DTYPE.items() if n <= limit)


def expected(trees, live, n, mode, before):
    """The outputs as they must be: rows of padding requests as in ``before``."""
    out = [t.clone() for t in before]
    offset = 0
    for b, (tree, s) in enumerate(zip(trees, live.tolist())):
        if tree is not None:
            for t, name in zip((out[0], out[2], out[3], out[4]), ("tokens", "retrieve", "next", "sibling")):
                t[b] = torch.tensor(tree[name])
            out[1][b * n:(b + 1) * n] = torch.tensor(tree["positions"])
            rows = torch.tensor(tree["rows"])
            if mode == "qlen":
                out[5][b] = rows
            elif mode == "qlen_bits":
                out[5][b] = torch.tensor([sum(1 << c for c in range(n) if row[c]) for row in tree["rows"]]).to(out[5].dtype)
            else:
                full = torch.cat([torch.ones(n, s, dtype=torch.bool), rows], 1)
                out[5][offset:offset + full.numel()] = full.flatten()
        offset += n * (max(s, 0) + n)
    return out


@pytest.mark.parametrize("backend", BACKENDS)
@pytest.mark.parametrize("mode", ["qlen", "qlen_bits", "full"])
@pytest.mark.parametrize("B,k,steps,n", CASES)
def test_matches_model(backend, mode, B, k, steps, n):
    if mode == "qlen_bits" and n > 32:
        return test_refuses_bits_of_large_trees(n)
    bonus, parent_list, selected, drafts, live = inputs(B, k, steps, n, torch.int32 if n % 2 else torch.int64)
    trees = build(bonus, parent_list, selected, drafts, live, k, n)
    mask = (full_size(live, n) + 5,) if mode == "full" else (B, n, n) if mode == "qlen" else (B, n)
    shapes = [(B, n), (B * n,), (B, n), (B, n), (B, n), mask]
    dtypes = [torch.int64] * 5 + [bit_dtype(n) if mode == "qlen_bits" else torch.bool]
    outs = [Guarded(s, t) for s, t in zip(shapes, dtypes)]
    if mode == "full":  # True and False, so that both kinds of write show
        outs[5].tensor.copy_(torch.arange(mask[0]) % 3 == 0)
    want = expected(trees, live, n, mode, [o.tensor for o in outs])
    status = Guarded((B,), torch.int32)
    keywords = dict(topk=k, num_steps=steps, num_draft_tokens=n, mask_mode=mode)
    with use_backend(backend):
        for _ in range(2):
            ops.build_tree(bonus, strided(parent_list), strided(selected), strided(drafts), live, **keywords,
                           tree_mask=outs[5].tensor if mode == "full" else None, status=status.tensor,
                           out=tuple(o.tensor for o in outs))
            for i, (o, w) in enumerate(zip(outs, want)):
                assert o.tensor.view(w.dtype).equal(w), i
            assert not status.tensor.any()
        # Allocated by the op: rows of padding requests are zero.
        own = torch.zeros(mask, dtype=torch.bool) if mode == "full" else None
        got = ops.build_tree(bonus, parent_list, selected, drafts, live, **keywords, tree_mask=own)
        zero = expected(trees, live, n, mode, [torch.zeros_like(w) for w in want])
        assert all(g.equal(z) for g, z in zip(got, zero)) and (mode != "full" or got[5] is own)
    for o in (*outs, status):
        o.check()


@pytest.mark.parametrize("backend", BACKENDS)
def test_worked_numbers(backend):
    """Worked example 10.2: a chain, and two trees of six nodes in all mask modes."""
    t = torch.tensor
    keywords = dict(topk=1, num_steps=3, num_draft_tokens=4)
    chain = t([100]), t([[-1, 0, 1]]), t([[0, 1, 2]]), t([[11, 12, 13]]), t([7])
    rows = t([[1, 0, 0, 0], [1, 1, 0, 0], [1, 1, 1, 0], [1, 1, 1, 1]]).bool()
    with use_backend(backend):
        got = ops.build_tree(*chain, **keywords)
        bits = ops.build_tree(*chain, **keywords, mask_mode="qlen_bits")[5]
        mask = torch.zeros(44, dtype=torch.bool)
        ops.build_tree(*chain, **keywords, mask_mode="full", tree_mask=mask)
    assert [g.tolist() for g in got[:5]] == [[[100, 11, 12, 13]], [7, 8, 9, 10], [[0, 1, 2, 3]], [[1, 2, 3, -1]], [[-1] * 4]]
    assert got[5][0].equal(rows) and bits.tolist() == [[1, 3, 7, 15]] and bits.dtype == torch.uint8
    assert mask.view(4, 11).equal(torch.cat([torch.ones(4, 7, dtype=torch.bool), rows], 1))

    args = (t([100, 200]), t([[-1, 0, 1, 2, 4], [-1, 0, 1, 2, 3]]), t([[0, 1, 2, 4, 6], [0, 2, 3, 6, 8]]),
            t([[11, 12, 21, 23, 31], [51, 61, 62, 71, 73]]), t([7, 3]))
    keywords = dict(topk=2, num_steps=3, num_draft_tokens=6)
    mask = torch.zeros(132, dtype=torch.bool)
    with use_backend(backend):
        got = ops.build_tree(*args, **keywords)
        bits = ops.build_tree(*args, **keywords, mask_mode="qlen_bits")[5]
        ops.build_tree(*args, **keywords, mask_mode="full", tree_mask=mask)
    assert got[0].tolist() == [[100, 11, 12, 21, 23, 31], [200, 51, 61, 62, 71, 73]]
    assert got[1].tolist() == [7, 8, 8, 9, 9, 10, 3, 4, 5, 5, 6, 6]
    assert got[2].tolist() == [[0, 1, 2, 3, 4, 5], [6, 7, 8, 9, 10, 11]]
    assert got[3].tolist() == [[1, 3, 4, 5, -1, -1], [1, 2, 4, 5, -1, -1]]
    assert got[4].tolist() == [[-1, 2, -1, -1, -1, -1], [-1, -1, 3, -1, -1, -1]]
    text = [["".join(str(int(x)) for x in row) for row in tree] for tree in got[5]]
    assert text == [["100000", "110000", "101000", "110100", "101010", "110101"],
                    ["100000", "110000", "111000", "110100", "111010", "110101"]]
    assert bits.tolist() == [[1, 3, 5, 11, 21, 43], [1, 3, 7, 11, 23, 43]]
    assert mask[78:].view(6, 9)[:, 3:].equal(got[5][1]) and mask[78:].view(6, 9)[:, :3].all()


@pytest.mark.parametrize("backend", BACKENDS)
def test_a15_bonus_in_front(backend):
    """topk 2, two steps, five nodes, alone and as two requests of other lengths."""
    t = torch.tensor
    for live in ([10], [10, 3]):
        B = len(live)
        with use_backend(backend):
            got = ops.build_tree(t([99] * B), t([[-1, 0, 1]] * B), t([[0, 1, 2, 4]] * B), t([[20, 21, 22, 24]] * B), t(live),
                                 topk=2, num_steps=2, num_draft_tokens=5)
        for b, s in enumerate(live):
            assert got[0][b].tolist() == [99, 20, 21, 22, 24]
            assert got[1][5 * b:5 * b + 5].tolist() == [s, s + 1, s + 1, s + 2, s + 2]
            assert got[3][b].tolist() == [1, 3, 4, -1, -1] and got[4][b].tolist() == [-1, 2, -1, -1, -1]
            assert ["".join(str(int(x)) for x in row) for row in got[5][b]] == ["10000", "11000", "10100", "11010", "10101"]


@pytest.mark.parametrize("backend", BACKENDS)
def test_a15_tree_of_130_nodes_next_to_foreign_memory(backend):
    """Inputs end exactly at a guard zone of values that would be found as parents, were they read."""
    bonus, parent_list, selected, drafts, live = inputs(1, 16, 3, 130)
    held = Guarded(selected.shape, torch.int64, values=selected)
    held.memory[held.offset + 129:] = parent_list[0, -1]
    with use_backend(backend):
        got = ops.build_tree(bonus, parent_list, held.tensor, drafts, live, topk=16, num_steps=3, num_draft_tokens=130)
    tree = build(bonus, parent_list, selected, drafts, live, 16, 130)[0]
    assert got[3][0].tolist() == tree["next"] and got[4][0].tolist() == tree["sibling"]
    assert got[1].tolist() == tree["positions"] and got[5][0].equal(torch.tensor(tree["rows"]))


BROKEN = {  # name: (selected, parent_list) of the tree above with one fault; node 4 (or the one named) loses its parent
    "parent not selected": ([[0, 2, 3, 4]], [[-1, 0, 1]]),
    "index beyond the parents": ([[0, 1, 2, 99]], [[-1, 0, 1]]),
    "negative index": ([[-3, 1, 2, 4]], [[-1, 0, 1]]),
    "own parent": ([[0, 1, 2, 4]], [[-1, 0, 4]]),
    "parent behind its child": ([[0, 1, 4, 2]], [[-1, 0, 2]]),
}


@pytest.mark.parametrize("backend", BACKENDS)
@pytest.mark.parametrize("name", BROKEN)
def test_a_node_without_parent_is_reported_not_walked(backend, name):
    good = torch.tensor([[0, 1, 2, 4]]), torch.tensor([[-1, 0, 1]])
    selected, parent_list = (torch.cat([g, torch.tensor(x)]) for g, x in zip(good, BROKEN[name]))
    bonus, drafts, live = torch.tensor([9, 9]), torch.tensor([[20, 21, 22, 24]] * 2), torch.tensor([10, 3])
    status = torch.full((2,), -7, dtype=torch.int32)
    keywords = dict(topk=2, num_steps=2, num_draft_tokens=5)
    with use_backend(backend):
        got = ops.build_tree(bonus, parent_list, selected, drafts, live, **keywords, status=status)
        assert status.tolist() == [0, 1]
        for b, tree in enumerate(build(bonus, parent_list, selected, drafts, live, 2, 5)):
            assert tree["broken"] == bool(b)
            assert got[1][5 * b:5 * b + 5].tolist() == tree["positions"] and got[5][b].equal(torch.tensor(tree["rows"]))
            assert got[3][b].tolist() == tree["next"] and got[4][b].tolist() == tree["sibling"]
        if backend == "cpu":
            out = tuple(torch.full_like(g, True if g.dtype == torch.bool else -7) for g in got)
            before = [o.clone() for o in out]
            with pytest.raises(ValueError, match=r"^build_tree: selected_index: expected the parent .* of request 1$"):
                ops.build_tree(bonus, parent_list, selected, drafts, live, **keywords, out=out)
            assert all(o.equal(w) for o, w in zip(out, before))


def test_unlinked_node_row_and_position():
    """Row = root + itself, position s; its child hangs below it."""
    status = torch.zeros(1, dtype=torch.int32)
    got = ops.build_tree(torch.tensor([9]), torch.tensor([[-1, 0, 1, 9, 3]]), torch.tensor([[0, 3, 6]]),
                         torch.tensor([[1, 2, 3]]), torch.tensor([10]), topk=2, num_steps=3, num_draft_tokens=4, status=status)
    assert status.tolist() == [1]  # node 3 (flat 6) hangs on flat 9, which was not selected
    assert got[1].tolist() == [10, 11, 12, 10] and got[5][0, 3].tolist() == [True, False, False, True]


@pytest.mark.parametrize("n", [33, 65])
def test_refuses_bits_of_large_trees(n):
    args = inputs(2, 16, 3, n)
    with pytest.raises(ValueError, match=rf"^build_tree: num_draft_tokens: expected at most 32 in mask mode qlen_bits, got {n}"):
        ops.build_tree(*args, topk=16, num_steps=3, num_draft_tokens=n, mask_mode="qlen_bits")


def test_a20_full_mask_too_small_is_refused():
    args = inputs(3, 2, 3, 6)
    size = full_size(args[4], 6)
    mask = torch.zeros(size - 1, dtype=torch.bool)
    with pytest.raises(ValueError, match=rf"^build_tree: tree_mask: expected at least {size} elements, got {size - 1}"):
        ops.build_tree(*args, topk=2, num_steps=3, num_draft_tokens=6, mask_mode="full", tree_mask=mask)
    assert not mask.any()


@pytest.mark.parametrize("backend", UNCHECKED)
def test_a20_full_mask_too_small_is_never_overrun(backend):
    """Whatever fits is right, nothing is written behind the end; a length beyond all bounds counts as padding's rows do."""
    args = inputs(5, 2, 3, 6)
    keywords = dict(topk=2, num_steps=3, num_draft_tokens=6, mask_mode="full")
    size = full_size(args[4], 6)
    whole = torch.zeros(size, dtype=torch.bool)
    ops.build_tree(*args, **keywords, tree_mask=whole)
    for short in (size - 1, size // 2, 7, 0):
        mask = Guarded((short,), torch.bool, values=torch.zeros(short, dtype=torch.bool))
        with use_backend(backend):
            ops.build_tree(*args, **keywords, tree_mask=mask.tensor)
        assert mask.tensor.equal(whole[:short])
        mask.check()


@pytest.mark.parametrize("backend", UNCHECKED)
@pytest.mark.parametrize("n", [6, 33, 65])
def test_hostile_values_leave_the_other_trees_right(backend, n):
    """Parents and choices anywhere in int64, in every second request: reported, bounded, and equal to the reference."""
    k, steps = 8, 4
    bonus, parent_list, selected, drafts, live = inputs(9, k, steps, n)
    live[:] = torch.arange(3, 12)
    g = rng("hostile trees", n)
    ends = torch.tensor([-2 ** 63, 2 ** 63 - 1, 2 ** 31, -1, 0, 5, n, k * k, 2 ** 40])
    bad = torch.arange(9)[:, None] % 2 == 1
    for t in (parent_list, selected):
        wild = ends[torch.randint(0, len(ends), t.shape, generator=g)]
        t.copy_(torch.where(bad & (torch.rand(t.shape, generator=g) < 0.3), wild, t))
    selected[3] = selected[3].flip(0)  # an order in which binary search would find nothing
    keywords = dict(topk=k, num_steps=steps, num_draft_tokens=n)
    want = build(bonus, parent_list, selected, drafts, live, k, n)
    outs = [Guarded(s, t) for s, t in zip([(9, n), (9 * n,), (9, n), (9, n), (9, n), (9, n, n)], [torch.int64] * 5 + [torch.bool])]
    status = Guarded((9,), torch.int32)
    with use_backend(backend):
        ops.build_tree(bonus, parent_list, selected, drafts, live, **keywords, status=status.tensor,
                       out=tuple(o.tensor for o in outs))
    got = [o.tensor for o in outs]
    assert status.tensor.tolist() == [int(tree["broken"]) for tree in want] and sum(status.tensor) >= 3
    for b, tree in enumerate(want):
        assert got[1][b * n:(b + 1) * n].tolist() == tree["positions"] and got[5][b].equal(torch.tensor(tree["rows"])), b
        assert got[3][b].tolist() == tree["next"] and got[4][b].tolist() == tree["sibling"], b
    for o in (*outs, status):
        o.check()


@pytest.mark.parametrize("backend", UNCHECKED)
def test_a_length_beyond_the_full_mask(backend):
    args = inputs(3, 2, 3, 6)
    args[4][:] = torch.tensor([2, 2 ** 61, 4]) if backend != "reference" else torch.tensor([2, 2 ** 40, 4])
    keywords = dict(topk=2, num_steps=3, num_draft_tokens=6, mask_mode="full")
    alone = torch.zeros(48, dtype=torch.bool)
    ops.build_tree(*(a[:1] for a in args), **keywords, tree_mask=alone)
    mask = Guarded((500,), torch.bool, values=torch.zeros(500, dtype=torch.bool))
    with use_backend(backend):
        ops.build_tree(*args, **keywords, tree_mask=mask.tensor)
    assert mask.tensor[:48].equal(alone) and mask.tensor[48:].all()  # the second request's first row, cut off
    mask.check()


def i64(*shape):
    return torch.zeros(shape, dtype=torch.int64)


@pytest.mark.parametrize("change,message", [
    (dict(bonus_tokens=torch.zeros(2, dtype=torch.int32)), r"bonus_tokens: expected dtype int64, got int32"),
    (dict(parent_list=i64(2, 4)), r"parent_list: expected shape \[B=2, width=5\], got \[2, 4\]"),
    (dict(num_steps=1, num_draft_tokens=3, selected_index=i64(2, 2), draft_tokens=i64(2, 2)),
     r"parent_list: expected 0 or 1 columns for num_steps <= 1, got 5"),
    (dict(selected_index=i64(2, 6)), r"selected_index: expected shape \[B=2, n-1=5\], got \[2, 6\]"),
    (dict(draft_tokens=i64(3, 5)), r"draft_tokens: expected shape \[B=2, n-1=5\], got \[3, 5\]"),
    (dict(live_seq_lens=torch.zeros(2)), r"live_seq_lens: expected dtype int32 or int64, got float32"),
    (dict(topk=0), r"topk: expected 1 to 256, got 0"),
    (dict(num_steps=-1), r"num_steps: expected 0 to 256, got -1"),
    (dict(num_draft_tokens=12), r"num_draft_tokens: expected 1 to 11, got 12"),
    (dict(num_draft_tokens=0), r"num_draft_tokens: expected 1 to 11, got 0"),
    (dict(mask_mode="bits"), r"mask_mode: expected one of full, qlen, qlen_bits, got 'bits'"),
    (dict(mask_mode="full"), r"tree_mask: expected the caller's flat bool tensor in mask mode full, got None"),
    (dict(tree_mask=torch.zeros(9, dtype=torch.bool)), r"tree_mask: expected None unless mask mode is full, got a tensor"),
    (dict(mask_mode="full", tree_mask=torch.zeros(99, dtype=torch.uint8)), r"tree_mask: expected dtype bool, got uint8"),
    (dict(status=torch.zeros(3, dtype=torch.int32)), r"status: expected shape \[B=2\], got \[3\]"),
])
def test_refuses(change, message):
    args = dict(bonus_tokens=i64(2), parent_list=i64(2, 5), selected_index=i64(2, 5), draft_tokens=i64(2, 5),
                live_seq_lens=i64(2), topk=2, num_steps=3, num_draft_tokens=6) | change
    with pytest.raises(ValueError, match=r"^build_tree: " + message):
        ops.build_tree(**args)


def test_refuses_another_mask_in_out():
    args = inputs(2, 2, 3, 6)
    mask = torch.zeros(999, dtype=torch.bool)
    keywords = dict(topk=2, num_steps=3, num_draft_tokens=6, mask_mode="full", tree_mask=mask)
    out = ops.build_tree(*args, **keywords)
    with pytest.raises(ValueError, match=r"^build_tree: out: expected tree_mask itself"):
        ops.build_tree(*args, **keywords, out=(*out[:5], mask.clone()))
