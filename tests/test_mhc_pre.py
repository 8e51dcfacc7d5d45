# SPDX-License-Identifier: Apache-2.0
import pytest
import torch
from mhc_cases import CASES, KERNELS, PRE, close, coefficients_of, doubled, norm_weight_of, residual_of, same_bits
from util import BACKENDS, Guarded, rng, strided

from dsv4spec import ops, use_backend
from dsv4spec.reference import mhc as ref


def make_inputs(T, hc, d, dtype):
    return residual_of(T, hc, d, dtype), *coefficients_of(hc, d, (2 + hc) * hc, 3)


def outputs_of(T, hc, d, dtype):
    return Guarded((T, d), dtype), Guarded((T, hc), torch.float32), Guarded((T, hc, hc), torch.float32)


@pytest.mark.parametrize("backend", BACKENDS)
@pytest.mark.parametrize("norm", [None, torch.bfloat16, torch.float32], ids=str)
@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16], ids=str)
@pytest.mark.parametrize("T,hc,d", CASES)
def test_matches_reference(backend, norm, dtype, T, hc, d):
    inputs, weight = make_inputs(T, hc, d, dtype), norm_weight_of(d, norm)
    before = [t.clone() for t in inputs]
    exact = ref.mhc_pre(*doubled(inputs), norm_weight=weight, **PRE)
    plain = ref.mhc_pre(*inputs, norm_weight=weight, **PRE)
    outs = outputs_of(T, hc, d, dtype)
    with use_backend(backend):
        ops.mhc_pre(*(strided(t) for t in inputs), norm_weight=weight, out=tuple(o.tensor for o in outs), **PRE)
        dense = ops.mhc_pre(*inputs, norm_weight=weight, **PRE)
    for name, out, e, p in zip(("y", "post", "comb"), outs, exact, plain):
        close(out.tensor, e, p, f"mhc_pre {name}")
        out.check(name)
    same_bits(backend, dense, outs)
    assert all(torch.equal(t, b) for t, b in zip(inputs, before)), "an input changed"


@pytest.mark.parametrize("backend", BACKENDS)
def test_a4_order_epsilon_and_axis(backend):
    """pre = sigmoid + eps, post = 2 sigmoid, comb = row softmax + eps and 20 column steps with 19 row steps between."""
    fn, base, scale = torch.zeros(24, 32), torch.zeros(24), torch.ones(3)
    residual = torch.zeros(1, 4, 8)
    residual[0, 0] = 1
    with use_backend(backend):
        y, post, comb = ops.mhc_pre(residual, fn, base, scale, **PRE)
        assert torch.allclose(y, torch.tensor(0.500001), atol=1e-7)
        assert torch.equal(post, torch.ones(1, 4))
        assert torch.allclose(comb, torch.tensor(0.24999975), rtol=0, atol=4e-8)
        base = torch.randn(24, generator=rng("a4")) * 3
        _, _, comb = ops.mhc_pre(residual, fn, base, scale, **PRE)
        assert (comb.sum(1) - 1).abs().max() < 2e-6 and not torch.allclose(comb, comb.mT, atol=0.05)
        _, _, once = ops.mhc_pre(residual, fn, base, scale, **dict(PRE, sinkhorn_iters=1))
        assert (once.sum(2) - 1).abs().max() > 0.2
        _, _, comb = ops.mhc_pre(residual, fn, torch.full((24,), 100.) * torch.randn(24).sign(), scale, **PRE)
        assert torch.isfinite(comb).all()


@pytest.mark.parametrize("backend", BACKENDS)
@pytest.mark.parametrize("iters,rows", [(1, (.900, 1.087, .832, 1.181)), (2, (1.007, 1.028, .927, 1.039)),
                                        (20, (1., 1., 1., 1.))])
def test_worked_sinkhorn(backend, iters, rows):
    """Logits of a non-symmetric mix, given as the base of the comb columns."""
    logits = torch.tensor([[2., 0, 0, 0], [0, 1, 0, -1], [0, 0, 3, 0], [1, 0, 0, 1]])
    base = torch.cat((torch.zeros(8), logits.flatten()))
    with use_backend(backend):
        _, _, comb = ops.mhc_pre(torch.ones(1, 4, 8), torch.zeros(24, 32), base, torch.ones(3),
                                 **dict(PRE, sinkhorn_iters=iters))
    assert torch.allclose(comb[0].sum(1), torch.tensor(rows), atol=5.1e-4 if iters < 20 else 2e-6)
    assert torch.allclose(comb[0].sum(0), torch.tensor(1 - 1e-6), rtol=0, atol=1e-6)
    if iters == 20:
        want = torch.tensor([[.594125, .140164, .065520, .200190], [.133882, .634396, .109095, .122626],
                             [.046298, .080705, .757728, .115268], [.225694, .144734, .067656, .561915]])
        assert torch.allclose(comb[0], want, rtol=0, atol=1.5e-6)


@pytest.mark.parametrize("backend", KERNELS)
@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16], ids=str)
@pytest.mark.parametrize("hc,d", [(1, 72), (2, 520), (4, 64), (4, 1096)])
def test_rows_do_not_depend_on_the_batch(backend, dtype, hc, d):
    """70 rows and a few take kernels of other shapes; the row sums of both run in one order."""
    inputs, weight = make_inputs(70, hc, d, dtype), norm_weight_of(d, torch.bfloat16)
    with use_backend(backend):
        whole = ops.mhc_pre(*inputs, norm_weight=weight, **PRE)
        for T in (1, 2, 3, 4, 5, 17, 70):
            part = ops.mhc_pre(inputs[0][70 - T:], *inputs[1:], norm_weight=weight, **PRE)
            assert all(torch.equal(p, w[70 - T:]) for p, w in zip(part, whole)), T


def test_threads_change_no_bit():
    from dsv4spec import _C
    inputs = make_inputs(70, 4, 1096, torch.bfloat16)
    threads, results = _C.get_num_threads(), []
    try:
        for n in (1, 2, 5):
            _C.set_num_threads(n)
            results.append(ops.mhc_pre(*inputs, **PRE))
    finally:
        _C.set_num_threads(threads)
    for got in results[1:]:
        assert all(torch.equal(g, w) for g, w in zip(got, results[0]))


@pytest.mark.parametrize("backend", BACKENDS)
def test_nan_stays_in_its_row(backend):
    residual, *rest = make_inputs(19, 4, 64, torch.float32)
    residual[7, 2, 5] = float("nan")
    with use_backend(backend):
        outs = ops.mhc_pre(residual, *rest, norm_weight=torch.ones(64), **PRE)
    for out in outs:
        assert torch.isnan(out[7]).all()
        assert torch.isfinite(torch.cat((out[:7], out[8:]))).all()


GOOD = dict(residual=torch.zeros(3, 4, 16), fn=torch.zeros(24, 64), base=torch.zeros(24), scale=torch.zeros(3),
            norm_weight=None, out=None, **PRE)


@pytest.mark.parametrize("change,message", [
    (dict(residual=torch.zeros(3, 64)), r"residual: expected shape \[T, hc, d\], got \[3, 64\]"),
    (dict(residual=torch.zeros(3, 3, 16)), r"residual: expected 1, 2 or 4 streams, got 3"),
    (dict(residual=torch.zeros(3, 4, 12)), r"residual: expected a width d that is a multiple of 8 from 8 to 32768, got 12"),
    (dict(residual=torch.zeros(3, 4, 16).double()), r"residual: expected dtype float32 or bfloat16 or float16, got"),
    (dict(fn=torch.zeros(24, 16)), r"fn: expected shape \[\(2\+hc\)\*hc=24, hc\*d=64\], got \[24, 16\]"),
    (dict(fn=torch.zeros(24, 64).bfloat16()), r"fn: expected dtype float32, got bfloat16"),
    (dict(base=torch.zeros(4)), r"base: expected shape \[\(2\+hc\)\*hc=24\], got \[4\]"),
    (dict(scale=torch.zeros(1)), r"scale: expected shape \[3\], got \[1\]"),
    (dict(norm_weight=torch.zeros(8)), r"norm_weight: expected shape \[d=16\], got \[8\]"),
    (dict(out=(torch.zeros(3, 8), torch.zeros(3, 4), torch.zeros(3, 4, 4))), r"y: expected shape \[T=3, d=16\]"),
    (dict(out=(torch.zeros(3, 16), torch.zeros(3, 4).double(), torch.zeros(3, 4, 4))), r"post: expected dtype float32"),
    (dict(out=(torch.zeros(3, 16), torch.zeros(3, 4), torch.zeros(3, 4, 2))), r"comb: expected shape"),
    (dict(rms_eps=-1e-6), r"rms_eps: expected a value in \[0, 1\), got -1e-06"),
    (dict(hc_eps=float("nan")), r"hc_eps: expected a value in \[0, 1\), got nan"),
    (dict(sinkhorn_iters=0), r"sinkhorn_iters: expected 1 to 1000, got 0"),
])
def test_refuses(change, message):
    args = GOOD | change
    tensors = [args.pop(name) for name in ("residual", "fn", "base", "scale")]
    with pytest.raises(ValueError, match=r"^mhc_pre: " + message):
        ops.mhc_pre(*tensors, **args)


def test_refuses_outputs_over_inputs():
    residual = torch.zeros(3, 4, 16)
    args = GOOD | dict(residual=residual, out=(residual[:, 0], torch.zeros(3, 4), torch.zeros(3, 4, 4)))
    tensors = [args.pop(name) for name in ("residual", "fn", "base", "scale")]
    with pytest.raises(ValueError, match="mhc_pre: y: expected memory apart from the other arguments"):
        ops.mhc_pre(*tensors, **args)


def test_empty_outputs_are_typed():
    y, post, comb = ops.mhc_pre(*make_inputs(0, 4, 16, torch.bfloat16), **PRE)
    assert (y.shape, y.dtype) == ((0, 16), torch.bfloat16)
    assert (post.shape, post.dtype) == ((0, 4), torch.float32)
    assert (comb.shape, comb.dtype) == ((0, 4, 4), torch.float32)
