# SPDX-License-Identifier: Apache-2.0
import pytest
import torch

from dsv4spec import ops
from util import BACKENDS, Guarded, check_close, rng, strided


def with_kernel(backend):
    if backend != "reference" and "moe_experts" not in ops._dispatch.backend_ops(backend):
        pytest.skip(f"{backend} has no moe_experts kernel")
    return ops.use_backend(backend)


def make_inputs(T, d, inter, E, k, dtype, shared=0):
    g = rng("moe", T, d, inter, E, k, shared)

    def randn(*shape):
        return torch.randn(shape, generator=g).to(dtype)

    ids = torch.stack([torch.randperm(E, generator=g)[:k] for _ in range(T)]) if T else torch.zeros(
        0, k, dtype=torch.int64)
    args = dict(x=randn(T, d), topk_ids=ids, topk_weights=torch.rand(T, k, generator=g),
                w13=randn(E, 2 * inter, d) / d ** .5,
                w2=randn(E, d, inter) / inter ** .5)
    keys = dict(shared_w13=randn(2 * shared, d) / d ** .5, shared_w2=randn(d, shared) / shared ** .5) if shared else {}
    return args, keys


def expert(x, w13, w2, limit):
    g, u = (w13 @ x).chunk(2)
    g, u = g.clamp(max=limit), u.clamp(-limit, limit)
    return w2 @ (g / (1 + torch.exp(-g)) * u)


def plain(args, keys, limit, dtype):
    """By the formula, token by token, in ``dtype``."""
    a = {n: t if n == "topk_ids" else t.to(dtype) for n, t in {**args, **keys}.items()}
    out = torch.zeros_like(a["x"])
    for t in range(len(out)):
        for e, weight in zip(a["topk_ids"][t].tolist(), a["topk_weights"][t]):
            if e >= 0:
                out[t] += weight * expert(a["x"][t], a["w13"][e], a["w2"][e], limit)
        if keys:
            out[t] += expert(a["x"][t], a["shared_w13"], a["shared_w2"], limit)
    return out


CASES = [(1, 128, 48, 8, 2, 48), (4, 128, 48, 8, 2, 48), (33, 64, 32, 6, 3, 0),
         (5, 72, 17, 4, 1, 31), (7, 40, 16, 3, 3, 64),
         (64, 32, 16, 16, 2, 16)]


@pytest.mark.parametrize("backend", BACKENDS)
@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
@pytest.mark.parametrize("case", CASES)
@pytest.mark.parametrize("limit", [10.0, 0.7])
def test_matches_formula(backend, dtype, case, limit):
    *sizes, shared = case
    args, keys = make_inputs(*sizes, dtype, shared)
    out = Guarded(args["x"].shape, dtype)
    given = {n: strided(t) if n in ("x", "w13", "w2") else t for n, t in args.items()}
    with with_kernel(backend):
        ops.moe_experts(*given.values(), limit=limit, **keys, out=out.tensor)
        again = ops.moe_experts(*given.values(), limit=limit, **keys)
        packed = ops.moe_experts(*args.values(), limit=limit, **keys)
    check_close(out.tensor, plain(args, keys, limit, torch.float64), plain(args, keys, limit, torch.float32),
                op="moe_experts", factor=4)
    assert torch.equal(out.tensor, again)
    if backend != "reference":  # torch's products may add up in another order for other strides
        assert torch.equal(out.tensor, packed)
    out.check()


@pytest.mark.parametrize("backend", BACKENDS)
@pytest.mark.parametrize("case", CASES)
def test_bf16_weights_under_fp32_activations(backend, case):
    """The same result, to the bit, as with the same weights widened."""
    *sizes, shared = case
    args, keys = make_inputs(*sizes, torch.float32, shared)
    narrow = {n: t.bfloat16() for n, t in {**args, **keys}.items() if "w" in n and n != "topk_weights"}
    wide = {n: t.float() for n, t in narrow.items()}
    with with_kernel(backend):
        got = ops.moe_experts(**{**args, **keys, **narrow}, limit=10.0)
        same = ops.moe_experts(**{**args, **keys, **wide}, limit=10.0)
    assert got.dtype == torch.float32 and torch.equal(got, same)
    exact = {**args, **{n: t for n, t in wide.items() if n in args}}
    check_close(got, plain(exact, {n: wide[n] for n in keys}, 10.0, torch.float64),
                plain(exact, {n: wide[n] for n in keys}, 10.0, torch.float32), op="moe_experts", factor=4)


@pytest.mark.parametrize("backend", BACKENDS)
@pytest.mark.parametrize("T", [1, 3, 200])
def test_skips_and_unread_weights(backend, T):
    """-1 skips; experts that nobody chose hold NaN; int32 ids."""
    args, keys = make_inputs(T, 64, 32, 6, 2, torch.float32)
    args["topk_ids"] = (args["topk_ids"] % 3).int()
    args["topk_ids"][:, 1] = -1
    args["topk_weights"][:, 1] = torch.nan
    args["w13"][3:], args["w2"][3:] = torch.nan, torch.nan
    with with_kernel(backend):
        got = ops.moe_experts(*args.values(), limit=10.0)
        none = ops.moe_experts(args["x"], torch.full_like(args["topk_ids"], -1), *list(args.values())[2:], limit=10.0)
    check_close(got, plain(args, keys, 10.0, torch.float64), op="moe_experts", floor=2e-6)
    assert (none == 0).all()


@pytest.mark.parametrize("backend", BACKENDS)
def test_a_row_is_the_same_in_every_batch(backend):
    args, keys = make_inputs(9, 64, 32, 6, 2, torch.float32, 32)
    with with_kernel(backend):
        together = ops.moe_experts(*args.values(), limit=10.0, **keys)
        rows = [ops.moe_experts(args["x"][i:i + 1], args["topk_ids"][i:i + 1], args["topk_weights"][i:i + 1],
                                args["w13"], args["w2"], limit=10.0, **keys) for i in range(9)]
    if backend == "reference":  # torch's products depend on the shape
        check_close(together, torch.cat(rows).double(), op="moe_experts", floor=2e-6)
    else:
        assert torch.equal(together, torch.cat(rows))


@pytest.mark.parametrize("backend", BACKENDS)
def test_empty(backend):
    args, keys = make_inputs(0, 64, 32, 6, 2, torch.bfloat16, 32)
    with with_kernel(backend):
        out = ops.moe_experts(*args.values(), limit=10.0, **keys)
    assert out.shape == (0, 64) and out.dtype == torch.bfloat16


@pytest.mark.parametrize("change,message", [
    (dict(x=torch.zeros(2, 32)), r"w13: expected shape \[E=4, 2\*inter=32, d=32\], got \[4, 32, 64\]"),
    (dict(topk_ids=torch.zeros(2, 2)), "topk_ids: expected dtype int32 or int64, got float32"),
    (dict(topk_weights=torch.zeros(2, 3)), r"topk_weights: expected shape \[T=2, k=2\], got \[2, 3\]"),
    (dict(topk_weights=torch.zeros(2, 2).bfloat16()), "topk_weights: expected dtype float32, got bfloat16"),
    (dict(w13=torch.zeros(4, 31, 64)), r"w13: expected an even number of rows \(gate, then up\), got 31"),
    (dict(w13=torch.zeros(4, 32, 64).int()), "w13: expected dtype float32 or bfloat16, got int32"),
    (dict(w13=torch.zeros(4, 32, 64).bfloat16()), "w2: expected dtype bfloat16, got float32"),
    (dict(x=torch.zeros(2, 64).bfloat16()), "w13: expected dtype bfloat16, got float32"),
    (dict(shared_w13=torch.zeros(32, 64).bfloat16(), shared_w2=torch.zeros(64, 16).bfloat16()),
     "shared_w13: expected dtype float32, got bfloat16"),
    (dict(w2=torch.zeros(4, 64, 15)), r"w2: expected shape \[E=4, d=64, 16\], got \[4, 64, 15\]"),
    (dict(shared_w2=torch.zeros(64, 8)), "shared_w2: expected None exactly if shared_w13 is, got a tensor"),
    (dict(shared_w13=torch.zeros(16, 64)), "shared_w2: expected None exactly if shared_w13 is, got None"),
    (dict(shared_w13=torch.zeros(15, 64), shared_w2=torch.zeros(64, 7)),
     "shared_w13: expected an even number of rows"),
    (dict(shared_w13=torch.zeros(16, 64), shared_w2=torch.zeros(64, 9)), r"shared_w2: expected shape \[d=64, 8\]"),
    (dict(limit=0.0), "limit: expected a number > 0, got 0"),
])
def test_refuses(change, message):
    args, _ = make_inputs(2, 64, 16, 4, 2, torch.float32)
    args = {**args, "limit": 10.0, **change}
    positional = [args.pop(n) for n in ("x", "topk_ids", "topk_weights", "w13", "w2")]
    with ops.use_backend("reference"), pytest.raises(ValueError, match="moe_experts: " + message):
        ops.moe_experts(*positional, **args)


def test_cpu_refuses_experts_that_do_not_exist():
    args, _ = make_inputs(2, 64, 16, 4, 2, torch.float32)
    out = torch.full((2, 64), torch.nan)
    for wrong in (4, -2):
        args["topk_ids"][1, 0] = wrong
        message = rf"topk_ids: expected -1 or an expert in \[0, 4\) in row 1, got {wrong}"
        with ops.use_backend("cpu"), pytest.raises(ValueError, match=message):
            ops.moe_experts(*args.values(), limit=10.0, out=out)
    assert out.isnan().all()
