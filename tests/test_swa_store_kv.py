# SPDX-License-Identifier: Apache-2.0
import pytest
import torch
from util import BACKENDS, UNCHECKED, Guarded, bits, check_close, rng, strided

from dsv4spec import ops, use_backend
from dsv4spec.models.rope import rope_table
from dsv4spec.reference import attention as ref

EPS = 1e-6
CASES = [(T, D, R, page) for T in (0, 1, 5) for D, R in ((32, 2), (48, 18), (144, 30)) for page in (4, 12)]
CASES += [(9, 512, 64, 64)]


def make_inputs(T, D, R, page, dtype):
    g = rng("swa_store_kv", T, D, R, page, dtype)
    kv = torch.randn(T, D, generator=g).to(dtype)
    weight = torch.randn(D, generator=g)
    slots = torch.randperm(3 * page, generator=g)[:T]
    pages = torch.randn(3, page, D, generator=g).to(dtype)
    return [kv, weight, rope_table(100, R, 10000.0), torch.randint(0, 100, (T,), generator=g), slots, pages]


@pytest.mark.parametrize("backend", BACKENDS)
@pytest.mark.parametrize("weight_dtype", [torch.float32, torch.bfloat16], ids=str)
@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16], ids=str)
@pytest.mark.parametrize("T,D,R,page", CASES)
def test_matches_reference(backend, dtype, weight_dtype, T, D, R, page):
    kv, weight, table, positions, slots, pages = make_inputs(T, D, R, page, dtype)
    weight = weight.to(weight_dtype)
    exact, plain = pages.double(), pages.clone()
    ref.swa_store_kv(kv.double(), weight, table, positions, slots, exact, eps=EPS)
    ref.swa_store_kv(kv, weight, table, positions, slots, plain, eps=EPS)
    got = Guarded(pages.shape, dtype, values=pages)
    with use_backend(backend):
        assert ops.swa_store_kv(strided(kv), weight, strided(table), positions, slots, got.tensor, eps=EPS) is None
    check_close(got.tensor, exact, plain, op="swa_store_kv")
    got.check("kv_pages")
    others = torch.ones(3 * page, dtype=torch.bool)
    others[slots] = False
    assert bits(got.tensor.view(3 * page, D)[others]).equal(bits(pages.view(3 * page, D)[others]))


@pytest.mark.parametrize("backend", BACKENDS)
def test_by_hand(backend):
    """The weight comes before the rotation, and slot 7 of pages of 4 is row 3 of page 1."""
    kv = torch.zeros(1, 32)
    kv[0, [0, 30, 31]] = torch.tensor([4., 4., 0.])  # mean of squares 1
    weight = torch.ones(32)
    weight[0], weight[30] = 3, 5
    cos_sin, pages = torch.tensor([[.6, .8]]), torch.full((2, 4, 32), 9.0)
    with use_backend(backend):
        ops.swa_store_kv(kv, weight, cos_sin, torch.tensor([0]), torch.tensor([7]), pages, eps=0.0)
    want = torch.zeros(32)
    want[0], want[30], want[31] = 12, 20 * .6, 20 * .8
    assert torch.allclose(pages[1, 3], want)
    assert (pages.view(8, 32)[:7] == 9).all()


@pytest.mark.parametrize("backend", BACKENDS)
@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16], ids=str)
def test_a20_padded_rows_leave_every_other_byte(backend, dtype):
    """3 real rows padded to 8: slot -1, NaN data, positions from nowhere. Only three slots of the pool change."""
    kv, weight, table, positions, _, pages = make_inputs(8, 64, 16, 4, dtype)
    slots = torch.tensor([-1, 5, -1, 0, -1, -1, 11, -1])
    real = slots >= 0
    kv[~real], positions[~real] = float("nan"), torch.tensor([-1, 10 ** 12, -5, 100, 3])
    alone = pages.clone()
    pool = Guarded(pages.shape, dtype, values=pages)
    with use_backend(backend):
        ops.swa_store_kv(kv, weight, table, positions, slots, pool.tensor, eps=EPS)
        ops.swa_store_kv(kv[real], weight, table, positions[real], slots[real], alone, eps=EPS)
        before = pool.tensor.clone()
        ops.swa_store_kv(kv, weight, table, positions, torch.full((8,), -1), pool.tensor, eps=EPS)
    assert bits(pool.tensor).equal(bits(alone)) and bits(pool.tensor).equal(bits(before))
    pool.check("kv_pages")
    changed = (pool.tensor != pages).any(dim=-1).flatten().nonzero().flatten().tolist()
    assert changed == [0, 5, 11]


@pytest.mark.parametrize("backend", BACKENDS)
def test_a23_strided_pool_and_fused_projection(backend):
    g = rng("strided pool")
    fused = torch.randn(4, 1 + 64 + 30, generator=g)
    kv, table = fused[:, 1:65], rope_table(9, 16, 10000.0)
    slots, positions, weight = torch.tensor([3, 4, 0, 7]), torch.arange(4), torch.ones(64)
    wide, packed = torch.zeros(2, 4, 3, 64), torch.zeros(2, 4, 64)  # one layer of a pool that interleaves three
    with use_backend(backend):
        ops.swa_store_kv(kv, weight, table, positions, slots, wide[:, :, 1], eps=EPS)
        ops.swa_store_kv(kv.contiguous(), weight, table, positions, slots, packed, eps=EPS)
    assert torch.equal(wide[:, :, 1], packed)
    assert (wide[:, :, ::2] == 0).all()


def test_a16_positions_and_slots_past_the_end():
    """max_len 16, prompt 14, 4 rows: 16 and 17 have slot -1 and no write; with a slot they are refused by name."""
    kv, weight, _, _, _, pages = make_inputs(4, 64, 16, 4, torch.float32)
    table, positions = rope_table(16, 16, 10000.0), torch.arange(14, 18)
    ops.swa_store_kv(kv, weight, table, positions, torch.tensor([1, 2, -1, -1]), pages, eps=EPS)
    before = pages.clone()
    for slots, text in (([1, 2, 3, -1], r"positions: expected a row of cos_sin \[0, 16\) in row 2, got 16"),
                        ([1, 12, -1, -1], r"slots: expected -1 or a slot in \[0, 12\) in row 1, got 12"),
                        ([1, -2, -1, -1], r"slots: expected -1 or a slot in \[0, 12\) in row 1, got -2")):
        with pytest.raises(ValueError, match="^swa_store_kv: " + text):
            ops.swa_store_kv(kv, weight, table, positions, torch.tensor(slots), pages, eps=EPS)
        assert torch.equal(pages, before)


@pytest.mark.parametrize("backend", UNCHECKED)
def test_rows_that_lead_nowhere_are_skipped(backend):
    kv, weight, table, _, _, pages = make_inputs(7, 64, 16, 4, torch.float32)
    slots = torch.tensor([12, -2, 2 ** 62, 3, -2 ** 63, 5, 7])
    positions = torch.tensor([0, 1, 2, 100, 4, -1, 99])
    alone, pool = pages.clone(), Guarded(pages.shape, pages.dtype, values=pages)
    with use_backend(backend):
        ops.swa_store_kv(kv, weight, table, positions, slots, pool.tensor, eps=EPS)
        ops.swa_store_kv(kv[6:], weight, table, positions[6:], slots[6:], alone, eps=EPS)
    pool.check("kv_pages")
    assert torch.equal(pool.tensor, alone) and (alone != pages).any(dim=-1).flatten().nonzero().flatten().tolist() == [7]


@pytest.mark.parametrize("backend", [b for b in BACKENDS if b != "reference"])
def test_row_is_bit_equal_alone(backend):
    args = make_inputs(9, 512, 64, 64, torch.bfloat16)
    together, alone = args[5].clone(), args[5].clone()
    with use_backend(backend):
        ops.swa_store_kv(*args[:5], together, eps=EPS)
        for t in range(9):
            ops.swa_store_kv(args[0][t:t + 1], args[1], args[2], args[3][t:t + 1], args[4][t:t + 1], alone, eps=EPS)
    assert bits(together).equal(bits(alone))


@pytest.mark.parametrize("change,message", [
    (dict(kv=torch.zeros(3, 46)), r"kv_norm_weight: expected shape \[D=46\], got \[64\]"),
    (dict(kv=torch.zeros(3, 46), kv_norm_weight=torch.zeros(46), kv_pages=torch.zeros(2, 4, 46)),
     "kv: expected a head size that is a multiple of 16 from 32 to 512, got 46"),
    (dict(kv_norm_weight=torch.zeros(64, dtype=torch.float16)), "kv_norm_weight: expected dtype float32 or bfloat16"),
    (dict(cos_sin=torch.zeros(9, 66)), "cos_sin: expected an even number of columns from 2 to the head size, got 66"),
    (dict(positions=torch.zeros(2, dtype=torch.int64)), r"positions: expected shape \[T=3\], got \[2\]"),
    (dict(slots=torch.zeros(3, dtype=torch.int32)), "slots: expected dtype int64, got int32"),
    (dict(kv_pages=torch.zeros(2, 4, 64).bfloat16()), "kv_pages: expected dtype float32, got bfloat16"),
    (dict(kv_pages=torch.zeros(2, 6, 64)), "kv_pages: expected a page size that is a multiple of 4, got 6"),
    (dict(kv_pages=torch.zeros(2, 64, 4).mT), "kv_pages: expected a contiguous innermost dimension, got stride 4"),
    (dict(kv_pages=torch.zeros(1, 4, 64).expand(2, 4, 64)), "kv_pages: expected memory that does not overlap itself"),
    (dict(eps=float("nan")), "eps: expected a finite number >= 0, got"),
])
@pytest.mark.parametrize("backend", BACKENDS)
def test_refuses(backend, change, message):
    args = dict(kv=torch.zeros(3, 64), kv_norm_weight=torch.zeros(64), cos_sin=torch.zeros(9, 16),
                positions=torch.zeros(3, dtype=torch.int64), slots=torch.arange(3),
                kv_pages=torch.zeros(2, 4, 64), eps=EPS) | change
    eps = args.pop("eps")
    with use_backend(backend), pytest.raises(ValueError, match="^swa_store_kv: " + message):
        ops.swa_store_kv(*args.values(), eps=eps)
