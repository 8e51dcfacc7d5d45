# SPDX-License-Identifier: Apache-2.0
import pytest
import torch
from mhc_cases import same_bits
from util import BACKENDS, Guarded, check_close, rng, strided

from dsv4spec import ops, use_backend
from dsv4spec.reference import mhc as ref

CASES = [(T, hc, d) for T in (0, 1, 3, 17) for hc in (1, 2, 4) for d in (8, 120, 128, 136)] + [(5, 4, 4096)]


def make_inputs(T, hc, d, dtype):
    g = rng("mhc_post", T, hc, d, dtype)
    y = torch.randn(T, d, generator=g).to(dtype)
    residual = torch.randn(T, hc, d, generator=g).to(dtype)
    post = torch.rand(T, hc, generator=g) * 2
    comb = torch.rand(T, hc, hc, generator=g)
    return y, residual, post, comb


@pytest.mark.parametrize("backend", BACKENDS)
@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16], ids=str)
@pytest.mark.parametrize("T,hc,d", CASES)
def test_matches_reference(backend, dtype, T, hc, d):
    inputs = make_inputs(T, hc, d, dtype)
    exact = ref.mhc_post(*(t.double() for t in inputs))
    plain = ref.mhc_post(*inputs)
    out = Guarded((T, hc, d), dtype)
    with use_backend(backend):
        ops.mhc_post(*(strided(t) for t in inputs), out=out.tensor)
        dense = ops.mhc_post(*inputs)
    check_close(out.tensor, exact, plain, op="mhc_post")
    out.check()
    same_bits(backend, [dense], [out])


@pytest.mark.parametrize("backend", BACKENDS)
def test_sum_runs_over_first_index_of_comb(backend):
    """Worked example 10.5; a swapped index would give 23.93 in the last row."""
    comb = torch.tensor([[.594125, .140164, .065520, .200190], [.133882, .634396, .109095, .122626],
                         [.046298, .080705, .757728, .115268], [.225694, .144734, .067656, .561915]])
    residual = torch.arange(8.).view(1, 4, 2)
    with use_backend(backend):
        out = ops.mhc_post(torch.tensor([[10., 20.]]), residual, torch.tensor([[1., .5, 0., 2.]]), comb[None])
    want = torch.tensor([[11.8071, 22.8071], [7.4600, 13.4600], [3.6550, 4.6550], [24.0778, 45.0778]])
    assert torch.allclose(out[0], want, atol=1e-4)


@pytest.mark.parametrize("backend", BACKENDS)
def test_in_place_and_repeatable(backend):
    y, residual, post, comb = make_inputs(9, 4, 136, torch.float32)
    with use_backend(backend):
        want = ops.mhc_post(y, residual, post, comb)
        assert torch.equal(ops.mhc_post(y, residual, post, comb), want)
        assert torch.equal(ops.mhc_post(y, residual, post, comb, out=residual), want)


@pytest.mark.parametrize("change,message", [
    (dict(y=torch.zeros(3, 16)), r"y: expected shape \[T=3, d=8\], got \[3, 16\]"),
    (dict(y=torch.zeros(3, 8, dtype=torch.float64)), r"y: expected dtype float32, got DLPack dtype"),
    (dict(residual=torch.zeros(3, 3, 8)), r"post: expected shape \[T=3, hc=3\], got \[3, 4\]"),
    (dict(comb=torch.zeros(3, 4, 8)[:, :, ::2]), r"comb: expected a contiguous innermost dimension, got stride 2"),
    (dict(out=torch.zeros(1, 4, 8).expand(3, 4, 8)), r"out: expected memory that does not overlap itself"),
])
def test_refuses(change, message):
    args = dict(y=torch.zeros(3, 8), residual=torch.zeros(3, 4, 8), post=torch.zeros(3, 4),
                comb=torch.zeros(3, 4, 4), out=None) | change
    out = args.pop("out")
    with pytest.raises(ValueError, match=r"^mhc_post: " + message):
        ops.mhc_post(*args.values(), out=out)


def test_refuses_overlap_of_output_and_input():
    memory = torch.zeros(200)
    residual, out = memory[:96].view(3, 4, 8), memory[48:144].view(3, 4, 8)
    with pytest.raises(ValueError, match="mhc_post: out: expected memory apart from the other arguments"):
        ops.mhc_post(torch.zeros(3, 8), residual, torch.zeros(3, 4), torch.zeros(3, 4, 4), out=out)


@pytest.mark.parametrize("hc", [3, 5, 8])
def test_refuses_other_stream_counts(hc):
    with pytest.raises(ValueError, match="mhc_post: residual: expected 1, 2 or 4 streams, got"):
        ops.mhc_post(torch.zeros(2, 8), torch.zeros(2, hc, 8), torch.zeros(2, hc), torch.zeros(2, hc, hc))


def test_numpy_without_copy():
    y, residual, post, comb = (t.numpy() for t in make_inputs(3, 4, 24, torch.float32))
    out = ops.mhc_post(y, residual, post, comb)
    assert type(out).__module__ == "numpy"
    assert torch.equal(torch.from_numpy(out), ops.mhc_post(*make_inputs(3, 4, 24, torch.float32)))


@pytest.mark.parametrize("backend", BACKENDS)
def test_every_bfloat16_passes_unchanged(backend):
    """Subnormal numbers, infinities and NaN too."""
    y = torch.arange(65536, dtype=torch.int32).to(torch.int16).view(torch.bfloat16).view(16, 4096)
    one, zero = torch.ones(16, 1), torch.zeros(16, 1, 1)
    with ops.use_backend(backend):
        out = ops.mhc_post(y, torch.zeros(16, 1, 4096, dtype=torch.bfloat16), one, zero)[:, 0]
    assert torch.equal(out.isnan(), y.isnan())
    assert torch.equal(out[~y.isnan()], y[~y.isnan()])
