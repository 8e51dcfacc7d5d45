# SPDX-License-Identifier: Apache-2.0
import pytest
import torch
from mhc_cases import CASES, EPS, KERNELS, close, coefficients_of, doubled, norm_weight_of, residual_of, same_bits
from util import BACKENDS, Guarded, strided

from dsv4spec import ops, use_backend
from dsv4spec.reference import mhc as ref


def make_inputs(T, hc, d, dtype):
    return residual_of(T, hc, d, dtype), *coefficients_of(hc, d, hc, 1)


@pytest.mark.parametrize("backend", BACKENDS)
@pytest.mark.parametrize("norm", [None, torch.bfloat16, torch.float32], ids=str)
@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16], ids=str)
@pytest.mark.parametrize("T,hc,d", CASES)
def test_matches_reference(backend, norm, dtype, T, hc, d):
    inputs, weight = make_inputs(T, hc, d, dtype), norm_weight_of(d, norm)
    before = [t.clone() for t in inputs]
    exact = ref.mhc_head(*doubled(inputs), norm_weight=weight, **EPS)
    plain = ref.mhc_head(*inputs, norm_weight=weight, **EPS)
    out = Guarded((T, d), dtype)
    with use_backend(backend):
        ops.mhc_head(*(strided(t) for t in inputs), norm_weight=weight, out=out.tensor, **EPS)
        dense = ops.mhc_head(*inputs, norm_weight=weight, **EPS)
    close(out.tensor, exact, plain, "mhc_head")
    out.check()
    same_bits(backend, [dense], [out])
    assert all(torch.equal(t, b) for t, b in zip(inputs, before)), "an input changed"


@pytest.mark.parametrize("backend", BACKENDS)
def test_by_hand(backend):
    """Streams 1, 2, 3, 4 everywhere: rms^2 = 7.5; fn picks stream 3; weights sigmoid(2 * m + base) + eps."""
    residual = torch.arange(1., 5.).view(1, 4, 1).expand(1, 4, 8).contiguous()
    fn = torch.zeros(4, 32)
    fn[:, 16] = torch.tensor([1., 0., -1., 2.])
    m = fn[:, 16] * 3 / (7.5 + 1e-6) ** 0.5
    base = torch.tensor([0., .5, 1., -1.])
    want = ((torch.sigmoid(2 * m + base) + 1e-6) * torch.arange(1., 5.)).sum()
    with use_backend(backend):
        y = ops.mhc_head(residual, fn, base, torch.tensor([2.]), **EPS)
        assert torch.allclose(y, want, rtol=1e-6)
        normed = ops.mhc_head(residual, fn, base, torch.tensor([2.]), norm_weight=torch.arange(8.), **EPS)
    assert torch.allclose(normed, torch.arange(8.), rtol=1e-6)


@pytest.mark.parametrize("backend", KERNELS)
@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16], ids=str)
@pytest.mark.parametrize("hc,d", [(1, 72), (2, 40), (4, 520)])
def test_rows_do_not_depend_on_the_batch(backend, dtype, hc, d):
    inputs = make_inputs(66, hc, d, dtype)
    with use_backend(backend):
        whole = ops.mhc_head(*inputs, **EPS)
        for i in (0, 3, 4, 63, 64, 65):
            assert torch.equal(ops.mhc_head(inputs[0][i:i + 1], *inputs[1:], **EPS)[0], whole[i]), i


@pytest.mark.parametrize("change,message", [
    (dict(residual=torch.zeros(3, 6, 16)), r"residual: expected 1, 2 or 4 streams, got 6"),
    (dict(residual=torch.zeros(3, 4, 20)), r"residual: expected a width d that is a multiple of 8 from 8 to 32768, got 20"),
    (dict(residual=torch.zeros(3, 16)), r"residual: expected shape \[T, hc, d\], got \[3, 16\]"),
    (dict(fn=torch.zeros(24, 64)), r"fn: expected shape \[hc=4, hc\*d=64\], got \[24, 64\]"),
    (dict(base=torch.zeros(3)), r"base: expected shape \[hc=4\], got \[3\]"),
    (dict(scale=torch.zeros(3)), r"scale: expected shape \[1\], got \[3\]"),
    (dict(norm_weight=torch.zeros(64)), r"norm_weight: expected shape \[d=16\], got \[64\]"),
    (dict(out=torch.zeros(3, 16).bfloat16()), r"y: expected dtype float32, got bfloat16"),
    (dict(rms_eps=float("inf")), r"rms_eps: expected a value in \[0, 1\), got inf"),
    (dict(hc_eps=-1.0), r"hc_eps: expected a value in \[0, 1\), got -1"),
])
def test_refuses(change, message):
    args = dict(residual=torch.zeros(3, 4, 16), fn=torch.zeros(4, 64), base=torch.zeros(4), scale=torch.zeros(1),
                **EPS) | change
    tensors = [args.pop(name) for name in ("residual", "fn", "base", "scale")]
    with pytest.raises(ValueError, match=r"^mhc_head: " + message):
        ops.mhc_head(*tensors, **args)


def test_empty_output_is_typed():
    y = ops.mhc_head(*make_inputs(0, 4, 16, torch.bfloat16), **EPS)
    assert (y.shape, y.dtype) == ((0, 16), torch.bfloat16)
