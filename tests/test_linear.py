# SPDX-License-Identifier: Apache-2.0
import pytest
import torch

from dsv4spec import ops
from dsv4spec.models import dense
from dsv4spec.models.dense import Linear, few_rows
from dsv4spec.reference import dense as ref
from util import BACKENDS, Guarded, check_close, rng, strided

EPS = 1e-6
F32, BF16 = torch.float32, torch.bfloat16
# T, G, N, K: around vectors of 4, 8 and 16, tiles of 4 rows and 64 columns, groups of 256, blocks of 32 and 64 rows; the
# last two: so large that weights are fetched ahead, in both orders
CASES = [(1, 1, 516, 128), (4, 2, 64, 128), (3, 1, 257, 33), (5, 2, 11, 37), (2, 3, 1, 1), (65, 1, 63, 31), (6, 1, 17, 0),
         (1, 1, 700, 800), (12, 1, 700, 800)]


def with_kernel(backend):
    if backend != "reference" and "linear" not in ops._dispatch.backend_ops(backend):
        pytest.skip(f"{backend} has no linear kernel")
    return ops.use_backend(backend)


def make_inputs(T, G, N, K, x_dtype, w_dtype):
    g = rng("linear", T, G, N, K)
    x, w = torch.randn(T, G * K, generator=g), torch.randn(G * K, N, generator=g)
    return x.to(x_dtype), w.to(w_dtype), torch.randn(G * K, generator=g)


@pytest.mark.parametrize("backend", BACKENDS)
@pytest.mark.parametrize("dtypes", [(F32, F32), (F32, BF16), (BF16, F32), (BF16, BF16)], ids=str)
@pytest.mark.parametrize("normed", [False, True])
@pytest.mark.parametrize("case", CASES, ids=str)
def test_matches_reference(backend, dtypes, normed, case):
    x, w, weight = make_inputs(*case, *dtypes)
    options = dict(groups=case[1], norm_weight=weight if normed else None, eps=EPS)
    wide = F32 if F32 in dtypes else BF16
    out = Guarded((case[0], case[1] * case[2]), wide)
    with with_kernel(backend):
        ops.linear(strided(x), strided(w), **options, out=out.tensor)
        got = ops.linear(x, w, **options)
    rounded = ref._rmsnorm(x, weight, EPS) if normed else x  # the one rounding before the product
    exact = ref.linear(rounded.double(), w.double(), groups=case[1])
    check_close(got, exact, ref.linear(x, w, **options), op="linear", factor=4)
    assert got.dtype == wide
    if backend != "reference":  # torch's products may add up in another order for other strides
        assert torch.equal(got, out.tensor)
    out.check()


@pytest.mark.parametrize("backend", [b for b in BACKENDS if b != "reference"])
@pytest.mark.parametrize("x_dtype", [F32, BF16], ids=str)
def test_a_row_is_the_same_in_every_batch(backend, x_dtype):
    x, w, weight = make_inputs(71, 2, 83, 67, x_dtype, BF16)
    options = dict(groups=2, norm_weight=weight, eps=EPS)
    with with_kernel(backend):
        together = ops.linear(x, w, **options)
        for rows in (1, 2, 3, 5, 64):
            assert torch.equal(ops.linear(x[-rows:], w, **options), together[-rows:])


@pytest.mark.parametrize("backend", BACKENDS)
def test_by_hand(backend):
    x = torch.tensor([[3., 4., 0., 0.]])  # mean of squares 25/4
    w = torch.tensor([[1., 0.], [0., 2.], [1., 1.], [1., 1.]])
    with with_kernel(backend):
        assert ops.linear(x, w, groups=2).tolist() == [[3., 8., 0., 0.]]
        normed = ops.linear(x, w, norm_weight=torch.tensor([1., 10., 1., 1.]), eps=2.75)  # root of 6.25 + 2.75 = 3
    assert torch.allclose(normed, torch.tensor([[1., 80 / 3]]), rtol=1e-6)


@pytest.mark.parametrize("backend", BACKENDS)
def test_a_nan_stays_in_its_row(backend):
    x, w, weight = make_inputs(6, 1, 17, 40, F32, F32)
    with with_kernel(backend):
        clean = ops.linear(x, w, norm_weight=weight, eps=EPS)
        x[2, 5] = torch.nan
        got = ops.linear(x, w, norm_weight=weight, eps=EPS)
    assert got[2].isnan().all()
    keep = [0, 1, 3, 4, 5]
    torch.testing.assert_close(got[keep], clean[keep], rtol=1e-5, atol=1e-5)


@pytest.mark.parametrize("backend", BACKENDS)
@pytest.mark.parametrize("N", [1, 5, 17, 64])
def test_rows_of_weights_that_share_memory(backend, N):
    """Stride 0, and matrices narrower than a vector of their own end."""
    x, row = torch.arange(12.).view(2, 6), torch.arange(1., N + 1)
    with with_kernel(backend):
        got = ops.linear(x, row.expand(6, N))
    assert torch.equal(got, x.sum(1, keepdim=True) * row)


@pytest.mark.parametrize("backend", BACKENDS)
def test_empty(backend):
    with with_kernel(backend):
        assert ops.linear(torch.zeros(0, 6), torch.zeros(6, 3)).shape == (0, 3)
        assert ops.linear(torch.zeros(2, 6), torch.zeros(6, 0), groups=3).shape == (2, 0)
        assert (ops.linear(torch.ones(2, 0), torch.zeros(0, 4)) == 0).all()


@pytest.mark.parametrize("change,message", [
    (dict(x=torch.zeros(2, 5)), "x: expected a width that groups divides, got 5"),
    (dict(x=torch.zeros(2, 6).double()), "x: expected dtype float32 or bfloat16, got"),
    (dict(x=torch.zeros(6, 2).t()), "x: expected a contiguous innermost dimension, got stride 2"),
    (dict(w=torch.zeros(5, 3)), r"w: expected shape \[G\*K=6, N\], got \[5, 3\]"),
    (dict(w=torch.zeros(6, 3).half()), "w: expected dtype float32 or bfloat16, got float16"),
    (dict(norm_weight=torch.zeros(5)), r"norm_weight: expected shape \[G\*K=6\], got \[5\]"),
    (dict(groups=0), "groups: expected at least 1, got 0"),
    (dict(eps=-1.0), "eps: expected a finite number >= 0, got -1"),
    (dict(out=torch.zeros(2, 5)), r"out: expected shape \[T=2, 6\], got \[2, 5\]"),
    (dict(out=torch.zeros(2, 6).bfloat16()), "out: expected dtype float32, got bfloat16"),
])
def test_refuses(change, message):
    args = dict(x=torch.zeros(2, 6), w=torch.zeros(6, 3), groups=2, norm_weight=None, eps=EPS, out=None) | change
    with ops.use_backend("reference"), pytest.raises(ValueError, match="^linear: " + message):
        ops.linear(args.pop("x"), args.pop("w"), **args)


@pytest.mark.parametrize("dtype,w_dtype", [(F32, F32), (F32, BF16), (BF16, BF16)], ids=str)
@pytest.mark.parametrize("groups,normed", [(1, False), (1, True), (2, False)])
def test_the_models_layer_is_the_same_by_torch_and_by_the_op(dtype, w_dtype, groups, normed, monkeypatch):
    """Layer weights are (out, in), as checkpoints have them. The op is asked for few rows only."""
    g = rng("layer", groups)
    x, w = torch.randn(5, 48, generator=g).to(dtype), torch.randn(22, 48 // groups, generator=g).to(w_dtype)
    weight = torch.randn(48, generator=g) if normed else None
    layer = Linear(w, groups=groups, norm_weight=weight, eps=EPS)
    calls = []
    monkeypatch.setattr(dense.ops, "linear", lambda *a, **k: calls.append(1) or ops._dispatch.OPS["linear"].public(*a, **k))
    by_op = layer(x)
    with few_rows(4):
        by_torch = layer(x)
    assert len(calls) == 1 and by_op.dtype == by_torch.dtype == dtype
    want = ref._rmsnorm(x, weight, EPS) if normed else x
    blocks = zip(want.double().chunk(groups, 1), w.double().chunk(groups, 0))
    exact = torch.cat([a @ b.T for a, b in blocks], 1)
    for got in (by_op, by_torch):
        check_close(got, exact, op="layer", floor=1e-5 if dtype == F32 else 0.1)
