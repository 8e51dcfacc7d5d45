# SPDX-License-Identifier: Apache-2.0
"""dsv4spec.compat: expected values are those of the engines' published examples, or of a plain computation here."""
import warnings

import pytest
import torch
import torch.nn.functional as F
from util import BACKENDS, rng

from dsv4spec import use_backend
from dsv4spec.compat import sglang, vllm

# The two trees of SGLang's published build test (k 4, 4 steps, 8 nodes), after its choice of the best candidates.
PARENTS = torch.tensor([[-1, 0, 1, 2, 3, 4, 8, 9, 10, 20, 24, 21, 28], [-1, 0, 1, 2, 3, 4, 5, 6, 7, 24, 28, 20, 21]])
SELECTED = torch.tensor([[0, 1, 4, 8, 20, 24, 36], [0, 4, 5, 6, 7, 24, 36]])
LENGTHS = torch.tensor([5, 10])
POSITIONS = [5, 6, 6, 7, 7, 8, 8, 9, 10, 11, 12, 12, 12, 12, 13, 14]
NEXT = [[1, 3, 4, 5, 6, 7, -1, -1], [1, 2, -1, 6, -1, -1, 7, -1]]
SIBLING = [[-1, 2, -1, -1, -1, -1, -1, -1], [-1, -1, 3, 4, 5, -1, -1, -1]]
PARENT_OF = [[None, 0, 0, 1, 2, 3, 4, 5], [None, 0, 1, 1, 1, 1, 3, 6]]
B, N = 2, 8


def tree_rows(parents):
    rows = torch.zeros(N, N, dtype=torch.bool)
    for i in range(N):
        node = i
        while node is not None:
            rows[i, node] = True
            node = parents[node]
    return rows


def outputs(shape=(B * N,)):
    links = [torch.full((B, N), -1) for _ in range(3)]
    return torch.full(shape, -5), *links


def build(mask, mode, spelling="retrieve", lengths=LENGTHS, selected=SELECTED, shape=(B * N,)):
    positions, *links = outputs(shape)
    names = (f"{spelling}_index", f"{spelling}_next_token", f"{spelling}_next_sibling")
    sglang.build_tree_kernel_efficient(PARENTS, selected, lengths, mask, positions, topk=4, depth=4, draft_token_num=N,
                                       tree_mask_mode=mode, **dict(zip(names, links, strict=True)))
    return positions, *links


@pytest.mark.parametrize("backend", BACKENDS)
@pytest.mark.parametrize("spelling", ["retrieve", "retrive"])
def test_published_tree(backend, spelling):
    rows = [tree_rows(p) for p in PARENT_OF]
    with use_backend(backend):
        full = torch.ones(N * int(LENGTHS.sum()) + N * N * B, dtype=torch.bool)
        results = [build(full, 0, spelling)]
        qlen = torch.zeros(B * N * N, dtype=torch.bool)
        results.append(build(qlen, 1, spelling, shape=(B, N)))
        packed = torch.zeros(B * N, dtype=torch.uint8)
        results.append(build(packed, sglang.TreeMaskMode.QLEN_ONLY_BITPACKING, spelling))
    for positions, index, next_token, sibling in results:
        assert positions.flatten().tolist() == POSITIONS
        assert index.flatten().tolist() == list(range(B * N))
        assert next_token.tolist() == NEXT and sibling.tolist() == SIBLING
    assert qlen.view(B, N, N).equal(torch.stack(rows))
    assert packed.view(B, N).tolist() == [[sum(1 << c for c in range(N) if r[i, c]) for i in range(N)] for r in rows]
    want = [torch.cat([torch.ones(N, s, dtype=torch.bool), r], 1).flatten() for s, r in zip(LENGTHS.tolist(), rows)]
    assert full.equal(torch.cat(want))


@pytest.mark.parametrize("backend", BACKENDS)
@pytest.mark.parametrize("lengths", [torch.int64, torch.int32])
@pytest.mark.parametrize("mode,dtype", [(0, torch.bool), (1, torch.bool), (2, torch.uint8)])
def test_buffers_of_the_largest_batch(backend, mode, dtype, lengths):
    """SGLang passes mask and position buffers that its graphs allocated once, and links that are rows of one buffer."""
    exact = torch.zeros({0: N * int(LENGTHS.sum()) + N * N * B, 1: B * N * N, 2: B * N}[mode], dtype=dtype)
    mask, positions = torch.full((3, 200), 3).to(dtype), torch.full((3, B * N), -5)
    links, tail = torch.full((3, B, N), -1), mask.view(-1)[exact.numel():].clone()
    with use_backend(backend):
        want = build(exact, mode)
        sglang.build_tree_kernel_efficient(PARENTS, SELECTED, LENGTHS.to(lengths), mask, positions, *links, 4, 4, N, mode)
    assert mask.view(-1)[:exact.numel()].equal(exact) and mask.view(-1)[exact.numel():].equal(tail)
    assert positions[0].tolist() == POSITIONS and (positions[1:] == -5).all()
    assert all(map(torch.equal, links, want[1:]))


@pytest.mark.parametrize("backend", BACKENDS)
@pytest.mark.parametrize("n", [1, 4])
def test_one_draft_step(backend, n):
    """SGLang's list of parents of one step is an empty tensor of torch's default dtype."""
    positions, links = torch.full((2 * n,), -5), torch.full((3, 2, n), -1)
    selected, mask = torch.arange(n - 1).expand(2, -1).contiguous(), torch.zeros(2 * n * n, dtype=torch.bool)
    with use_backend(backend):
        sglang.build_tree_kernel_efficient(torch.empty(2, 0), selected, LENGTHS, mask, positions, *links, 3, 1, n, 1)
    assert positions.view(2, n).tolist() == [[5] + [6] * (n - 1), [10] + [11] * (n - 1)]
    siblings = [-1, *range(2, n), -1][:n]
    assert links[1].tolist() == [[1 if n > 1 else -1] + [-1] * (n - 1)] * 2 and links[2].tolist() == [siblings] * 2
    star = torch.eye(n, dtype=torch.bool)
    star[:, 0] = True
    assert mask.view(2, n, n).equal(star.expand(2, n, n))


@pytest.mark.parametrize("backend", BACKENDS)
def test_no_requests(backend):
    none = torch.empty(0, N, dtype=torch.int64)
    with use_backend(backend):
        sglang.build_tree_kernel_efficient(none[:, :0], none[:, :-1], none[:, 0], torch.empty(0, dtype=torch.bool), none, none,
                                           none.clone(), none.clone(), N, 1, N, 1)
        sglang.verify_tree_greedy(none.int(), none.int()[:, :4], none.int()[:, 0].clone(), none, none, none, none, none)


@pytest.mark.parametrize("change,text", [
    (dict(mask=torch.zeros(B * N * N - 1, dtype=torch.bool)), "tree_mask: expected at least 128 elements, got 127"),
    (dict(positions=torch.zeros(B * N, 2).long()[:, 0]), r"positions: expected a contiguous tensor, got strides \[2\]"),
    (dict(positions=torch.zeros(3).long()), "positions: expected at least 16 elements, got 3"),
    (dict(lengths=torch.tensor(5)), r"verified_seq_len: expected shape \[B\], got \[\]"),
    (dict(n=-1), "draft_token_num: expected at least 1, got -1"),
    (dict(links=[torch.zeros(B, N).long()] * 3), "retrieve_index: expected memory apart from the other arguments"),
    (dict(links=torch.zeros(B, N, 3).long().unbind(-1)), "retrieve_index: expected a contiguous innermost dimension"),
])
def test_build_refuses(change, text):
    given = dict(lengths=LENGTHS, mask=torch.zeros(B * N * N, dtype=torch.bool), positions=torch.zeros(B * N).long(),
                 links=torch.zeros(3, B, N).long(), n=N) | change
    with pytest.raises(ValueError, match=text):
        sglang.build_tree_kernel_efficient(PARENTS, SELECTED, given["lengths"], given["mask"], given["positions"],
                                           *given["links"], 4, 4, given["n"], 1)


@pytest.mark.parametrize("change,text", [
    (dict(predicts=torch.zeros(3).int()), "predicts: expected at least 4 elements, got 3"),
    (dict(predicts=torch.zeros(4, 2).int()[:, 0]), "predicts: expected a contiguous tensor"),
    (dict(accept_index=torch.zeros(4).int()), r"accept_index: expected shape \[B, num_steps\+1\], got \[4\]"),
    (dict(accept_index=torch.zeros(1, 1).int().expand(1, 4)), "accept_index: expected a contiguous innermost dimension"),
    (dict(candidates=torch.arange(4)), r"candidates: expected shape \[B, n\], got \[4\]"),
    (dict(predicts=(shared := torch.zeros(8).int())[:4], accept_index=shared[2:6].view(1, 4)),
     "predicts: expected memory apart from the other arguments, got an overlap with accept_index"),
])
def test_verify_refuses(change, text):
    chain = torch.tensor([[1, 2, 3, -1]])
    given = dict(predicts=torch.zeros(4).int(), accept_index=torch.zeros(1, 4).int(), candidates=torch.arange(4).view(1, 4))
    given |= change
    with pytest.raises(ValueError, match="verify_tree_greedy: " + text):
        sglang.verify_tree_greedy(given["predicts"], given["accept_index"], torch.zeros(1).int(), given["candidates"],
                                  torch.arange(4).view(1, 4), chain, torch.full((1, 4), -1), chain)


@pytest.mark.parametrize("backend", BACKENDS)
def test_positional_call_and_padding_requests(backend):
    mask = torch.zeros(B * N * N, dtype=torch.bool)
    positions, *links = outputs()
    with use_backend(backend):
        sglang.build_tree_kernel_efficient(PARENTS, SELECTED, torch.tensor([5, 0]), mask, positions, *links, 4, 4, N, 1)
    assert positions.tolist() == POSITIONS[:N] + [-5] * N, "rows of a padding request stay as they were"
    assert links[1].tolist() == [NEXT[0], [-1] * N]


@pytest.mark.parametrize("backend", BACKENDS)
def test_orphan_is_left_out(backend):
    selected = SELECTED.clone()
    selected[1, 5] = 25  # no longer 24, the parent of the last node
    with use_backend(backend), warnings.catch_warnings(record=True) as seen:
        warnings.simplefilter("always")
        positions, _, next_token, sibling = build(torch.zeros(B * N * N, dtype=torch.bool), 1, selected=selected)
    assert [str(w.message).split(":")[0] for w in seen] == ["build_tree_kernel_efficient"] and "[1]" in str(seen[0].message)
    assert positions[:N].tolist() == POSITIONS[:N]
    reached = {i for row in (next_token[1], sibling[1]) for i in row.tolist()}
    assert 7 not in reached, "no link leads to a node without parent"


@pytest.mark.parametrize("backend", BACKENDS)
@pytest.mark.parametrize("spelling", ["retrieve", "retrive"])
def test_published_verify(backend, spelling):
    """The vector of sgl_kernel's own test: two trees of six nodes."""
    logits = torch.full((2, 6, 20), 1.0)
    for b, node, token in ((0, 0, 3), (0, 3, 4), (0, 4, 5), (1, 0, 11), (1, 4, 12)):
        logits[b, node, token] = 10
    target = torch.where(logits.max(-1).values < 10, 18, logits.argmax(-1))
    links = {f"{spelling}_index": torch.arange(12).view(2, 6),
             f"{spelling}_next_token": torch.tensor([[1, 2, -1, 4, 5, -1], [4, 2, 3, -1, 5, -1]]),
             f"{spelling}_next_sibling": torch.tensor([[-1, 3, -1, -1, -1, -1], [-1, -1, -1, -1, 1, -1]])}
    predicts = torch.full((12,), -1, dtype=torch.int32)
    accept_index, count = torch.full((2, 4), -1, dtype=torch.int32), torch.zeros(2, dtype=torch.int32)
    with use_backend(backend):
        sglang.verify_tree_greedy(predicts=predicts, accept_index=accept_index, accept_token_num=count,
                                  candidates=torch.tensor([[0, 1, 2, 3, 4, 5], [7, 8, 9, 10, 11, 12]]),
                                  target_predict=target, **links)
    assert predicts.tolist() == [3, -1, -1, 4, 5, 18, 11, -1, -1, -1, 12, 18]
    assert accept_index.tolist() == [[0, 3, 4, 5], [6, 10, 11, -1]]
    assert count.tolist() == [3, 2]


@pytest.mark.parametrize("backend", BACKENDS)
def test_verify_keeps_what_it_does_not_visit(backend):
    """As sgl_kernel: entries off the accepted path keep the caller's values, whatever they were."""
    predicts = torch.full((5,), 77, dtype=torch.int32)  # one more than B*n: SGLang allocates some that way
    accept_index, count = torch.full((1, 4), 55, dtype=torch.int32), torch.full((1,), 9, dtype=torch.int32)
    chain = torch.tensor([[1, 2, 3, -1]])
    with use_backend(backend):
        sglang.verify_tree_greedy(predicts, accept_index, count, torch.tensor([[100, 11, 12, 13]]),
                                  torch.arange(4).view(1, 4), chain, torch.full((1, 4), -1),
                                  torch.tensor([[11, 99, 12, 5]]))
    assert predicts.tolist() == [11, 99, 77, 77, 77]
    assert accept_index.tolist() == [[0, 1, 55, 55]] and count.tolist() == [1]


PADDING = [([7, 8, 9, 10, 11, 12], [7, 10], 3, 4, 4, [4, 8, 0, 0]),
           ([126, 127, 128], [126], 3, 128, 2, [0, 0]),
           ([5, 6], [5], 2, 4, 2, [0, 0]),
           ([0, 0, 0, 10, 11, 12], [0, 10], 3, 4, 2, [8, 0]),
           ([*range(2, 11), *range(7, 16)], [2, 7], 9, 4, 3, [0, 4, 4]),
           ([50, 90, 51, 52, 70, 71, 120, 72], [3, 126], 4, 4, 4, [47, 68, 0, 0]),
           ([131070, 131071, 131072, 131073], [131070], 4, 128, 2, [130944, 0])]


@pytest.mark.parametrize("backend", BACKENDS)
@pytest.mark.parametrize("positions,live,n,ratio,size,want", PADDING)
def test_published_position_padding(backend, positions, live, n, ratio, size, want):
    """The cases of SGLang's test of its Ascend backend, through live and through final lengths."""
    live = torch.tensor(live, dtype=torch.int32)
    device, host = torch.full((size,), -2), torch.full((size,), -1)
    with use_backend(backend):
        sglang.fill_verify_positions_cmp_padding_one_device(torch.tensor(positions), device, ratio=ratio,
                                                            live_seq_lens=live, n_draft=n)
        sglang.fill_verify_positions_cmp_padding_one(torch.tensor(positions), host, ratio=ratio,
                                                     seq_lens_cpu=torch.where(live > 0, live + n, live), n_draft=n)
    assert device.tolist() == want and host.tolist() == want


@pytest.mark.parametrize("backend", BACKENDS)
def test_position_padding_as_the_ascend_backend_calls_it(backend):
    """Ratio and lengths by position, buffers of a larger batch, and a step without rows, which clears."""
    positions, final = torch.tensor([7, 8, 9, 10, 11, 12, 77, 78]), torch.tensor([10, 13, 8])
    dst = torch.full((4,), -2)
    with use_backend(backend):
        sglang.fill_verify_positions_cmp_padding_one(positions, dst, 4, final, n_draft=3)
        assert dst.tolist() == [4, 8, 0, 0]
        sglang.fill_verify_positions_cmp_padding_one_device(positions, dst, 4, final - 3, 3)
        assert dst.tolist() == [4, 8, 0, 0]
        sglang.fill_verify_positions_cmp_padding_one(positions[:0], dst, 4, final, 3)
        assert dst.tolist() == [0, 0, 0, 0]


@pytest.mark.parametrize("dst,n_draft,text", [
    (torch.zeros(2, 2).long(), 3, r"dst: expected shape \[N\] of int64, got \[2, 2\] of torch.int64"),
    (torch.zeros(4), 3, r"dst: expected shape \[N\] of int64, got \[4\] of torch.float32"),
    (torch.zeros(4).long(), 0, "n_draft: expected at least 1, got 0")])
def test_position_padding_refuses(dst, n_draft, text):
    with pytest.raises(ValueError, match="fill_verify_positions_cmp_padding_one: " + text):
        sglang.fill_verify_positions_cmp_padding_one(torch.arange(6), dst, 4, torch.tensor([10, 13]), n_draft)


HC, D, EPS, ITERS = 4, 128, 1e-6, 20


def hc_inputs(*lead):
    g = rng("compat", lead)
    x = torch.randn(*lead, HC, D, generator=g).bfloat16()
    fn = torch.randn(24, HC * D, generator=g) * 0.02
    return x, fn, torch.tensor([0.7, 0.9, 1.1]), torch.randn(24, generator=g)


def plain_hc_pre(x, fn, scale, base):
    """The formula in float64, written from its definition."""
    rows = x.double().flatten(-2)
    m = F.linear(rows, fn.double()) / (rows.square().mean(-1, keepdim=True) + EPS).sqrt()
    pre, post, comb = m.split([HC, HC, HC * HC], -1)
    pre = torch.sigmoid(pre * scale[0] + base[:HC]) + EPS
    post = 2 * torch.sigmoid(post * scale[1] + base[HC:2 * HC])
    comb = (comb * scale[2] + base[2 * HC:]).unflatten(-1, (HC, HC)).softmax(-1) + EPS
    comb = comb / (comb.sum(-2, keepdim=True) + EPS)
    for _ in range(ITERS - 1):
        comb = comb / (comb.sum(-1, keepdim=True) + EPS)
        comb = comb / (comb.sum(-2, keepdim=True) + EPS)
    return (pre[..., None] * x.double()).sum(-2), post, comb


def near(got, want, tolerance):
    torch.testing.assert_close(got.double(), want, rtol=tolerance, atol=tolerance)


@pytest.mark.parametrize("backend", BACKENDS)
@pytest.mark.parametrize("lead", [(3,), (1, 2), (2, 3), (0,)])
def test_hc_of_both_engines(backend, lead):
    x, fn, scale, base = hc_inputs(*lead)
    want = plain_hc_pre(x, fn, scale, base)
    with use_backend(backend):
        y, post, comb = sglang.hc_pre(x, fn, scale, base, HC, ITERS, EPS, EPS)
        streams = sglang.hc_post(y, x, post, comb)
        other = vllm.npu_hc_pre_v2(x, fn, scale, base, HC, ITERS, EPS, EPS)
        v_post, v_comb, v_y = vllm.mhc_pre(x, fn, scale, base, EPS, EPS, EPS, 2.0, ITERS)
        v_streams = vllm.mhc_post(v_y, x, v_post, v_comb)
        fused = vllm.mhc_fused_post_pre(v_y, x, v_post, v_comb, fn, scale, base, EPS, EPS, EPS, 2.0, ITERS)
    assert (y.dtype, post.dtype, comb.dtype) == (torch.bfloat16, torch.float32, torch.float32)
    assert y.shape == (*lead, D) and post.shape == (*lead, HC) and comb.shape == (*lead, HC, HC)
    near(y, want[0], 1e-2)
    near(post, want[1], 1e-5)
    near(comb, want[2], 1e-5)
    mixed = post.double()[..., None] * y.double()[..., None, :] + torch.einsum("...ji,...jd->...id", comb.double(), x.double())
    near(streams, mixed, 2e-2)
    assert v_post.shape == (*lead, HC, 1) and all(map(torch.equal, other, (v_y, v_post.squeeze(-1), v_comb)))
    assert v_streams.equal(streams) and fused[0].equal(streams)
    near(fused[3], plain_hc_pre(streams, fn, scale, base)[0], 1e-2)
    assert fused[1].shape == v_post.shape and fused[2].shape == v_comb.shape


def test_defaults_and_positions_of_the_engines():
    """npu_hc_pre's schema has DeepSeek-V4's constants as defaults; vLLM passes norm_weight by position."""
    x, fn, scale, base = hc_inputs(2)
    assert all(map(torch.equal, sglang.hc_pre(x, fn, scale, base), sglang.hc_pre(x, fn, scale, base, HC, ITERS, EPS, EPS)))
    weight, args = torch.rand(D), (x, fn, scale, base, EPS, EPS, EPS, 2.0, ITERS)
    normed = vllm.mhc_pre(*args, 1, weight, EPS)[2]
    y = vllm.mhc_pre(*args)[2].float()
    near(normed, (y / (y.square().mean(-1, keepdim=True) + EPS).sqrt() * weight).double(), 1e-2)


@pytest.mark.parametrize("call,text", [
    (lambda x: sglang.hc_pre(x[0, 0, 0], *hc_inputs(2)[1:]), r"hc_pre: x: expected shape \[..., hc, d\], got \[128\]"),
    (lambda x: vllm.mhc_pre(x[0, 0, 0], *hc_inputs(2)[1:], EPS, EPS, EPS, 2.0, ITERS), "mhc_pre: residual: expected shape "),
    (lambda x: sglang.hc_post(x[0, 0, 0], x[0, 0, 0], x, x), r"hc_post: residual: expected shape \[..., hc, d\], got \[128\]"),
    (lambda x: sglang.hc_post(x[:, :, 0].flatten(0, 1), x, torch.ones(2, 3, HC), torch.ones(2, 3, HC, HC)),
     r"hc_post: x: expected shape \[2, 3, 128\], got \[6, 128\]"),
    (lambda x: vllm.mhc_post(x[:, :, 0], x, torch.ones(6, HC, 1), torch.ones(2, 3, HC, HC)),
     r"hc_post: post: expected shape \[2, 3, 4\], got \[6, 4\]")])
def test_shapes_are_refused_by_name(call, text):
    with pytest.raises(ValueError, match=text):
        call(hc_inputs(2, 3)[0])


@pytest.mark.parametrize("change,text", [(dict(hc_sinkhorn_eps=1e-5), "hc_sinkhorn_eps: expected 1e-06"),
                                         (dict(hc_post_mult_value=1.0), "hc_post_mult_value: expected 2.0"),
                                         (dict(norm_weight=torch.ones(D), norm_eps=1e-5), "norm_eps: expected 1e-06")])
def test_vllm_constants_that_the_model_fixes_are_refused(change, text):
    x, fn, scale, base = hc_inputs(2)
    args = dict(rms_eps=EPS, hc_pre_eps=EPS, hc_sinkhorn_eps=EPS, hc_post_mult_value=2.0, sinkhorn_repeat=ITERS) | change
    with pytest.raises(ValueError, match=text):
        vllm.mhc_pre(x, fn, scale, base, **args)


def test_wrong_stream_count_is_refused():
    x, fn, scale, base = hc_inputs(2)
    with pytest.raises(ValueError, match=r"hc_pre: x: expected shape \[..., hc_mult=2, d\], got "):
        sglang.hc_pre(x, fn, scale, base, 2, ITERS, EPS, EPS)
