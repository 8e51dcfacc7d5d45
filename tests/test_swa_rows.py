# SPDX-License-Identifier: Apache-2.0
"""swa_paged_attention, row by row: what other rows, other requests, and values that lead nowhere may not change."""
import pytest
import torch
from swa_util import Batch, same_rows
from util import BACKENDS, UNCHECKED, Guarded, bits, check_close

from dsv4spec import ops, use_backend
from dsv4spec.reference import attention as ref

DTYPES = pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16], ids=str)
KERNELS = [b for b in BACKENDS if b != "reference"]  # the products of torch depend on the shapes of a call
FLASH = dict(D=512, window=128, page=64)


@pytest.mark.parametrize("backend", KERNELS)
@DTYPES
def test_row_is_bit_equal_in_every_batch(backend, dtype):
    """One row alone, in batches of 2, 7 and 64, with other threads, and as row 0 of a verify of 4 (deterministic)."""
    from dsv4spec import _C

    lens = [130 + 37 * (b % 50) for b in range(64)]
    batch = Batch(lens, [4] * 64, H=20, D=64, window=128, page=16, dtype=dtype)
    (q, pages, table, starts, lens), options = batch.args()
    with use_backend(backend):
        verify = ops.swa_paged_attention(q, pages, table, starts, lens, **options)
        first, plain_lens = q[::4].contiguous(), lens - 3
        threads = _C.get_num_threads()
        for count in (1, 2, 7, 64):
            for n in {1, threads}:
                _C.set_num_threads(n)
                try:
                    got = ops.swa_paged_attention(first[:count], pages, table[:count], torch.arange(count + 1),
                                                  plain_lens[:count], **options)
                finally:
                    _C.set_num_threads(threads)
                assert bits(got).equal(bits(verify[:4 * count:4]))
        assert bits(ops.swa_paged_attention(q, pages, table, starts, lens, **options)).equal(bits(verify))


@pytest.mark.parametrize("backend", KERNELS)
@DTYPES
@pytest.mark.parametrize("H,requests", [(64, 12), (10, 9)])
def test_flash_verify_equals_decode_of_each_row(backend, dtype, H, requests):
    """4 rows of many requests at once (tiles of many heads and rows), and each row of two of them decoded alone."""
    lens = [130 + 13 * b for b in range(requests)]
    batch = Batch(lens, [4] * requests, H=H, dtype=dtype, **FLASH)
    (q, pages, table, starts, lens), options = batch.args()
    with use_backend(backend):
        got = ops.swa_paged_attention(q, pages, table, starts, lens, **options)
        for b in (0, requests - 1):
            for j in range(4):
                alone = ops.swa_paged_attention(q[4 * b + j:4 * b + j + 1], pages, table[b:b + 1], torch.tensor([0, 1]),
                                                lens[b:b + 1] - 3 + j, **options)
                assert bits(alone[0]).equal(bits(got[4 * b + j]))
    exact = ref.swa_paged_attention(q.double(), pages.double(), table, starts, lens, **options)
    check_close(got, exact, ref.swa_paged_attention(q, pages, table, starts, lens, **options), op="swa_paged_attention")


@pytest.mark.parametrize("backend", KERNELS)
@DTYPES
def test_pro_heads(backend, dtype):
    batch = Batch([200, 9, 0], [1, 2, 1], H=128, dtype=dtype, **FLASH)
    tensors, options = batch.args()
    exact = ref.swa_paged_attention(tensors[0].double(), tensors[1].double(), *tensors[2:], **options)
    with use_backend(backend):
        got = ops.swa_paged_attention(*tensors, **options)
    check_close(got, exact, ref.swa_paged_attention(*tensors, **options), op="swa_paged_attention")


@pytest.mark.parametrize("backend", BACKENDS)
@DTYPES
@pytest.mark.parametrize("tree", [False, True])
def test_long_window(backend, dtype, tree):
    masks = [torch.ones(3, 3, dtype=torch.bool).tril(), torch.eye(3, dtype=torch.bool)] if tree else None
    batch = Batch([900, 400], [3, 3], D=32, H=3, window=700, page=12, dtype=dtype, masks=masks)
    tensors, options = batch.args()
    plain = ref.swa_paged_attention(*tensors, **options)
    with use_backend(backend):
        got = ops.swa_paged_attention(*tensors, **options)
    check_close(got, batch.brute_force(), plain, op="swa_paged_attention")


@pytest.mark.parametrize("backend", KERNELS)
@pytest.mark.parametrize("lens,rows,window,tree", [([200, 70], [64, 64], 128, False), ([180], [64], 128, True),
                                                   ([700, 513], [2, 2], 300, False), ([600], [5], 257, True)])
def test_head_size_512_with_many_keys_a_segment(backend, lens, rows, window, tree):
    """More keys a unit of work than two units' share of fast memory; bf16 rows equal to the same rows decoded alone."""
    masks = [torch.ones(n, n, dtype=torch.bool).tril() for n in rows] if tree else None
    batch = Batch(lens, rows, D=512, H=1, window=window, page=16, dtype=torch.bfloat16, masks=masks)
    (q, pages, table, starts, lens), options = batch.args()
    with use_backend(backend):
        got = ops.swa_paged_attention(q, pages, table, starts, lens, **options)
        for j in (0, rows[0] - 1):
            alone = ops.swa_paged_attention(q[j:j + 1], pages, table[:1], torch.tensor([0, 1]), lens[:1] - rows[0] + 1 + j,
                                            **options | dict(tree_mask=None))
            assert bits(alone[0]).equal(bits(got[j]))
    check_close(got, batch.brute_force(), ref.swa_paged_attention(q, pages, table, starts, lens, **options),
                op="swa_paged_attention")


@pytest.mark.parametrize("backend", [b for b in BACKENDS if b == "ascend_emu"])
def test_ascend_refuses_trees_of_more_nodes_than_a_word(backend):
    batch = Batch([80], [65], masks=[torch.eye(65, dtype=torch.bool)])
    tensors, options = batch.args()
    with use_backend(backend), pytest.raises(ValueError, match="tree_mask: expected at most 64 nodes, got 65"):
        ops.swa_paged_attention(*tensors, **options)


@pytest.mark.parametrize("backend", BACKENDS)
def test_row_finds_its_request_among_many(backend):
    """1025 requests, some padding and some without rows: each row attends over its own keys."""
    rows = [(b * 7) % 3 for b in range(1025)]
    lens = [0 if b % 11 == 5 else max(r, 1 + b % 5) for b, r in enumerate(rows)]
    batch = Batch(lens, rows, H=1, sink=False, rope=False)
    tensors, options = batch.args()
    with use_backend(backend):
        got = ops.swa_paged_attention(*tensors, **options)
    check_close(got, batch.brute_force(), op="swa_paged_attention", floor=1e-6)


@pytest.mark.parametrize("backend", BACKENDS)
@DTYPES
@pytest.mark.parametrize("D,H,value", [(64, 3, float("nan")), (64, 3, float("inf")), (512, 32, float("nan"))])
def test_poison_in_a_key_reaches_only_the_rows_that_see_it(backend, dtype, D, H, value):
    """In a verify of 4 the first key leaves the window after row 0 and the last is seen by row 3 only; with a mask,
    nodes 2 and 3 see neither each other nor node 1."""
    siblings = torch.tensor([[1, 0, 0, 0], [1, 1, 0, 0], [1, 0, 1, 0], [1, 0, 0, 1]], dtype=torch.bool)
    for masks, poisoned in ((None, {13: [0], 43: [3], 30: [0, 1, 2, 3]}), ([siblings] * 21, {41: [1], 42: [2], 13: [0]})):
        # Enough rows for the tiles of large batches, where a backend has others for those.
        others = 0 if D < 512 else 2 if backend == "ascend_emu" else 20
        batch = Batch([44] + [40] * others, [4] * (others + 1), D=D, H=H, window=28, page=8, dtype=dtype,
                      masks=masks and masks[:others + 1])
        tensors, options = batch.args()
        with use_backend(backend):
            want = ops.swa_paged_attention(*tensors, **options)
        for x, rows in poisoned.items():
            assert [j for j in range(4) if x in batch.visible(0, j)] == rows
            place = batch.pages[batch.table[0, x // 8], x % 8]
            kept = place.clone()
            place[D // 2] = value
            with use_backend(backend):
                got = ops.swa_paged_attention(*tensors, **options)
            place.copy_(kept)
            clean = [t for t in range(len(want)) if t not in rows]
            assert same_rows(backend, got[clean], want[clean])
            if value != value:
                assert torch.isnan(got[rows]).all()
            else:
                assert not torch.isfinite(got[rows]).all()


@pytest.mark.parametrize("backend", BACKENDS)
@DTYPES
def test_poison_in_a_query_stays_in_its_row(backend, dtype):
    batch = Batch([60, 50], [4, 3], D=48, H=3, window=20, dtype=dtype)
    tensors, options = batch.args()
    with use_backend(backend):
        want = ops.swa_paged_attention(*tensors, **options)
        tensors[0][2, 1] = float("nan")
        got = ops.swa_paged_attention(*tensors, **options)
    assert torch.isnan(got[2, 1]).all()
    got[2, 1] = want[2, 1]
    assert same_rows(backend, got, want)


@pytest.mark.parametrize("backend", BACKENDS)
@DTYPES
@pytest.mark.parametrize("window", [20, 700])
def test_a_sink_that_is_no_number_stays_in_its_head(backend, dtype, window):
    batch = Batch([60, 50, 5], [4, 3, 1], D=48, H=3, window=window, page=8, dtype=dtype)
    tensors, options = batch.args()
    with use_backend(backend):
        want = ops.swa_paged_attention(*tensors, **options)
        options["sink"][1] = float("nan")
        got = ops.swa_paged_attention(*tensors, **options)
    assert torch.isnan(got[:, 1]).all()
    got[:, 1] = want[:, 1]
    assert same_rows(backend, got, want)


@pytest.mark.parametrize("backend", BACKENDS)
@DTYPES
@pytest.mark.parametrize("window", [8, 700])
@pytest.mark.parametrize("what", ["sink", "query"])
def test_a_row_without_a_key_is_zero_whatever_else_is_no_number(backend, dtype, window, what):
    """A node that its mask row lacks, as the first of its request: it shares a tile with nodes that see keys."""
    mask = torch.tensor([[0, 0, 0], [1, 1, 0], [1, 0, 1]], dtype=torch.bool)
    batch = Batch([3, 3], [3, 3], D=48, H=3, window=window, page=4, dtype=dtype, masks=[mask, mask])
    tensors, options = batch.args()
    if what == "sink":
        options["sink"][1] = float("nan")
    else:
        tensors[0][0, 1] = float("nan")
    want = ref.swa_paged_attention(*tensors, **options)
    with use_backend(backend):
        got = ops.swa_paged_attention(*tensors, **options)
    assert (got[[0, 3]] == 0).all()
    assert torch.equal(got.isnan(), want.isnan()) and want.isnan().any() == (what == "sink")


@pytest.mark.parametrize("backend", UNCHECKED)
@DTYPES
def test_backends_that_cannot_refuse_skip_what_leads_nowhere(backend, dtype):
    """A key without a page is not seen; a request that is shorter than its rows is padding."""
    def changed(name, at, value):
        batch = Batch([9, 30, 12], [1, 2, 3], dtype=dtype)
        tensors, options = batch.args()
        names = ["q", "kv_pages", "block_table", "query_start_loc", "seq_lens"]
        tensors[names.index(name)][at] = value
        tensors[1].nan_to_num_(nan=3.0)
        return tensors, options

    cases = [("block_table", (1, 6), v) for v in (-1, 41, -2 ** 31, 2 ** 31 - 1)]
    cases += [("block_table", (slice(None), slice(None)), -1), ("seq_lens", 2, 2), ("seq_lens", 0, -5),
              ("seq_lens", 1, 2 ** 31 - 1), ("seq_lens", 1, 45)]
    for case in cases:
        tensors, options = changed(*case)
        options["cos_sin"] = options["cos_sin"][:20]  # a position beyond it takes its last row
        want = ref.swa_paged_attention(*tensors, **options)
        exact = ref.swa_paged_attention(tensors[0].double(), tensors[1].double(), *tensors[2:], **options)
        out = Guarded(want.shape, dtype)
        with use_backend(backend):
            got = ops.swa_paged_attention(*tensors, **options)
            ops.swa_paged_attention(*tensors, **options, out=out.tensor)
        out.check()
        check_close(got, exact, want, op="swa_paged_attention")


@pytest.mark.parametrize("backend", [b for b in KERNELS if b in UNCHECKED])
@DTYPES
@pytest.mark.parametrize("window", [1, 700])
def test_zeros_of_a_row_without_a_key_have_the_sign_that_they_have_alone(backend, dtype, window):
    """Row 3, at position 8, has lost the page of its only key; rotated by 8, a zero may become -0."""
    batch = Batch([9], [4], D=48, H=3, window=window, page=4, dtype=dtype)
    (q, pages, table, starts, lens), options = batch.args()
    table[0] = torch.tensor([0 if window == 1 and x == 1 else -1 for x in range(table.shape[1])])
    pages.nan_to_num_(nan=3.0)
    with use_backend(backend):
        got = ops.swa_paged_attention(q, pages, table, starts, lens, **options)
        alone = ops.swa_paged_attention(q[3:], pages, table, starts.clamp(max=1), lens, **options)
    assert (got[3] == 0).all() and bits(got[3:]).equal(bits(alone))


@pytest.mark.parametrize("backend", UNCHECKED)
@pytest.mark.parametrize("starts", [[0, 5, 2, 6], [-3, 1, 4, 6], [2, 3, 3, 5], [0, 1, 3, 900], [0, -9, 2 ** 31 - 1, 0]])
def test_starts_that_do_not_rise_stay_inside_the_tensors(backend, starts):
    batch = Batch([9, 30, 12], [1, 2, 3])
    (q, pages, table, _, lens), options = batch.args()
    pages.nan_to_num_(nan=3.0)
    out = Guarded(q.shape, q.dtype)
    with use_backend(backend):
        ops.swa_paged_attention(q, pages, table, torch.tensor(starts), lens, **options, out=out.tensor)
    out.check()
