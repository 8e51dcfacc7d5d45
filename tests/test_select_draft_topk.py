# SPDX-License-Identifier: Apache-2.0
import math

import numpy as np
import pytest
import torch
from util import BACKENDS, Guarded, bits, rng, strided

from dsv4spec import ops, use_backend

NAMES = ("input_ids", "scores", "parents", "hidden_rows", "cand_scores", "cand_tokens")
NAN = float("nan")


def rank(values):
    """Indices by falling value, NaN as -inf, equal ones by rising index."""
    return sorted(range(len(values)), key=lambda i: (math.inf if math.isnan(values[i]) else -values[i], i))


def model(p, tokens, scores, step):
    k = p.shape[1]
    if step == 0:
        B = p.shape[0]
        return (tokens.reshape(-1), p, torch.arange(-1, k).repeat(B, 1), torch.arange(B).repeat_interleave(k), p[:, None],
                tokens)
    B = scores.shape[0]
    cand = torch.stack([scores[b, a] * p[b * k + a] for b in range(B) for a in range(k)]).view(B, k, k)
    flat, ids = cand.view(B, k * k), tokens.reshape(B, k * k)
    chosen = torch.tensor([rank(row.tolist())[:k] for row in flat]).view(B, k)
    rows = torch.tensor([[b * k + q // k for q in chosen[b].tolist()] for b in range(B)])
    return (ids.gather(1, chosen).view(-1), flat.gather(1, chosen), chosen + k * k * (step - 1) + k, rows.view(-1), cand, ids)


def pattern(t):
    """The bits, with one NaN for all: which one a product gives is the machine's affair."""
    return bits(torch.where(t.isnan(), NAN, t) if t.is_floating_point() else t)


def run(backend, args, step):
    want = model(*args, step)
    outs = [Guarded(w.shape, w.dtype) for w in want]
    with use_backend(backend):
        for _ in range(2):
            ops.select_draft_topk(*(strided(a) if a is not None else None for a in args), step=step,
                                  out=tuple(o.tensor for o in outs))
            for name, o, w in zip(NAMES, outs, want):
                assert pattern(o.tensor).equal(pattern(w)), name
        for name, got, w in zip(NAMES, ops.select_draft_topk(*args, step=step), want):
            assert pattern(got).equal(pattern(w)) and got.shape == w.shape, name
    for o in outs:
        o.check()


def make(B, k, step):
    g = rng("select", B, k, step)
    M = B * k if step else B
    p = torch.rand(M, k, generator=g).sort(-1, descending=True).values
    return p, torch.randint(0, 129280, (M, k), generator=g), torch.rand(B, k, generator=g) if step else None


@pytest.mark.parametrize("backend", BACKENDS)
@pytest.mark.parametrize("step", [0, 1, 3])
@pytest.mark.parametrize("B,k", [(1, 1), (1, 4), (3, 2), (17, 8), (2, 33), (1, 256)])
def test_matches_model(backend, B, k, step):
    run(backend, make(B, k, step), step)


@pytest.mark.parametrize("backend", BACKENDS)
def test_worked_numbers(backend):
    """Worked example 10.2."""
    t = torch.tensor
    with use_backend(backend):
        s0 = ops.select_draft_topk(t([[.6, .3], [.9, .05]]), t([[11, 12], [51, 52]]), None, step=0)
        s1 = ops.select_draft_topk(t([[.7, .2], [.5, .4], [.5, .4], [.6, .3]]), t([[21, 22], [23, 24], [61, 62], [63, 64]]),
                                   s0[1], step=1)
        s2 = ops.select_draft_topk(t([[.8, .1], [.6, .3], [.5, .25], [.9, .05]]), t([[31, 32], [33, 34], [71, 72], [73, 74]]),
                                   s1[1], step=2)
    assert s0[2].tolist() == [[-1, 0, 1]] * 2
    assert s1[0].tolist() == [21, 23, 61, 62] and s1[2].tolist() == [[2, 4], [2, 3]] and s1[3].tolist() == [0, 1, 2, 2]
    assert torch.allclose(s1[1], t([[.42, .15], [.45, .36]]))
    assert s2[0].tolist() == [31, 33, 73, 71] and torch.allclose(s2[1], t([[.336, .09], [.324, .225]]))
    tree = ops.organize_draft(*([s[i] for s in (s0, s1, s2)] for i in (4, 5, 2)), num_draft_tokens=6)
    assert tree[0].tolist() == [[-1, 0, 1, 2, 4], [-1, 0, 1, 2, 3]]
    assert tree[1].tolist() == [[0, 1, 2, 4, 6], [0, 2, 3, 6, 8]]
    assert tree[2].tolist() == [[11, 12, 21, 23, 31], [51, 61, 62, 71, 73]]
    all_scores = torch.cat([s[4].flatten(1) for s in (s0, s1, s2)], 1)
    assert torch.allclose(all_scores, t([[.6, .3, .42, .12, .15, .12, .336, .042, .09, .045],
                                         [.9, .05, .45, .36, .03, .015, .225, .1125, .324, .018]]))


@pytest.mark.parametrize("backend", BACKENDS)
def test_equal_scores_and_nan(backend):
    """Equal: the lower flat index first, 0 and -0 alike. NaN ranks with -inf, below every number."""
    tokens = torch.arange(4).view(2, 2)
    for p, chosen in (([[.5, .5], [.5, .5]], [0, 1]), ([[NAN, .25], [.5, NAN]], [2, 1]), ([[NAN, NAN], [NAN, .1]], [3, 0]),
                      ([[-0.0, 0.0], [0.0, -1.0]], [0, 1]), ([[NAN, NAN], [NAN, NAN]], [0, 1])):
        args = torch.tensor(p), tokens, torch.ones(1, 2)
        with use_backend(backend):
            got = ops.select_draft_topk(*args, step=1)
        assert got[0].tolist() == chosen, p
        run(backend, args, 1)


@pytest.mark.parametrize("backend", BACKENDS)
@pytest.mark.parametrize("B,k", [(91, 2), (2, 3), (2, 16), (2, 17), (2, 40), (2, 129)])
def test_many_ties_and_values_at_the_ends(backend, B, k):
    """Few values, so that most candidates are equal to others, in no order; among them NaN, infinities and denormals."""
    values = torch.tensor([0.0, -0.0, NAN, math.inf, -math.inf, 1e-42, 1e-45, 0.5, 0.5, 0.25, -0.5, 3e38])
    g = rng("ties", k)
    p, scores = (values[torch.randint(0, len(values), shape, generator=g)] for shape in ((B * k, k), (B, k)))
    run(backend, (p, torch.arange(B * k * k).view(B * k, k), scores), 2)
    all_equal = torch.full((B * k, k), 0.5), torch.arange(B * k * k).view(B * k, k), torch.ones(B, k)
    run(backend, all_equal, 2)


@pytest.mark.parametrize("backend", BACKENDS)
def test_a20_empty_batch_and_independent_rows(backend):
    with use_backend(backend):
        for step in (0, 2):
            empty = ops.select_draft_topk(torch.zeros(0, 3), torch.zeros(0, 3, dtype=torch.int64),
                                          torch.zeros(0, 3) if step else None, step=step)
            assert [t.shape[0] for t in empty] == [0] * 6
        p, tokens, scores = make(7, 4, 1)
        p[4:8] = NAN  # request 1
        whole = ops.select_draft_topk(p, tokens, scores, step=1)
        alone = ops.select_draft_topk(p[8:12], tokens[8:12], scores[2:3], step=1)
    assert whole[1][2:3].equal(alone[1]) and whole[0][8:12].equal(alone[0])
    assert whole[3][8:12].equal(alone[3] + 8)


def test_organize_draft_ties_numpy_and_refusal():
    scores, tokens = [torch.tensor([[[.5, .5]]]), torch.tensor([[[.5, NAN], [.25, .5]]])], [torch.arange(2)[None],
                                                                                           torch.arange(2, 6)[None]]
    parents = [torch.tensor([[-1, 0, 1]]), torch.tensor([[2, 3]])]
    got = ops.organize_draft(scores, tokens, parents, num_draft_tokens=5)
    assert got[0].tolist() == [[-1, 0, 1]] and got[1].tolist() == [[0, 1, 2, 5]] and got[2].tolist() == [[0, 1, 2, 5]]
    plain = ops.organize_draft(*([t.numpy() for t in x] for x in (scores, tokens, parents)), num_draft_tokens=5)
    assert all(isinstance(x, np.ndarray) and x.tolist() == g.tolist() for x, g in zip(plain, got))
    one = ops.organize_draft(scores[:1], tokens[:1], parents[:1], num_draft_tokens=3)
    assert one[0].shape == (1, 0) and one[1].tolist() == [[0, 1]]
    for n in (0, 8):
        with pytest.raises(ValueError, match=rf"^organize_draft: num_draft_tokens: expected 1 to 7, got {n}"):
            ops.organize_draft(scores, tokens, parents, num_draft_tokens=n)


@pytest.mark.parametrize("change,message", [
    (dict(topk_p=torch.zeros(4, 2, dtype=torch.bfloat16)), r"topk_p: expected dtype float32, got bfloat16"),
    (dict(topk_index=torch.zeros(4, 2, dtype=torch.int32)), r"topk_index: expected dtype int64, got int32"),
    (dict(topk_index=torch.zeros(4, 3, dtype=torch.int64)), r"topk_index: expected shape \[M=4, k=2\], got \[4, 3\]"),
    (dict(scores=None), r"scores: expected a tensor after step 0, got None"),
    (dict(step=0), r"scores: expected None at step 0, got a tensor"),
    (dict(step=-1), r"step: expected at least 0, got -1"),
    (dict(scores=torch.zeros(3, 2)), r"topk_p: expected B\*k = 6 rows, got 4"),
    (dict(topk_p=torch.zeros(0, 0), topk_index=torch.zeros(0, 0, dtype=torch.int64)), r"topk_p: expected 1 to 256 columns, got 0"),
])
def test_refuses(change, message):
    args = dict(topk_p=torch.zeros(4, 2), topk_index=torch.zeros(4, 2, dtype=torch.int64), scores=torch.zeros(2, 2),
                step=1) | change
    with pytest.raises(ValueError, match=r"^select_draft_topk: " + message):
        ops.select_draft_topk(args["topk_p"], args["topk_index"], args["scores"], step=args["step"])


def test_refuses_outputs_over_inputs():
    p, tokens, scores = make(2, 2, 1)
    out = ops.select_draft_topk(p, tokens, scores, step=1)
    with pytest.raises(ValueError, match=r"^select_draft_topk: scores_out: expected memory apart from the other arguments"):
        ops.select_draft_topk(p, tokens, scores, step=1, out=(out[0], scores, *out[2:]))
