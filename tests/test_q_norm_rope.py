# SPDX-License-Identifier: Apache-2.0
import pytest
import torch
from util import BACKENDS, UNCHECKED, Guarded, bits, check_close, rng, strided

from dsv4spec import _C, ops, use_backend
from dsv4spec.models.rope import rope_table
from dsv4spec.reference import attention as ref

EPS = 1e-6
CASES = [(T, H, D, R) for T in (0, 1, 5) for H in (1, 3) for D, R in ((32, 2), (48, 18), (64, 64), (144, 30))]
CASES += [(3, 64, 512, 64), (2, 0, 64, 32)]


def make_inputs(T, H, D, R, dtype):
    g = rng("q_norm_rope", T, H, D, R, dtype)
    q = torch.randn(T, H, D, generator=g).to(dtype)
    return q, rope_table(100, R, 10000.0), torch.randint(0, 100, (T,), generator=g)


@pytest.mark.parametrize("backend", BACKENDS)
@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16], ids=str)
@pytest.mark.parametrize("T,H,D,R", CASES)
def test_matches_reference(backend, dtype, T, H, D, R):
    q, table, positions = make_inputs(T, H, D, R, dtype)
    exact = ref.q_norm_rope(q.double(), table, positions, eps=EPS)
    plain = ref.q_norm_rope(q, table, positions, eps=EPS)
    out = Guarded((T, H, D), dtype)
    with use_backend(backend):
        ops.q_norm_rope(strided(q), strided(table), positions, eps=EPS, out=out.tensor)
    check_close(out.tensor, exact, plain, op="q_norm_rope")
    out.check()


@pytest.mark.parametrize("backend", BACKENDS)
def test_by_hand(backend):
    """Mean square 2, so the norm halves the square: the pair (2i, 2i+1) turns, not (i, i + R/2)."""
    q = torch.zeros(1, 1, 32)
    q[0, 0, [0, 28, 31]] = torch.tensor([1., 2., 3.]) * 2  # mean of squares: 56 / 32
    cos_sin = torch.tensor([[1., 1., 0., 0.], [.6, .8, .8, .6]])  # R = 4: angles of the pairs (28, 29) and (30, 31)
    with use_backend(backend):
        out = ops.q_norm_rope(q, cos_sin, torch.tensor([1]), eps=0.25)[0, 0]  # sqrt(1.75 + 0.25)
    want = torch.zeros(32)
    want[0], want[28], want[29], want[30], want[31] = 2, 4 * .6, 4 * .8, -6 * .6, 6 * .8
    assert torch.allclose(out, want / 2 ** .5, atol=1e-6)


@pytest.mark.parametrize("backend", BACKENDS)
@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16, torch.float16], ids=str)
@pytest.mark.parametrize("value", [float("inf"), float("-inf"), float("nan")], ids=str)
@pytest.mark.parametrize("D,R", [(32, 2), (48, 18), (64, 64), (64, 26), (144, 30)])
def test_what_is_no_number_stays_where_the_reference_has_it(backend, dtype, value, D, R):
    """A channel before the turned ones has no partner; of a turned pair both are NaN. One head a channel."""
    if dtype == torch.float16 and backend != "reference" and "q_norm_rope" not in _C.backends()[backend]["float16"]:
        pytest.skip(f"{backend} takes no float16")
    q = torch.randn(1, D, D, generator=rng("no number", D, R)).to(dtype)
    q[0].diagonal().fill_(value)
    table, positions = rope_table(9, R, 10000.0), torch.tensor([7])
    want = ref.q_norm_rope(q, table, positions, eps=EPS)
    with use_backend(backend):
        got = ops.q_norm_rope(q, table, positions, eps=EPS)
    assert torch.equal(got.isnan(), want.isnan())
    assert torch.equal(got.nan_to_num(0), want.nan_to_num(0))


@pytest.mark.parametrize("backend", BACKENDS)
@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16], ids=str)
def test_a23_slice_of_a_fused_projection(backend, dtype):
    g = rng("fused", dtype)
    fused = torch.randn(5, 7 + 3 * 64 + 64, generator=g).to(dtype)
    q = fused[:, 7:7 + 3 * 64].unflatten(1, (3, 64))  # one element off any alignment, pitch of the whole projection
    table, positions = rope_table(9, 16, 10000.0), torch.tensor([8, 0, 3, 3, 1])
    with use_backend(backend):
        assert torch.equal(ops.q_norm_rope(q, table, positions, eps=EPS),
                           ops.q_norm_rope(q.contiguous(), table, positions, eps=EPS))


@pytest.mark.parametrize("backend", BACKENDS)
def test_padding_rows_are_not_read(backend):
    q, table, positions = make_inputs(5, 3, 64, 64, torch.float32)
    with use_backend(backend):
        want = ops.q_norm_rope(q, table, positions, eps=EPS)
        positions[[1, 4]] = -1
        q[[1, 4]] = float("nan")
        got = ops.q_norm_rope(q, table, positions, eps=EPS)
        given = torch.full_like(q, 7.0)
        ops.q_norm_rope(q, table, positions, eps=EPS, out=given)
    for out, pad in ((got, 0.0), (given, 7.0)):
        assert torch.equal(out[[0, 2, 3]], want[[0, 2, 3]])
        assert (out[[1, 4]] == pad).all()


@pytest.mark.parametrize("backend", [b for b in BACKENDS if b != "reference"])
@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16], ids=str)
def test_in_place_repeatable_and_alone(backend, dtype):
    q, table, positions = make_inputs(5, 64, 512, 64, dtype)
    with use_backend(backend):
        want = ops.q_norm_rope(q, table, positions, eps=EPS)
        assert bits(ops.q_norm_rope(q, table, positions, eps=EPS)).equal(bits(want))
        for t in range(5):
            alone = ops.q_norm_rope(q[t:t + 1, 3:5], table, positions[t:t + 1], eps=EPS)
            assert bits(alone).equal(bits(want[t:t + 1, 3:5]))
        assert ops.q_norm_rope(q, table, positions, eps=EPS, out=q) is q
    assert bits(q).equal(bits(want))


@pytest.mark.parametrize("backend", UNCHECKED)
def test_positions_outside_the_table_are_padding(backend):
    q, table, _ = make_inputs(5, 2, 64, 64, torch.float32)
    with use_backend(backend):
        got = ops.q_norm_rope(q, table, torch.tensor([99, 100, -2, 2 ** 62, -2 ** 63]), eps=EPS)
        assert torch.equal(got[:1], ops.q_norm_rope(q[:1], table, torch.tensor([99]), eps=EPS))
    assert (got[1:] == 0).all()


def test_a16_position_past_the_table():
    """A table too short is an error that names the row, never a read past it; -1 marks rows without a position."""
    q, table, _ = make_inputs(4, 2, 64, 64, torch.float32)
    for bad in (100, -2, 2 ** 40):
        out = torch.full_like(q, 7.0)
        with pytest.raises(ValueError, match=rf"^q_norm_rope: positions: expected -1 or a row of cos_sin \[0, 100\) "
                                             rf"in row 2, got {bad}$"):
            ops.q_norm_rope(q, table, torch.tensor([98, 99, bad, 0]), eps=EPS, out=out)
        assert (out == 7.0).all()


@pytest.mark.parametrize("change,message", [
    (dict(q=torch.zeros(3, 2, 46)), "q: expected a head size that is a multiple of 16 from 32 to 512, got 46"),
    (dict(q=torch.zeros(3, 2, 528)), "q: expected a head size that is a multiple of 16 from 32 to 512, got 528"),
    (dict(q=torch.zeros(3, 2, 16)), "q: expected a head size that is a multiple of 16 from 32 to 512, got 16"),
    (dict(q=torch.zeros(3, 64)), r"q: expected shape \[T, H, D\], got \[3, 64\]"),
    (dict(q=torch.zeros(3, 2, 64, dtype=torch.float64)), "q: expected dtype float32 or bfloat16 or float16, got"),
    (dict(q=torch.zeros(3, 64, 2).mT), "q: expected a contiguous innermost dimension, got stride 2"),
    (dict(cos_sin=torch.zeros(9, 66)), "cos_sin: expected an even number of columns from 2 to the head size, got 66"),
    (dict(cos_sin=torch.zeros(9, 15)), "cos_sin: expected an even number of columns from 2 to the head size, got 15"),
    (dict(cos_sin=torch.zeros(9, 0)), "cos_sin: expected an even number of columns from 2 to the head size, got 0"),
    (dict(cos_sin=torch.zeros(9, 16).bfloat16()), "cos_sin: expected dtype float32, got bfloat16"),
    (dict(positions=torch.zeros(3, dtype=torch.int32)), "positions: expected dtype int64, got int32"),
    (dict(positions=torch.zeros(4, dtype=torch.int64)), r"positions: expected shape \[T=3\], got \[4\]"),
    (dict(eps=-1.0), "eps: expected a finite number >= 0, got -1"),
    (dict(out=torch.zeros(3, 2, 64).bfloat16()), "out: expected dtype float32, got bfloat16"),
])
@pytest.mark.parametrize("backend", BACKENDS)
def test_refuses(backend, change, message):
    args = dict(q=torch.zeros(3, 2, 64), cos_sin=torch.zeros(9, 16), positions=torch.zeros(3, dtype=torch.int64),
                eps=EPS, out=None) | change
    with use_backend(backend), pytest.raises(ValueError, match="^q_norm_rope: " + message):
        ops.q_norm_rope(args.pop("q"), args.pop("cos_sin"), args.pop("positions"), **args)
