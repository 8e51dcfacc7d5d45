# SPDX-License-Identifier: Apache-2.0
import pytest
import torch
from tree_model import random_draft, walk
from util import BACKENDS, UNCHECKED, Guarded, rng, strided

from dsv4spec import ops, use_backend
from dsv4spec.reference import tree as ref

CHAIN = ([[100, 11, 12, 13]], [[0, 1, 2, 3]], [[1, 2, 3, -1]], [[-1, -1, -1, -1]])


def tensors(*lists):
    return tuple(torch.tensor(x) for x in lists)


def make(B, k, steps, n):
    """Trees of build_tree with every third request padding, and a target that follows some path of each."""
    g = rng("greedy", B, k, steps, n)
    live = torch.randint(1, 40, (B,), generator=g)
    live[1::3] = 0
    tokens, _, rows, next_token, sibling, _ = ref.build_tree(
        torch.randint(0, 9, (B,), generator=g), *random_draft(B, k, steps, n), live, topk=k, num_steps=steps, num_draft_tokens=n)
    target = torch.randint(0, 1000, (B, n), generator=g)
    for b in range(B):
        for i in range(n):
            children = [c for c in range(1, n) if live[b] > 0 and c in child_list(next_token[b], sibling[b], i)]
            if children and torch.rand(1, generator=g) < 0.8:
                pick = children[int(torch.randint(0, len(children), (1,), generator=g))]
                target[b, i] = tokens[b, pick]
    return live, (tokens, rows, next_token, sibling, target)


def child_list(next_token, sibling, i):
    found, c = [], int(next_token[i])
    while c != -1:
        found.append(c)
        c = int(sibling[c])
    return found


def expected(live, args, steps, before):
    tokens, rows, next_token, sibling, target = (a.tolist() for a in args)
    predicts, accepted, count = (t.clone() for t in before)
    n = args[0].shape[1]
    for b in range(len(tokens)):
        if live[b] <= 0:
            continue
        path = walk(tokens[b], next_token[b], sibling[b], target[b], steps)
        predicts[b * n:(b + 1) * n] = -1
        for i in path:
            predicts[rows[b][i]] = target[b][i]
        accepted[b] = torch.tensor([rows[b][i] for i in path] + [-1] * (steps + 1 - len(path)))
        count[b] = len(path) - 1
    return predicts, accepted, count


def outputs(B, n, steps):
    return [Guarded(s, torch.int32) for s in ((B * n,), (B, steps + 1), (B,))]


@pytest.mark.parametrize("backend", BACKENDS)
@pytest.mark.parametrize("B,k,steps,n", [(0, 2, 3, 6), (1, 1, 1, 2), (2, 1, 3, 4), (3, 2, 3, 6), (17, 4, 3, 16), (3, 4, 2, 21),
                                         (3, 8, 4, 65), (2, 16, 3, 256)])
def test_matches_model(backend, B, k, steps, n):
    live, args = make(B, k, steps, n)
    for limit in (steps, max(steps - 1, 0), steps + 2):
        outs = outputs(B, n, limit)
        want = expected(live, args, limit, [o.tensor for o in outs])
        zero = expected(live, args, limit, [torch.zeros_like(w) for w in want])
        with use_backend(backend):
            for _ in range(2):
                ops.verify_tree_greedy(*(strided(a) for a in args), num_steps=limit, out=tuple(o.tensor for o in outs))
                assert all(o.tensor.equal(w) for o, w in zip(outs, want))
            got = ops.verify_tree_greedy(*args, num_steps=limit)
        assert all(g.equal(z) for g, z in zip(got, zero))
        for o in outs:
            o.check()
    if B > 2:
        assert len(set(zero[2][live > 0].tolist())) > 1  # the case tells accept counts apart


@pytest.mark.parametrize("backend", BACKENDS)
@pytest.mark.parametrize("target,predicts,accepted,count", [
    ([11, 12, 99, 5], [11, 12, 99, -1], [0, 1, 2, -1], 2), ([9, 9, 9, 9], [9, -1, -1, -1], [0, -1, -1, -1], 0),
    ([11, 12, 13, 5], [11, 12, 13, 5], [0, 1, 2, 3], 3)])
def test_worked_chain(backend, target, predicts, accepted, count):
    """Worked example 10.3."""
    with use_backend(backend):
        got = ops.verify_tree_greedy(*tensors(*CHAIN, [target]), num_steps=3)
    assert [g.tolist() for g in got] == [predicts, [accepted], [count]]


@pytest.mark.parametrize("backend", BACKENDS)
def test_worked_trees(backend):
    """Worked example 10.3: the trees of 10.2 (both need a step to a sibling), and the published vector of two six-node trees, whose
    second one lists siblings downward."""
    target = torch.full((2, 6), 999)
    target[0, 0], target[1, 0], target[1, 1] = 12, 51, 62
    trees = tensors([[100, 11, 12, 21, 23, 31], [200, 51, 61, 62, 71, 73]], [[0, 1, 2, 3, 4, 5], [6, 7, 8, 9, 10, 11]],
                    [[1, 3, 4, 5, -1, -1], [1, 2, 4, 5, -1, -1]], [[-1, 2, -1, -1, -1, -1], [-1, -1, 3, -1, -1, -1]])
    with use_backend(backend):
        got = ops.verify_tree_greedy(*trees, target, num_steps=3)
    assert got[0].tolist() == [12, -1, 999, -1, -1, -1, 51, 62, -1, 999, -1, -1]
    assert got[1].tolist() == [[0, 2, -1, -1], [6, 7, 9, -1]] and got[2].tolist() == [1, 2]

    target = torch.full((2, 6), 18)
    target[0, 0], target[0, 3], target[0, 4] = 3, 4, 5
    target[1, 0], target[1, 4] = 11, 12
    trees = tensors([[0, 1, 2, 3, 4, 5], [7, 8, 9, 10, 11, 12]], [[0, 1, 2, 3, 4, 5], [6, 7, 8, 9, 10, 11]],
                    [[1, 2, -1, 4, 5, -1], [4, 2, 3, -1, 5, -1]], [[-1, 3, -1, -1, -1, -1], [-1, -1, -1, -1, 1, -1]])
    with use_backend(backend):
        got = ops.verify_tree_greedy(*trees, target, num_steps=3)
    assert got[0].tolist() == [3, -1, -1, 4, 5, 18, 11, -1, -1, -1, 12, 18]
    assert got[1].tolist() == [[0, 3, 4, 5], [6, 10, 11, -1]] and got[2].tolist() == [3, 2]


@pytest.mark.parametrize("backend", BACKENDS)
def test_a14_rows_of_a_mixed_batch_equal_their_single_runs(backend):
    """Three requests, topk 2, two steps, five nodes, accepted drafts 0, 2, 1."""
    t = torch.tensor
    tree = ops.build_tree(t([9, 9, 9]), t([[-1, 0, 1]] * 3), t([[0, 1, 2, 4]] * 3), t([[20, 21, 22, 24]] * 3), t([10, 3, 5]),
                          topk=2, num_steps=2, num_draft_tokens=5)
    target = t([[7, 7, 7, 7, 7], [21, 8, 24, 8, 55], [20, 66, 6, 6, 6]])
    with use_backend(backend):
        predicts, accepted, count = ops.verify_tree_greedy(tree[0], *tree[2:5], target, num_steps=2)
        assert count.tolist() == [0, 2, 1]
        for b in range(3):
            one = ops.verify_tree_greedy(tree[0][b:b + 1], tree[2][b:b + 1] - 5 * b, tree[3][b:b + 1], tree[4][b:b + 1],
                                         target[b:b + 1], num_steps=2)
            assert one[0].equal(predicts[5 * b:5 * b + 5]) and one[2].equal(count[b:b + 1])
            assert torch.where(one[1] >= 0, one[1] + 5 * b, -1).equal(accepted[b:b + 1])
    bonus = predicts[accepted.gather(1, count[:, None].long())[:, 0].long()]
    assert bonus.tolist() == [7, 55, 66]


@pytest.mark.parametrize("backend", BACKENDS)
def test_a16_placeholder_ids_are_never_accepted(backend):
    """A draft of -1 is not accepted even where the target's own argmax is a -1 placeholder; a draft of vocab never equals
    an argmax."""
    tokens, *links = tensors(*CHAIN)
    tokens[0, 1:] = torch.tensor([-1, 5, 5])
    with use_backend(backend):
        assert ops.verify_tree_greedy(tokens, *links, torch.tensor([[-1, 5, 5, 5]]), num_steps=3)[2].tolist() == [0]
        tokens[0, 1] = 129280
        assert ops.verify_tree_greedy(tokens, *links, torch.tensor([[5, 5, 5, 5]]), num_steps=3)[2].tolist() == [0]


@pytest.mark.parametrize("backend", BACKENDS)
def test_a20_zeroed_padding_of_build_tree_is_padding_here(backend):
    t = torch.tensor
    tree = ops.build_tree(t([0, 5]), t([[-1, 0, 1]] * 2), t([[0, 1, 2]] * 2), t([[0, 0, 0], [6, 7, 8]]), t([0, 4]), topk=1,
                          num_steps=3, num_draft_tokens=4)
    with use_backend(backend):
        predicts, accepted, count = ops.verify_tree_greedy(tree[0], *tree[2:5], t([[0, 0, 0, 0], [6, 7, 1, 1]]), num_steps=3)
    assert predicts.tolist() == [0, 0, 0, 0, 6, 7, 1, -1]
    assert accepted.tolist() == [[0, 0, 0, 0], [4, 5, 6, -1]] and count.tolist() == [0, 2]


BAD = {  # argument: (its place, node, value, message)
    "cycle through a child": (2, 3, 1, r"next_token: expected -1 or a node no other link leads to, got 1 at node 3"),
    "sibling cycle": (3, 1, 1, r"next_sibling: expected -1 or a node no other link leads to, got 1 at node 1"),
    "link back to the root": (2, 3, 0, r"next_token: expected -1 or a node from 1 to n-1, got 0 at node 3"),
    "link past the row": (2, 0, 4, r"next_token: expected -1 or a node from 1 to n-1, got 4 at node 0"),
    "far link": (3, 1, 2 ** 40, r"next_sibling: expected -1 or a node from 1 to n-1, got 1099511627776 at node 1"),
    "negative link": (2, 1, -2, r"next_token: expected -1 or a node from 1 to n-1, got -2 at node 1"),
    "row of another request": (1, 2, 9, r"retrieve_index: expected a row of request 1 \(4 to 7\), got 9"),
    "token beyond int32": (4, 0, 2 ** 31, r"target_predict: expected token ids below 2\^31, got 2147483648"),
}


@pytest.mark.parametrize("name", BAD)
def test_malformed_trees_are_refused_on_the_cpu_and_bounded_elsewhere(name):
    place, node, value, message = BAD[name]
    args = [torch.cat([t, t]) for t in tensors(*CHAIN, [[50, 12, 13, 5]])]
    args[1][1] += 4
    args[4][1] = torch.tensor([11, 12, 13, 5])
    args[place][1, node] = value
    out = [torch.full(s, -7, dtype=torch.int32) for s in ((8,), (2, 4), (2,))]
    with pytest.raises(ValueError, match=r"^verify_tree_greedy: " + message):
        ops.verify_tree_greedy(*args, num_steps=3, out=tuple(out))
    assert all((o == -7).all() for o in out)  # nothing was written, not even the good request
    with use_backend("reference"):
        predicts, accepted, count = ops.verify_tree_greedy(*args, num_steps=3)
    assert accepted[0].tolist() == [0, -1, -1, -1] and count[0] == 0 and 0 <= count[1] <= 3


@pytest.mark.parametrize("backend", UNCHECKED)
@pytest.mark.parametrize("n", [1, 5, 16, 40, 256])
def test_hostile_trees_are_bounded_and_leave_the_others_right(backend, n):
    """Links, rows and tokens anywhere in int64, cycles among them: equal to the reference, which walks one look at a time."""
    B, g = 24, rng("hostile walks", n)
    few = torch.randint(0, 2, (5, B, n), generator=g)  # tokens 0 and 1: every second look accepts
    ends = torch.tensor([-2 ** 63, 2 ** 63 - 1, -2, -1, 0, n, 2 ** 40])

    def links(share):
        inside, outside = torch.randint(0, n, (B, n), generator=g), ends[torch.randint(0, len(ends), (B, n), generator=g)]
        return torch.where(torch.rand(B, n, generator=g) < share, inside, outside)

    rows = torch.arange(B * n).view(B, n)
    rows = torch.where(torch.rand(B, n, generator=g) < 0.8, rows, ends[torch.randint(0, len(ends), (B, n), generator=g)])
    next_token, sibling = links(0.9), links(0.9)
    next_token[::7, 0] = 0
    args = [few[0], rows, next_token, sibling, few[1]]
    chain = torch.arange(1, n + 1)  # a good request: a chain that is accepted whole
    chain[-1] = -1
    for a, good in zip(args, (torch.ones(n, dtype=torch.int64), torch.arange(5 * n, 6 * n), chain, torch.full((n,), -1),
                              torch.ones(n, dtype=torch.int64))):
        a[5] = good
    for steps in (0, 3, n + 2):
        outs = outputs(B, n, steps)
        before = [o.tensor.clone() for o in outs]
        want = ref.verify_tree_greedy(*args, num_steps=steps, out=before)
        with use_backend(backend):
            ops.verify_tree_greedy(*args, num_steps=steps, out=tuple(o.tensor for o in outs))
        for name, o, w in zip(("predicts", "accept_index", "accept_token_num"), outs, want):
            assert o.tensor.equal(w), name
            o.check(name)
        assert outs[2].tensor[5] == min(steps, n - 1)


@pytest.mark.parametrize("change,message", [
    (dict(candidates=torch.zeros(2, 4, dtype=torch.int32)), r"candidates: expected dtype int64, got int32"),
    (dict(candidates=torch.zeros(2, 257, dtype=torch.int64)), r"candidates: expected 1 to 256 nodes, got 257"),
    (dict(candidates=torch.zeros(2, 0, dtype=torch.int64)), r"candidates: expected 1 to 256 nodes, got 0"),
    (dict(retrieve_index=torch.zeros(2, 3, dtype=torch.int64)), r"retrieve_index: expected shape \[B=2, n=4\], got \[2, 3\]"),
    (dict(next_token=torch.zeros(2, 3, dtype=torch.int64)), r"next_token: expected shape"),
    (dict(next_sibling=torch.zeros(2, 3, dtype=torch.int64)), r"next_sibling: expected shape"),
    (dict(target_predict=torch.zeros(2, 4)), r"target_predict: expected dtype int64, got float32"),
    (dict(num_steps=-1), r"num_steps: expected at least 0, got -1"),
    (dict(out=1), r"accept_index: expected shape \[B=2, 4\], got \[2, 3\]"),
])
def test_refuses(change, message):
    z = torch.zeros(2, 4, dtype=torch.int64)
    args = dict(candidates=z, retrieve_index=z, next_token=z, next_sibling=z, target_predict=z, num_steps=3) | change
    out = args.pop("out", 0)
    out = tuple(torch.zeros(s, dtype=torch.int32) for s in ((8,), (2, 4 - out), (2,)))
    with pytest.raises(ValueError, match=r"^verify_tree_greedy: " + message):
        ops.verify_tree_greedy(**args, out=out)
