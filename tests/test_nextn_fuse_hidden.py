# SPDX-License-Identifier: Apache-2.0
import pytest
import torch
from mhc_cases import close, doubled, norm_weight_of
from util import BACKENDS, Guarded, rng, strided

from dsv4spec import _C, ops, use_backend
from dsv4spec.reference import mhc as ref
from dsv4spec.reference.quant import fp8_block_quant

KINDS = ("float32", "bfloat16", "fp8", "fp8_e8m0", "int8")
# (T, hc, d): register tiles of rows (6, or 2) and blocks of tokens (80 rows); panels, scale blocks and k tiles of d.
CASES = ([(T, hc, d) for T in (0, 1, 3) for hc in (1, 2, 4) for d in (8, 120, 128, 136)] +
         [(2, 4, 520), (7, 1, 264), (15, 4, 64), (16, 4, 64), (17, 4, 64), (40, 1, 64), (41, 1, 64), (2, 2, 1032)])


def make_weights(d, kind, *key):
    """(weight, scale) of one projection."""
    g = rng("proj", d, *key)
    weight = torch.randn(d, d, generator=g) / d ** 0.5
    if kind in ("float32", "bfloat16", "float16"):
        return weight.to(getattr(torch, kind)), None
    if kind == "int8":
        scale = weight.abs().amax(1) / 127
        return (weight / scale[:, None]).round().to(torch.int8), scale
    weight *= torch.exp2(torch.randint(-20, 20, (d // 128 + 1, 1, d // 128 + 1, 1), generator=g).float()).expand(
        -1, 128, -1, 128).reshape(-(-(d + 1) // 128) * 128, -1)[:d, :d]
    codes, scale = fp8_block_quant(weight)
    return codes, scale.view(torch.float8_e8m0fnu) if kind == "fp8_e8m0" else scale


def make_inputs(T, hc, d, dtype, kind):
    g = rng("nextn", T, hc, d)
    embeds = torch.randn(T, d, generator=g).to(dtype)
    hidden = (torch.randn(T, hc * d, generator=g) * 3).to(dtype)
    (e, e_scale), (h, h_scale) = make_weights(d, kind, "e"), make_weights(d, kind, "h")
    norms = norm_weight_of(d, torch.bfloat16), norm_weight_of(d, torch.float32) + 0.25
    return (embeds, hidden, *norms, e, h), dict(eps=1e-6, e_proj_scale=e_scale, h_proj_scale=h_scale)


def in_double(tensors, keywords):
    """Inputs of the float64 reference; the packed formats stay as they are."""
    weights = tuple(w if w.dtype in (torch.float8_e4m3fn, torch.int8) else w.double() for w in tensors[4:])
    return doubled(tensors[:4]) + weights, keywords


@pytest.mark.parametrize("backend", BACKENDS)
@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16], ids=str)
@pytest.mark.parametrize("T,hc,d", CASES)
def test_matches_reference(backend, dtype, kind, T, hc, d):
    tensors, keywords = make_inputs(T, hc, d, dtype, kind)
    double, k = in_double(tensors, keywords)
    exact, plain = ref.nextn_fuse_hidden(*double, **k), ref.nextn_fuse_hidden(*tensors, **keywords)
    out = Guarded((T, hc, d), dtype)
    hostile = [strided(t.view(torch.uint8)).view(t.dtype) if t.dtype == torch.float8_e4m3fn else strided(t)
               for t in tensors]
    with use_backend(backend):
        ops.nextn_fuse_hidden(*hostile, **keywords, out=out.tensor)
    close(out.tensor, exact, plain, f"nextn_fuse_hidden {kind}")
    out.check()


# Weights that lie on 16 bytes under bf16 rows go to tensor cores where there are any. (T, hc, d, odd strides
# of rows): 8 and 9 stream rows; chunks of 128 rows, launches of two; tiles of 128 channels; parts of 1024 k.
TILE_CASES = [(T, hc, d, odd) for T, hc in ((1, 4), (2, 4), (3, 4), (8, 1), (5, 2)) for d, odd in
              ((16, True), (64, False), (128, True), (272, False))]
TILE_CASES += [(1, 4, 1040, False), (3, 2, 2064, True), (33, 4, 64, True), (65, 4, 64, False),
               (300, 1, 32, True), (31, 2, 144, False), (100, 2, 32, True)]


@pytest.mark.parametrize("backend", BACKENDS)
@pytest.mark.parametrize("T,hc,d,odd,kind", [(*case, kind) for case in TILE_CASES for kind in
                                             ("bfloat16", "fp8", "int8")] + [(1, 4, 4096, False, "bfloat16")])
def test_weights_on_16_bytes(backend, T, hc, d, odd, kind):
    tensors, keywords = make_inputs(T, hc, d, torch.bfloat16, kind)
    double, k = in_double(tensors, keywords)
    exact, plain = ref.nextn_fuse_hidden(*double, **k), ref.nextn_fuse_hidden(*tensors, **keywords)
    out = Guarded((T, hc, d), torch.bfloat16, offset=1 if odd else 0)
    rows = [strided(t) for t in tensors[:2]] if odd else tensors[:2]
    with use_backend(backend):
        ops.nextn_fuse_hidden(*rows, *tensors[2:], **keywords, out=out.tensor)
    close(out.tensor, exact, plain, f"nextn_fuse_hidden {kind}")
    out.check()


HALF = [b for b in BACKENDS if b == "reference" or "nextn_fuse_hidden" in _C.backends()[b].get("float16", ())]


@pytest.mark.skipif(not HALF, reason="no backend under test takes float16")
@pytest.mark.parametrize("backend", HALF)
@pytest.mark.parametrize("rows,kind", [("float16", kind) for kind in (*KINDS, "float16")] +
                         [(rows, "float16") for rows in ("float32", "bfloat16")])
@pytest.mark.parametrize("T,hc,d", [(1, 4, 64), (3, 2, 136), (17, 4, 264), (2, 1, 1040)])
def test_float16_rows_and_weights(backend, rows, kind, T, hc, d):
    tensors, keywords = make_inputs(T, hc, d, getattr(torch, rows), kind)
    double, k = in_double(tensors, keywords)
    exact, plain = ref.nextn_fuse_hidden(*double, **k), ref.nextn_fuse_hidden(*tensors, **keywords)
    out = Guarded((T, hc, d), tensors[0].dtype)
    with use_backend(backend):
        ops.nextn_fuse_hidden(*(t if t.dtype == torch.float8_e4m3fn else strided(t) for t in tensors), **keywords,
                              out=out.tensor)
    close(out.tensor, exact, plain, f"nextn_fuse_hidden {rows} {kind}")
    out.check()


@pytest.mark.parametrize("backend", [b for b in BACKENDS if b != "reference"])  # torch tiles by the batch
@pytest.mark.parametrize("kind", KINDS)
def test_a24_bits_of_a_row_in_any_batch(backend, kind):
    d = 1040 if kind == "fp8_e8m0" else 144
    (embeds, hidden, *rest), keywords = make_inputs(70, 4, d, torch.bfloat16, kind)
    with use_backend(backend):
        whole = ops.nextn_fuse_hidden(embeds, hidden, *rest, **keywords)
        assert torch.equal(ops.nextn_fuse_hidden(embeds, hidden, *rest, **keywords), whole)
        for a, b in ((0, 1), (69, 70), (1, 3), (31, 34), (64, 70)):
            assert torch.equal(ops.nextn_fuse_hidden(embeds[a:b], hidden[a:b], *rest, **keywords), whole[a:b])


@pytest.mark.parametrize("backend", BACKENDS)
def test_a3_one_embedding_over_all_streams(backend):
    """e_proj(enorm(emb))[:, None] + h_proj(hnorm(x)) with x [3, 4, 64]; hnorm is per stream, not over hc*d."""
    tensors, keywords = make_inputs(3, 4, 64, torch.float32, "float32")
    embeds, hidden, enorm, hnorm, e_proj, h_proj = (t.double() for t in tensors)

    def norm(x, w):
        return x / (x.pow(2).mean(-1, keepdim=True) + 1e-6).sqrt() * w

    x = hidden.view(3, 4, 64)
    want = torch.stack([norm(embeds, enorm) @ e_proj.T + norm(x[:, i], hnorm) @ h_proj.T for i in range(4)], 1)
    with use_backend(backend):
        got = ops.nextn_fuse_hidden(*tensors, **keywords)
    assert got.shape == (3, 4, 64) and torch.allclose(got.double(), want, rtol=1e-5, atol=1e-5)
    squeezed = list(tensors)
    squeezed[1] = tensors[1][:, :64]
    with use_backend(backend), pytest.raises(ValueError, match=(
            r"^nextn_fuse_hidden: hidden: expected shape \[T, hc\*d\] = \[3, 256\] for the 4 streams of out, "
            r"got \[3, 64\]")):
        ops.nextn_fuse_hidden(*squeezed, **keywords, out=torch.empty(3, 4, 64))
    squeezed[1] = torch.zeros(3, 192)
    with use_backend(backend), pytest.raises(ValueError, match=(
            r"hidden: expected shape \[T, hc\*d\] with hc 1, 2 or 4: \[3, 64\], \[3, 128\] or \[3, 256\], "
            r"got \[3, 192\]")):
        ops.nextn_fuse_hidden(*squeezed, **keywords)


@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16], ids=str)
def test_rows_do_not_depend_on_the_batch_or_on_threads(dtype, kind):
    (embeds, hidden, *rest), keywords = make_inputs(19, 4, 520, dtype, kind)  # work for several threads
    whole = ops.nextn_fuse_hidden(embeds, hidden, *rest, **keywords)
    for a, b in ((0, 1), (3, 5), (15, 19), (18, 19), (1, 18)):
        assert torch.equal(ops.nextn_fuse_hidden(embeds[a:b], hidden[a:b], *rest, **keywords), whole[a:b])
    threads = _C.get_num_threads()
    try:
        _C.set_num_threads(5 - min(threads, 4))
        assert torch.equal(ops.nextn_fuse_hidden(embeds, hidden, *rest, **keywords), whole)
    finally:
        _C.set_num_threads(threads)


@pytest.mark.parametrize("backend", BACKENDS)
@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16], ids=str)
def test_every_e4m3_code_and_extreme_scales(backend, dtype):
    """Row n of h_proj holds code n once, so that out is that value; scale bytes from 2^-127 to 255, which is NaN."""
    d = 256
    codes = torch.zeros(d, d, dtype=torch.uint8)
    codes[torch.arange(256), torch.arange(256)] = torch.arange(256, dtype=torch.uint8)
    weight = codes.view(torch.float8_e4m3fn)
    embeds, hidden = torch.zeros(1, d, dtype=dtype), torch.ones(1, d, dtype=dtype)
    for byte in (0, 1, 127, 200, 255):
        scale = torch.full((2, 2), byte, dtype=torch.uint8)
        args = (embeds, hidden, torch.ones(d), torch.ones(d), torch.zeros(d, d).to(torch.float8_e4m3fn), weight)
        kw = dict(eps=0.0, e_proj_scale=torch.full((2, 2), 127, dtype=torch.uint8), h_proj_scale=scale)
        with use_backend(backend):
            got = ops.nextn_fuse_hidden(embeds + 1, *args[1:], **kw)[0, 0]
        if byte == 255:
            assert torch.isnan(got).all()
            continue
        want = (weight.double().diagonal() * 2.0 ** (byte - 127)).to(dtype)
        assert torch.equal(got.isnan(), want.isnan()) and torch.equal(got.nan_to_num(), want.nan_to_num())


@pytest.mark.parametrize("backend", BACKENDS)
@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16], ids=str)
def test_nan_stays_in_its_row(backend, dtype):
    (embeds, hidden, *rest), keywords = make_inputs(9, 4, 64, dtype, "bfloat16")
    embeds[2, 5], hidden[6, 64 + 3] = float("nan"), float("inf")
    with use_backend(backend):
        out = ops.nextn_fuse_hidden(embeds, hidden, *rest, **keywords)
    nan = torch.isnan(out).all(-1)
    want = torch.zeros(9, 4, dtype=torch.bool)
    want[2], want[6, 1] = True, True
    assert torch.equal(nan, want) and torch.isfinite(out[~want]).all()


def scales(d=16):
    return torch.ones(d, d).to(torch.float8_e4m3fn), torch.full((1, 1), 127, dtype=torch.uint8)


@pytest.mark.parametrize("change,message", [
    (dict(embeds=torch.zeros(3, 12)), r"embeds: expected a width d that is a multiple of 8 from 8 to 32768, got 12"),
    (dict(embeds=torch.zeros(3, 16).double()), r"embeds: expected dtype float32 or bfloat16"),
    (dict(hidden=torch.zeros(2, 64)), r"hidden: expected shape \[T=3, hc\*d\], got \[2, 64\]"),
    (dict(hidden=torch.zeros(3, 64).bfloat16()), r"hidden: expected dtype float32, got bfloat16"),
    (dict(enorm_weight=torch.zeros(64)), r"enorm_weight: expected shape \[d=16\], got \[64\]"),
    (dict(hnorm_weight=torch.zeros(64)), r"hnorm_weight: expected shape \[d=16\], got \[64\]"),
    (dict(e_proj=torch.zeros(16, 8)), r"e_proj: expected shape \[d=16, d=16\], got \[16, 8\]"),
    (dict(e_proj=torch.zeros(16, 16).double()),
     r"e_proj: expected dtype float32 or bfloat16 or float16 or float8_e4m3fn or int8"),
    (dict(h_proj=torch.zeros(16, 16).bfloat16()), r"h_proj: expected dtype float32, got bfloat16"),
    (dict(e_proj_scale=torch.zeros(16)), r"e_proj_scale: expected None for float32 weights, got a tensor"),
    (dict(e_proj=scales()[0], h_proj=scales()[0]), r"e_proj_scale: expected a tensor, got NULL"),
    (dict(e_proj=scales()[0], h_proj=scales()[0], e_proj_scale=scales()[1]), r"h_proj_scale: expected a tensor"),
    (dict(e_proj=scales()[0], h_proj=scales()[0], e_proj_scale=torch.ones(1, 1)),
     r"e_proj_scale: expected dtype float8_e8m0fnu or uint8, got float32"),
    (dict(e_proj=scales()[0], h_proj=scales()[0], e_proj_scale=scales()[1].expand(2, 1)),
     r"e_proj_scale: expected shape \[ceil\(d/128\)=1, ceil\(d/128\)=1\], got \[2, 1\]"),
    (dict(e_proj=torch.zeros(16, 16).char(), h_proj=torch.zeros(16, 16).char(),
          e_proj_scale=torch.zeros(16).bfloat16()),
     r"e_proj_scale: expected dtype float32, got bfloat16"),
    (dict(out=torch.zeros(3, 4, 16).bfloat16()), r"out: expected dtype float32, got bfloat16"),
    (dict(out=torch.zeros(3, 16)), r"out: expected shape \[T=3, hc, d=16\], got \[3, 16\]"),
    (dict(eps=-1.0), r"eps: expected a value in \[0, 1\), got -1"),
])
def test_refuses(change, message):
    args = dict(embeds=torch.zeros(3, 16), hidden=torch.zeros(3, 64), enorm_weight=torch.zeros(16),
                hnorm_weight=torch.zeros(16), e_proj=torch.zeros(16, 16), h_proj=torch.zeros(16, 16), eps=1e-6) | change
    names = ("embeds", "hidden", "enorm_weight", "hnorm_weight", "e_proj", "h_proj")
    tensors = [args.pop(name) for name in names]
    with pytest.raises(ValueError, match=r"^nextn_fuse_hidden: " + message):
        ops.nextn_fuse_hidden(*tensors, **args)


def test_refuses_output_over_input():
    hidden = torch.zeros(3, 64)
    with pytest.raises(ValueError, match="nextn_fuse_hidden: out: expected memory apart from the other arguments"):
        ops.nextn_fuse_hidden(torch.zeros(3, 16), hidden, torch.zeros(16), torch.zeros(16), torch.zeros(16, 16),
                              torch.zeros(16, 16), eps=1e-6, out=hidden.view(3, 4, 16))


def test_numpy_without_copy():
    tensors, keywords = make_inputs(3, 4, 24, torch.float32, "int8")
    arrays = {k: v.numpy() if torch.is_tensor(v) else v for k, v in keywords.items()}
    tensors = (*tensors[:2], tensors[2].float(), *tensors[3:])
    out = ops.nextn_fuse_hidden(*(t.numpy() for t in tensors), **arrays)
    assert torch.equal(torch.from_numpy(out), ops.nextn_fuse_hidden(*tensors, **keywords))
