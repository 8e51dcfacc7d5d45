# SPDX-License-Identifier: Apache-2.0
import pytest
import torch
from mhc_cases import CASES, KERNELS, PRE, close, coefficients_of, doubled, norm_weight_of, residual_of, same_bits
from util import BACKENDS, Guarded, rng, strided

from dsv4spec import ops, use_backend
from dsv4spec.reference import mhc as ref


def make_inputs(T, hc, d, dtype):
    g = rng("mhc_post_pre", T, hc, d)
    y = torch.randn(T, d, generator=g).to(dtype)
    post, comb = torch.rand(T, hc, generator=g) * 2, torch.rand(T, hc, hc, generator=g)
    return y, residual_of(T, hc, d, dtype), post, comb, *coefficients_of(hc, d, (2 + hc) * hc, 3)


def outputs_of(T, hc, d, dtype):
    return (Guarded((T, hc, d), dtype), Guarded((T, d), dtype), Guarded((T, hc), torch.float32),
            Guarded((T, hc, hc), torch.float32))


@pytest.mark.parametrize("backend", BACKENDS)
@pytest.mark.parametrize("norm", [None, torch.bfloat16], ids=str)
@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16], ids=str)
@pytest.mark.parametrize("T,hc,d", CASES)
def test_matches_reference(backend, norm, dtype, T, hc, d):
    inputs, weight = make_inputs(T, hc, d, dtype), norm_weight_of(d, norm)
    before = [t.clone() for t in inputs]
    exact = ref.mhc_post_pre(*doubled(inputs), norm_weight=weight, **PRE)
    plain = ref.mhc_post_pre(*inputs, norm_weight=weight, **PRE)
    outs = outputs_of(T, hc, d, dtype)
    with use_backend(backend):
        ops.mhc_post_pre(*(strided(t) for t in inputs), norm_weight=weight, out=tuple(o.tensor for o in outs), **PRE)
        dense = ops.mhc_post_pre(*inputs, norm_weight=weight, **PRE)
    for name, out, e, p in zip(("residual", "y", "post", "comb"), outs, exact, plain):
        close(out.tensor, e, p, f"mhc_post_pre {name}")
        out.check(name)
    same_bits(backend, dense, outs)
    assert all(torch.equal(t, b) for t, b in zip(inputs, before)), "an input changed"


@pytest.mark.parametrize("backend", BACKENDS)
@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16], ids=str)
@pytest.mark.parametrize("T,hc,d", [(1, 4, 4096), (5, 4, 264), (18, 2, 520), (70, 1, 72), (70, 4, 136)])
def test_equals_the_two_single_ops(backend, dtype, T, hc, d):
    """The residual is rounded to the stream dtype before the next site reads it."""
    y, residual, post, comb, *site = make_inputs(T, hc, d, dtype)
    weight = norm_weight_of(d, torch.bfloat16)
    with use_backend(backend):
        after = ops.mhc_post(y, residual, post, comb)
        want = (after, *ops.mhc_pre(after, *site, norm_weight=weight, **PRE))
        got = ops.mhc_post_pre(y, residual, post, comb, *site, norm_weight=weight, **PRE)
        assert all(torch.equal(g, w) for g, w in zip(got, want))
        into = (residual, *(torch.empty_like(w) for w in want[1:]))
        got = ops.mhc_post_pre(y, residual, post, comb, *site, norm_weight=weight, out=into, **PRE)
        assert got[0] is residual and all(torch.equal(g, w) for g, w in zip(got, want))


@pytest.mark.parametrize("backend", KERNELS)
@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16], ids=str)
@pytest.mark.parametrize("hc,d", [(1, 72), (2, 40), (4, 520)])
def test_rows_do_not_depend_on_the_batch(backend, dtype, hc, d):
    inputs = make_inputs(67, hc, d, dtype)
    with use_backend(backend):
        whole = ops.mhc_post_pre(*inputs, **PRE)
        for i in (0, 1, 15, 16, 63, 64, 66):
            one = ops.mhc_post_pre(*(t[i:i + 1] for t in inputs[:4]), *inputs[4:], **PRE)
            assert all(torch.equal(o[0], w[i]) for o, w in zip(one, whole)), i


@pytest.mark.parametrize("backend", BACKENDS)
def test_nan_stays_in_its_row(backend):
    y, *rest = make_inputs(6, 4, 64, torch.bfloat16)
    y[3, 9] = float("nan")
    with use_backend(backend):
        residual, *others = ops.mhc_post_pre(y, *rest, **PRE)
    assert torch.isnan(residual[3, :, 9]).all() and torch.isnan(residual).sum() == 4
    for out in others:
        assert not torch.isnan(torch.cat((out[:3], out[4:]))).any() and torch.isnan(out[3]).any()


@pytest.mark.parametrize("position,bad,message", [
    (0, torch.zeros(3, 8), r"y: expected shape \[T=3, d=16\], got \[3, 8\]"),
    (1, torch.zeros(3, 5, 16), r"residual: expected 1, 2 or 4 streams, got 5"),
    (1, torch.zeros(3, 4, 15), r"residual: expected a width d that is a multiple of 8 from 8 to 32768, got 15"),
    (2, torch.zeros(3, 3), r"post: expected shape \[T=3, hc=4\], got \[3, 3\]"),
    (3, torch.zeros(3, 4, 4).bfloat16(), r"comb: expected dtype float32, got bfloat16"),
    (4, torch.zeros(8, 64), r"fn: expected shape \[\(2\+hc\)\*hc=24, hc\*d=64\], got \[8, 64\]"),
    (5, torch.zeros(25), r"base: expected shape \[\(2\+hc\)\*hc=24\], got \[25\]"),
    (6, torch.zeros(4), r"scale: expected shape \[3\], got \[4\]"),
    ("norm_weight", torch.zeros(16).int(), r"norm_weight: expected dtype float32 or bfloat16, got int32"),
    ("sinkhorn_iters", -1, r"sinkhorn_iters: expected 1 to 1000, got -1"),
    ("rms_eps", 1.5, r"rms_eps: expected a value in \[0, 1\), got 1.5"),
    ("hc_eps", -1.0, r"hc_eps: expected a value in \[0, 1\), got -1"),
])
def test_refuses(position, bad, message):
    tensors, keywords = list(make_inputs(3, 4, 16, torch.float32)), dict(PRE)
    if isinstance(position, int):
        tensors[position] = bad
    else:
        keywords[position] = bad
    with pytest.raises(ValueError, match=r"^mhc_post_pre: " + message):
        ops.mhc_post_pre(*tensors, **keywords)


@pytest.mark.parametrize("index,bad,message", [
    (0, torch.zeros(3, 4, 8), r"residual_out: expected shape \[T=3, hc=4, d=16\]"),
    (1, torch.zeros(3, 16).bfloat16(), r"y_out: expected dtype float32"),
    (2, torch.zeros(4, 4), r"post_out: expected shape \[T=3, hc=4\]"),
    (3, torch.zeros(1, 4, 4).expand(3, 4, 4), r"comb_out: expected memory that does not overlap itself"),
])
def test_refuses_outputs(index, bad, message):
    tensors = make_inputs(3, 4, 16, torch.float32)
    out = [torch.zeros(3, 4, 16), torch.zeros(3, 16), torch.zeros(3, 4), torch.zeros(3, 4, 4)]
    out[index] = bad
    with pytest.raises(ValueError, match=r"^mhc_post_pre: " + message):
        ops.mhc_post_pre(*tensors, out=tuple(out), **PRE)


def test_refuses_a_shifted_residual():
    memory = torch.zeros(3 * 64 + 16)
    y, _, *rest = make_inputs(3, 4, 16, torch.float32)
    out = (memory[16:].view(3, 4, 16), torch.zeros(3, 16), torch.zeros(3, 4), torch.zeros(3, 4, 4))
    with pytest.raises(ValueError, match="mhc_post_pre: residual_out: expected memory apart from the other arguments"):
        ops.mhc_post_pre(y, memory[:192].view(3, 4, 16), *rest, out=out, **PRE)


def test_empty_outputs_are_typed():
    got = ops.mhc_post_pre(*make_inputs(0, 2, 16, torch.bfloat16), **PRE)
    assert [t.shape for t in got] == [(0, 2, 16), (0, 16), (0, 2), (0, 2, 2)]
    assert [t.dtype for t in got] == [torch.bfloat16] * 2 + [torch.float32] * 2
