# SPDX-License-Identifier: Apache-2.0
"""verify_tree_sampling has a contract and a reference; backends without a kernel say so."""
import pytest
import torch
from tree_model import random_draft
from util import rng

from dsv4spec import ops, use_backend
from dsv4spec.ops import MissingKernel
from dsv4spec.reference import tree as ref

NAN = float("nan")


def sample(tree, probs, coins, final, steps=3, **thresholds):
    with use_backend("reference"):
        return ops.verify_tree_sampling(*tree, probs, coins, final, num_steps=steps, **thresholds)


def fork(children, n=None):
    """One root with the given children's tokens."""
    n = 1 + len(children)
    t = torch.tensor
    return (t([[9, *children]]), torch.arange(n)[None], t([[1] + [-1] * (n - 1)]),
            t([[-1] + [i + 1 if i + 1 < n else -1 for i in range(1, n)]]))


def test_worked_numbers():
    """Worked example 10.7: children with p = .1 then .5, coin .55: first no (.55 >= .1), second yes (.55 < .6)."""
    probs = torch.zeros(1, 3, 4)
    probs[0, 0] = torch.tensor([.1, .5, .3, .1])
    probs[0, 2, 3] = 1.0
    got = sample(fork([0, 1]), probs, torch.tensor([[.55, 0., 0.]]), torch.tensor([.2]))
    assert [g.tolist() for g in got] == [[1, -1, 3], [[0, 2, -1, -1]], [1]]
    # Coin .7: none accepted, and the bonus is drawn from what both leave: .3 and .1 of token 2 and 3.
    for final, token in ((.0, 2), (.7, 2), (.8, 3)):
        got = sample(fork([0, 1]), probs, torch.tensor([[.7, 0., 0.]]), torch.tensor([final]))
        assert [g.tolist() for g in got] == [[token, -1, -1], [[0, -1, -1, -1]], [0]]


def test_chain_rejection_worked_numbers():
    """Worked example 10.7: p = (.5,.3,.1,.1), q = (.2,.6,.1,.1), draft token 1: accept probability .5; residual (1,0,0,0)."""
    p, q = torch.tensor([[[.5, .3, .1, .1], [0, 0, 1., 0]]]), torch.tensor([[[.2, .6, .1, .1]]])
    draft = torch.tensor([[1]])
    for coin, accepted in ((.0, 1), (.499, 1), (.501, 0), (.999, 0)):
        for final in (0., .5, .999):
            count, token = ref.chain_rejection(p, q, draft, torch.tensor([[coin]]), torch.tensor([final]))
            assert count.tolist() == [accepted] and token.tolist() == [2 if accepted else 0]
    for bad in (0., NAN, -1., 2.):  # no probability: counts as 0, never accepted
        count, _ = ref.chain_rejection(p, torch.full_like(q, bad), draft, torch.tensor([[.0]]), torch.tensor([.0]))
        assert count.tolist() == [0]


def test_output_follows_the_target_distribution():
    """Three levels of a random tree; the first emitted token has the root's distribution, whatever the drafts."""
    g = rng("sampling")
    B, n, V = 200_000, 6, 5
    links = (torch.tensor([[9, 1, 0, 3, 1, 2]]).expand(B, -1), torch.arange(B * n).view(B, n),
             torch.tensor([[1, 3, 4, 5, -1, -1]]).expand(B, -1), torch.tensor([[-1, 2, -1, -1, -1, -1]]).expand(B, -1))
    probs = torch.softmax(torch.randn(1, n, V, generator=g), -1)
    coins, final = torch.rand(B, n, generator=g), torch.rand(B, generator=g)
    predicts, accepted, count = sample(links, probs.expand(B, -1, -1), coins, final)
    first = predicts.view(B, n)[:, 0]
    frequency = torch.bincount(first.long(), minlength=V) / B
    assert (frequency - probs[0, 0]).abs().max() < 0.005
    assert abs((count >= 1).float().mean() - probs[0, 0, [0, 1]].sum()) < 0.005
    # The second token, given that node 2 was accepted, has that node's distribution.
    through = accepted[:, 1] - torch.arange(B) * n == 2
    second = torch.bincount(predicts.view(B, n)[through, 2].long(), minlength=V) / through.sum()
    assert (second - probs[0, 2]).abs().max() < 0.01


def test_a16_ids_outside_the_vocabulary_are_never_accepted():
    probs = torch.tensor([[[.5, .5], [1., 0.], [1., 0.]]])
    got = sample(fork([-1, 2]), probs, torch.zeros(1, 3), torch.tensor([.9]))
    assert [g.tolist() for g in got] == [[1, -1, -1], [[0, -1, -1, -1]], [0]]


def test_zero_probability_nan_thresholds_and_repeated_children():
    probs = torch.tensor([[[0., .4, .6], [1., 0., 0.], [0., 1., 0.]]])
    got = sample(fork([0, 1]), probs, torch.tensor([[.0, .0, .0]]), torch.tensor([.0]))
    assert got[1].tolist() == [[0, 2, -1, -1]]  # p = 0 is not accepted by coin 0
    assert sample(fork([1, 1]), probs, torch.tensor([[.7, 0, 0]]), torch.tensor([.0]))[0].tolist() == [2, -1, -1]
    assert sample(fork([1, 2]), probs, torch.tensor([[.7, 0, 0]]), torch.tensor([.0]), threshold_single=.4)[2].tolist() == [1]
    assert sample(fork([1]), probs[:, :2], torch.tensor([[.7, 0]]), torch.tensor([.0]), threshold_acc=.5)[2].tolist() == [1]
    probs[0, 0, 1] = NAN
    got = sample(fork([1, 0]), probs, torch.zeros(1, 3), torch.tensor([.5]))
    assert [g.tolist() for g in got] == [[2, -1, -1], [[0, -1, -1, -1]], [0]]
    # Nothing left at all: the last id.
    got = sample(fork([1, 0]), torch.zeros(1, 3, 3), torch.zeros(1, 3), torch.tensor([.5]))
    assert got[0].tolist() == [2, -1, -1]


def test_a14_a20_rows_are_independent_and_padding_is_skipped():
    B, n, V = 5, 6, 11
    g = rng("rows")
    live = torch.tensor([4, 0, 9, 3, 0])
    built = ref.build_tree(torch.zeros(B, dtype=torch.int64), *random_draft(B, 2, 3, n), live, topk=2, num_steps=3, num_draft_tokens=n)
    tree = (built[0] % V, *built[2:5])
    probs = torch.softmax(torch.randn(B, n, V, generator=g), -1)
    coins, final = torch.rand(B, n, generator=g), torch.rand(B, generator=g)
    probs[1] = NAN
    kept = probs.clone()
    outs = tuple(torch.full(s, -7, dtype=torch.int32) for s in ((B * n,), (B, 4), (B,)))
    with use_backend("reference"):
        ops.verify_tree_sampling(*tree, probs, coins, final, num_steps=3, out=outs)
    own = sample(tree, probs, coins, final)
    for b in range(B):
        row = slice(b, b + 1)
        if live[b] == 0:
            assert (outs[0][b * n:b * n + n] == -7).all() and (outs[1][b] == -7).all() and outs[2][b] == -7
            assert not own[0][b * n:b * n + n].any() and not own[1][b].any() and own[2][b] == 0
            continue
        one = sample((tree[0][row], tree[1][row] - b * n, *(t[row] for t in tree[2:])), probs[row], coins[row], final[row])
        assert one[0].equal(outs[0][b * n:b * n + n]) and one[0].equal(own[0][b * n:b * n + n])
        assert torch.where(one[1] >= 0, one[1] + b * n, -1).equal(outs[1][row]) and one[2].equal(outs[2][row])
    assert probs.equal(kept) or torch.equal(probs.nan_to_num(7), kept.nan_to_num(7))  # not changed
    assert [t.shape[0] for t in sample([t[:0] for t in tree], probs[:0], coins[:0], final[:0])] == [0, 0, 0]


def test_a_missing_kernel_is_an_error_never_argmax():
    args = *fork([0, 1]), torch.ones(1, 3, 4) / 4, torch.zeros(1, 3), torch.zeros(1)
    with pytest.raises(MissingKernel, match="verify_tree_sampling: backend cpu has no kernel .*--missing reference"):
        ops.verify_tree_sampling(*args, num_steps=2)


@pytest.mark.parametrize("change,message", [
    (dict(target_probs=torch.zeros(1, 3, 4, dtype=torch.bfloat16)), r"target_probs: expected dtype float32, got bfloat16"),
    (dict(target_probs=torch.zeros(1, 2, 4)), r"target_probs: expected shape \[B=1, n=3, V\], got \[1, 2, 4\]"),
    (dict(target_probs=torch.zeros(1, 3, 0)), r"target_probs: expected at least 1 token id, got 0"),
    (dict(coins=torch.zeros(1, 2)), r"coins: expected shape \[B=1, n=3\], got \[1, 2\]"),
    (dict(final_coins=torch.zeros(2)), r"final_coins: expected shape \[B=1\], got \[2\]"),
    (dict(num_steps=-1), r"num_steps: expected at least 0, got -1"),
    (dict(threshold_single=1.5), r"threshold_single: expected 0 to 1, got 1.5"),
    (dict(threshold_acc=NAN), r"threshold_acc: expected 0 to 1, got nan"),
])
def test_refuses(change, message):
    tree = dict(zip(("candidates", "retrieve_index", "next_token", "next_sibling"), fork([0, 1])))
    args = tree | dict(target_probs=torch.zeros(1, 3, 4), coins=torch.zeros(1, 3), final_coins=torch.zeros(1), num_steps=2) | change
    with use_backend("reference"), pytest.raises(ValueError, match=r"^verify_tree_sampling: " + message):
        ops.verify_tree_sampling(**args)
