# SPDX-License-Identifier: Apache-2.0
import pytest
import torch
import torch.nn.functional as F

from dsv4spec import ops
from dsv4spec.reference import dense as ref
from util import BACKENDS, Guarded, check_close, rng, strided


def with_kernel(backend):
    if backend != "reference" and "route_experts" not in ops._dispatch.backend_ops(backend):
        pytest.skip(f"{backend} has no route_experts kernel")
    return ops.use_backend(backend)


def make_inputs(T, d, E, k, dtype, gate_dtype=torch.float32):
    g = rng("route", T, d, E, k)
    return (torch.randn(T, d, generator=g).to(dtype), (torch.randn(d, E, generator=g) / max(d, 1) ** .5).to(gate_dtype),
            torch.randn(E, generator=g), torch.stack([torch.randperm(E, generator=g)[:k] for _ in range(11)]),
            torch.randint(0, 11, (T,), generator=g))


CASES = [(1, 128, 8, 2), (4, 128, 8, 2), (5, 37, 17, 3), (33, 64, 256, 6), (3, 20, 4, 4), (2, 16, 1, 1),
         (70, 1100, 9, 3), (9, 2100, 133, 5), (3, 2100, 133, 5), (2, 0, 3, 2)]  # sums in parts; weights fetched ahead; no sum


@pytest.mark.parametrize("backend", BACKENDS)
@pytest.mark.parametrize("dtypes", [(torch.float32, torch.float32), (torch.bfloat16, torch.float32),
                                    (torch.float32, torch.bfloat16)], ids=str)
@pytest.mark.parametrize("hashed", [False, True])
@pytest.mark.parametrize("case", CASES, ids=str)
def test_matches_reference(backend, dtypes, hashed, case):
    T, _, _, k = case
    x, gate, bias, table, ids = make_inputs(*case, *dtypes)
    how = dict(table=table, ids=ids) if hashed else dict(bias=bias)
    out = Guarded((T, k), torch.int32), Guarded((T, k), torch.float32)
    with with_kernel(backend):
        ops.route_experts(strided(x), strided(gate), topk=k, scaling=1.5, **how, out=(out[0].tensor, out[1].tensor))
        chosen, weights = ops.route_experts(x, gate, topk=k, scaling=1.5, **how)
    want, exact = ref.route_experts(x.double(), gate.double(), topk=k, scaling=1.5, **how)
    _, plain = ref.route_experts(x, gate, topk=k, scaling=1.5, **how)
    assert torch.equal(chosen, want) and torch.equal(chosen, out[0].tensor)
    check_close(weights, exact, plain, op="route_experts", factor=4)
    check_close(out[1].tensor, exact, plain, op="route_experts", factor=4)
    assert weights.sum(1).sub(1.5).abs().max() < 1e-6
    for part in out:
        part.check()


@pytest.mark.parametrize("backend", BACKENDS)
def test_ties_and_nan(backend):
    """Equal: the lower number first. NaN counts as the largest. The bias chooses, and is no part of a weight."""
    gate = torch.eye(5)
    x = torch.tensor([[1., 1., 1., 0., 2.], [0., 0., 0., 0., 0.]])
    with with_kernel(backend):
        chosen, weights = ops.route_experts(x, gate, topk=3, scaling=1.0, bias=torch.zeros(5))
        pushed, same = ops.route_experts(x[:1], gate, topk=1, scaling=2.0, bias=torch.tensor([0., 0., 0., 9., 0.]))
        odd, _ = ops.route_experts(torch.tensor([[1., torch.nan, 3., 0., 2.]]), gate, topk=1, scaling=1.0,
                                   bias=torch.zeros(5))
    assert chosen.tolist() == [[4, 0, 1], [0, 1, 2]]
    assert torch.allclose(weights[1], torch.tensor(1 / 3))
    assert pushed.tolist() == [[3]] and torch.allclose(same, torch.tensor(2.0))
    assert odd.tolist() == [[0]]  # x * 0 is NaN in every product: all scores are NaN


@pytest.mark.parametrize("backend", BACKENDS)
def test_scores_far_from_zero(backend):
    z = torch.tensor([[-40., -20., -5., -1e-3, -1e-20, 0., 1e-20, 1e-3, 0.7, 5., 20., 40., 100., 1e4, 1e20, 1e30, 3e38]])
    exact = F.softplus(z.double(), threshold=100).sqrt()
    with with_kernel(backend):
        for i in range(z.shape[1]):  # beside one of score 1, so that neither drowns in the sum
            chosen, weights = ops.route_experts(torch.ones(1, 1), torch.tensor([[z[0, i], 0.5413248546]]), topk=2, scaling=1.0,
                                                bias=torch.zeros(2))
            share = weights[0, chosen[0].tolist().index(0)].double()
            assert torch.allclose(share, exact[0, i] / (exact[0, i] + 1), rtol=4e-7), (z[0, i], share)


@pytest.mark.parametrize("backend", [b for b in BACKENDS if b != "reference"])
@pytest.mark.parametrize("T,d,E", [(9, 65, 33), (70, 2100, 133)])
def test_a_row_is_the_same_in_every_batch(backend, T, d, E):
    x, gate, bias, _, _ = make_inputs(T, d, E, 5, torch.float32)
    with with_kernel(backend):
        together = ops.route_experts(x, gate, topk=5, scaling=1.5, bias=bias)
        for i in (*range(9), T - 1):
            alone = ops.route_experts(x[i:i + 1], gate, topk=5, scaling=1.5, bias=bias)
            assert all(torch.equal(a[0], b[i]) for a, b in zip(alone, together))


@pytest.mark.parametrize("backend", BACKENDS)
def test_empty(backend):
    with with_kernel(backend):
        chosen, weights = ops.route_experts(torch.zeros(0, 4), torch.zeros(4, 3), topk=2, scaling=1.0, bias=torch.zeros(3))
    assert chosen.shape == weights.shape == (0, 2) and chosen.dtype == torch.int32 and weights.dtype == torch.float32


@pytest.mark.parametrize("change,message", [
    (dict(gate=torch.zeros(3, 8)), r"gate: expected shape \[d=4, E\], got \[3, 8\]"),
    (dict(x=torch.zeros(2, 4).double()), "x: expected dtype float32 or bfloat16, got"),
    (dict(bias=torch.zeros(7)), r"bias: expected shape \[E=8\], got \[7\]"),
    (dict(bias=None), "bias: expected None exactly if there is a table, got None"),
    (dict(table=torch.zeros(5, 2, dtype=torch.int64)), "bias: expected None exactly if there is a table, got a tensor"),
    (dict(bias=None, table=torch.zeros(5, 2, dtype=torch.int64)), "ids: expected None exactly if table is, got None"),
    (dict(ids=torch.zeros(2, dtype=torch.int64)), "ids: expected None exactly if table is, got a tensor"),
    (dict(bias=None, table=torch.zeros(5, 3, dtype=torch.int64), ids=torch.zeros(2, dtype=torch.int64)),
     r"topk_ids: expected shape \[T=2, k=3\], got \[2, 2\]"),
    (dict(topk=9), "topk_ids: expected at most as many columns as there are experts, got 9"),
    (dict(topk=-1), "topk: expected at least 0, got -1"),
    (dict(scaling=0.0), "scaling: expected a finite number > 0, got 0"),
])
def test_refuses(change, message):
    args = dict(x=torch.zeros(2, 4), gate=torch.zeros(4, 8), topk=2, scaling=1.0, bias=torch.zeros(8)) | change
    with ops.use_backend("reference"), pytest.raises(ValueError, match="^route_experts: " + message):
        ops.route_experts(args.pop("x"), args.pop("gate"), **args)


def test_cpu_refuses_rows_and_experts_that_do_not_exist():
    x, gate, table, ids = torch.zeros(2, 4), torch.zeros(4, 8), torch.zeros(5, 2).int(), torch.tensor([4, 0])
    out = torch.full((2, 2), 7, dtype=torch.int32), torch.full((2, 2), 7.0)
    table[3, 1] = 8
    with ops.use_backend("cpu"):
        for row in (5, -1):
            with pytest.raises(ValueError, match=rf"ids: expected a row of table \[0, 5\) in row 1, got {row}"):
                ops.route_experts(x, gate, topk=2, scaling=1.0, table=table, ids=torch.tensor([4, row]), out=out)
        with pytest.raises(ValueError, match=r"table: expected an expert in \[0, 8\) in row 3, got 8"):
            ops.route_experts(x, gate, topk=2, scaling=1.0, table=table, ids=torch.tensor([4, 3]), out=out)
    assert (out[0] == 7).all() and (out[1] == 7).all()
