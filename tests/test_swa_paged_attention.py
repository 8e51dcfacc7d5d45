# SPDX-License-Identifier: Apache-2.0
import pytest
import torch
from swa_util import Batch, same_rows
from util import BACKENDS, Guarded, bits, check_close, strided

from dsv4spec import ops, use_backend
from dsv4spec.reference import attention as ref

DTYPES = pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16], ids=str)
CASES = {  # lens (query rows included), rows a request
    "decode": ([1, 7, 8, 9, 30], [1] * 5),
    "verify": ([4, 9, 20, 41], [4] * 4),
    "prefill": ([11, 3], [11, 3]),
    "chunk": ([40, 17], [13, 16]),
    "mixed": ([0, 12, 5, 0, 9], [2, 1, 5, 0, 3]),
    "no rows": ([4, 6], [0, 1]),
}


@pytest.mark.parametrize("backend", BACKENDS)
@DTYPES
@pytest.mark.parametrize("D,H,window,page", [(32, 3, 8, 4), (48, 1, 1, 12), (144, 18, 13, 4), (64, 4, 1000, 8)])
@pytest.mark.parametrize("case", CASES, ids=str)
def test_matches_brute_force(backend, dtype, case, D, H, window, page):
    batch = Batch(*CASES[case], H=H, D=D, window=window, page=page, dtype=dtype)
    tensors, options = batch.args()
    exact = batch.brute_force()
    plain = ref.swa_paged_attention(*tensors, **options)
    out = Guarded(batch.q.shape, dtype)
    with use_backend(backend):
        allocated = ops.swa_paged_attention(*tensors, **options)
        ops.swa_paged_attention(strided(batch.q), strided(batch.pages), strided(batch.table), *tensors[3:], **options,
                                out=out.tensor)
    for b, n in enumerate(batch.lens):  # rows of padding keep what `out` held
        if n == 0:
            pad = out.tensor[batch.starts[b]:batch.starts[b + 1]]
            assert torch.isnan(pad).all()
            pad.zero_()
    check_close(allocated, exact, plain, op="swa_paged_attention")
    assert same_rows(backend, out.tensor, allocated)
    out.check()


@pytest.mark.parametrize("backend", BACKENDS)
@pytest.mark.parametrize("dtype", [torch.int32, torch.int64], ids=str)
def test_integer_dtypes_and_plain_options(backend, dtype):
    batch = Batch([5, 12], [2, 1], sink=False, rope=False)
    (q, pages, table, starts, lens), options = batch.args()
    with use_backend(backend):
        out = ops.swa_paged_attention(q, pages, table.to(dtype), starts.to(dtype), lens.to(dtype), **options)
    check_close(out, batch.brute_force(), op="swa_paged_attention", floor=1e-6)


@pytest.mark.parametrize("backend", BACKENDS)
def test_a5_window_of_128_keys_in_every_mode(backend):
    """Page 64, keys one-hot by position: queries at 126..129 see 127, 128, 128, 128 keys, the first at 0, 0, 1, 2,
    and prefill, decode, verify and draft extend give the same rows."""
    n, D = 130, 144
    keys = torch.zeros(n, D)
    keys[torch.arange(n), torch.arange(n)] = 1.0
    pages = torch.zeros(4, 64, D)
    pages[torch.tensor([3, 1, 0])[torch.arange(n) // 64], torch.arange(n) % 64] = keys
    table = torch.tensor([[3, 1, 0]])
    q = torch.randn(n, 2, D, generator=torch.Generator().manual_seed(5))

    def attend(rows, length, **options):
        return ops.swa_paged_attention(q[length - rows:length], pages, table, torch.tensor([0, rows]),
                                       torch.tensor([length]), window=128, scale=1.0, **options)

    with use_backend(backend):
        prefill = attend(n, n)
        modes = {"verify": attend(4, n), "extend": attend(10, n)[-4:],
                 "decode": torch.cat([attend(1, p + 1) for p in range(126, 130)])}
        # A sink as heavy as all keys together takes half of the weight and moves nothing else.
        lse = torch.logsumexp(q[129, 0, 2:130], 0)
        halved = attend(1, 130, sink=torch.stack((lse, torch.tensor(float("-inf")))))[0]
    for p, (count, first) in zip(range(126, 130), ((127, 0), (128, 0), (128, 1), (128, 2))):
        seen = prefill[p, 0].nonzero().flatten()
        assert len(seen) == count and seen[0] == first and seen[-1] == p
    for rows in modes.values():
        assert same_rows(backend, rows, prefill[126:130])
    assert torch.allclose(halved[0], prefill[129, 0] / 2, rtol=1e-5) and same_rows(backend, halved[1], prefill[129, 1])


@pytest.mark.parametrize("backend", BACKENDS)
@DTYPES
def test_a20_three_rows_padded_to_eight(backend, dtype):
    """Length 0, table -1, NaN queries: pad rows are zero (or untouched), the real ones bit-equal to the bare batch."""
    batch = Batch([9, 40, 5], [1, 1, 1], dtype=dtype, window=16)
    (q, pages, table, starts, lens), options = batch.args()
    pad_q = torch.cat((q, torch.full((5, *q.shape[1:]), float("nan"), dtype=dtype)))
    pad_table = torch.cat((table, torch.full((5, table.shape[1]), -1, dtype=torch.int32)))
    pad_lens = torch.cat((lens, torch.zeros(5, dtype=torch.int32)))
    with use_backend(backend):
        want = ops.swa_paged_attention(q, pages, table, starts, lens, **options)
        pool = bits(pages).clone()
        for pad_starts in (torch.arange(9), torch.tensor([0, 1, 2, 3, 3, 3, 3, 3, 3]), torch.tensor([0, 1, 2, 3] + [8] * 5)):
            args = (pad_q, pages, pad_table, pad_starts, pad_lens)
            got = ops.swa_paged_attention(*args, **options)
            kept = ops.swa_paged_attention(*args, **options, out=torch.full_like(pad_q, 7.0))
            assert same_rows(backend, got[:3], want) and same_rows(backend, kept[:3], want)
            assert (got[3:] == 0).all() and (kept[3:] == 7).all()
        assert bits(pages).equal(pool)
        q[1] = float("nan")  # a bad row stays alone
        rest = ops.swa_paged_attention(q, pages, table, starts, lens, **options)
        assert same_rows(backend, rest[[0, 2]], want[[0, 2]]) and torch.isnan(rest[1]).all()
        for t, b in ((0, 0), (0, 2), (3, 0)):  # no rows, no requests
            empty = ops.swa_paged_attention(pad_q[:t], pages, pad_table[:b], torch.zeros(b + 1, dtype=torch.int32),
                                            pad_lens[3:3 + b], **options)
            assert empty.shape == (t, *q.shape[1:]) and (empty == 0).all()


@pytest.mark.parametrize("backend", BACKENDS)
def test_sink_limits_and_large_logits(backend):
    batch = Batch([20], [2], H=4, rope=False)
    tensors, options = batch.args()
    options["sink"] = torch.tensor([float("inf"), float("-inf"), 300.0, -300.0])
    with use_backend(backend):
        out = ops.swa_paged_attention(*tensors, **options)
        bare = ops.swa_paged_attention(*tensors, **options | dict(sink=None))
        steep = ops.swa_paged_attention(*tensors, **options | dict(sink=None, scale=1e4))
    assert (out[:, 0] == 0).all() and (out[:, 2].abs() < 1e-30).all()
    assert same_rows(backend, out[:, [1, 3]], bare[:, [1, 3]])
    assert torch.isfinite(steep).all()


@pytest.mark.parametrize("backend", BACKENDS)
@DTYPES
@pytest.mark.parametrize("D", [64, 512])
def test_a23_strides_offsets_and_head_sizes(backend, dtype, D):
    batch = Batch([70, 9], [2, 1], H=5, D=D, window=40, page=16, dtype=dtype)
    (q, pages, table, starts, lens), options = batch.args()
    T, H = q.shape[:2]
    fused = torch.full((T, 1 + H * D + 8), float("nan"), dtype=dtype)
    fused[:, 1:1 + H * D] = q.flatten(1)  # q as a split of a fused projection, one element off
    wide = torch.full((pages.shape[0], 16, 3, D), float("nan"), dtype=dtype)  # a pool that interleaves layers
    wide[:, :, 1] = pages
    odd = table.as_strided(table.shape, (table.stride(0), 1))
    one = q[:1].as_strided((1, H, D), (7, D, 1))  # size-1 dimension with an odd stride
    with use_backend(backend):
        want = ops.swa_paged_attention(q, pages, table, starts, lens, **options)
        got = ops.swa_paged_attention(fused[:, 1:1 + H * D].unflatten(1, (H, D)), wide[:, :, 1], odd, starts, lens, **options)
        single = ops.swa_paged_attention(one, pages, table[:1], torch.tensor([0, 1]), lens[:1] - 1, **options)
    assert same_rows(backend, got, want) and same_rows(backend, single, want[:1])


@pytest.mark.parametrize("backend", BACKENDS)
def test_flash_sizes(backend):
    batch = Batch([1000, 131, 64], [4, 4, 4], H=2, D=512, window=128, page=64, dtype=torch.float32)
    tensors, options = batch.args()
    plain = ref.swa_paged_attention(*tensors, **options)
    with use_backend(backend):
        got = ops.swa_paged_attention(*tensors, **options)
    check_close(got, batch.brute_force(), plain, op="swa_paged_attention")


def refusal_batch():
    (q, pages, table, starts, lens), options = Batch([9, 30], [1, 2], window=8).args()
    return dict(q=q, kv_pages=pages, block_table=table, query_start_loc=starts, seq_lens=lens), options


@pytest.mark.parametrize("name,value,message", [
    ("block_table", (1, 5, -1), r"block_table: expected a page in \[0, 21\) as logical page 5 of request 1, got -1"),
    ("block_table", (1, 7, 21), r"block_table: expected a page in \[0, 21\) as logical page 7 of request 1, got 21"),
    ("block_table", (0, 2, 2 ** 31 - 1), r"block_table: .* as logical page 2 of request 0, got 2147483647"),
    ("seq_lens", (1, 40), "block_table: expected a column for logical page 9 of request 1, got 9 columns"),
    ("seq_lens", (1, 1), "seq_lens: expected at least the 2 query rows of request 1, got 1"),
    ("seq_lens", (0, -3), "seq_lens: expected >= 0 for request 0, got -3"),
    ("query_start_loc", (0, 1), "query_start_loc: expected 0 as its first value, got 1"),
    ("query_start_loc", (2, 4), "query_start_loc: expected values rising to at most T=3, got 4 after 1"),
    ("query_start_loc", (2, 0), "query_start_loc: expected values rising to at most T=3, got 0 after 1"),
    ("cos_sin", None, "cos_sin: expected at least 30 rows for request 1, got 29"),
])
def test_cpu_refuses_integers_that_lead_nowhere(name, value, message):
    tensors, options = refusal_batch()
    if name == "cos_sin":  # A16: a RoPE table too short is an error, not a read past it
        options["cos_sin"] = options["cos_sin"][:29]
    else:
        tensors[name][value[:-1]] = value[-1]
        if "column" in message:  # the only fault: every page is there, and positions may be any
            tensors["block_table"][:] = 0
            options["cos_sin"] = None
    out = torch.full_like(tensors["q"], 7.0)
    with pytest.raises(ValueError, match="^swa_paged_attention: " + message):
        ops.swa_paged_attention(*tensors.values(), **options, out=out)
    assert (out == 7).all()


@pytest.mark.parametrize("backend", BACKENDS)
def test_pages_below_the_window_are_never_looked_at(backend):
    tensors, options = refusal_batch()
    with use_backend(backend):
        want = ops.swa_paged_attention(*tensors.values(), **options)
        assert tensors["block_table"][1, :5].tolist() == [-1] * 5
        tensors["block_table"][1, :5] = torch.tensor([-1, 10 ** 6, -7, 2 ** 31 - 1, 21])
        assert torch.equal(ops.swa_paged_attention(*tensors.values(), **options), want)


@pytest.mark.parametrize("change,message", [
    (dict(q=torch.zeros(3, 2, 46), kv_pages=torch.zeros(4, 4, 46)),
     "q: expected a head size that is a multiple of 16 from 32 to 512, got 46"),
    (dict(q=torch.zeros(3, 2, 32).bfloat16()), "kv_pages: expected dtype bfloat16, got float32"),
    (dict(q=torch.zeros(3, 32, 2).mT), "q: expected a contiguous innermost dimension, got stride 2"),
    (dict(kv_pages=torch.zeros(4, 32, 4).mT), "kv_pages: expected a contiguous innermost dimension, got stride 4"),
    (dict(kv_pages=torch.zeros(4, 6, 32)), "kv_pages: expected a page size that is a multiple of 4, got 6"),
    (dict(block_table=torch.zeros(2, 3)), "block_table: expected dtype int32 or int64, got float32"),
    (dict(query_start_loc=torch.zeros(2, dtype=torch.int32)), r"query_start_loc: expected shape \[B\+1=3\], got \[2\]"),
    (dict(seq_lens=torch.zeros(3, dtype=torch.int32)), r"seq_lens: expected shape \[B=2\], got \[3\]"),
    (dict(sink=torch.zeros(3)), r"sink: expected shape \[H=2\], got \[3\]"),
    (dict(tree_mask=torch.ones(2, 3, 2, dtype=torch.bool)), r"tree_mask: expected shape \[B=2, n=3, n=3\], got \[2, 3, 2\]"),
    (dict(tree_mask=torch.ones(2, 2, 2)), "tree_mask: expected dtype bool, got float32"),
    (dict(cos_sin=torch.zeros(9, 34)), "cos_sin: expected an even number of columns from 2 to the head size, got 34"),
    (dict(window=0), "window: expected at least 1, got 0"),
    (dict(scale=float("inf")), "scale: expected a finite number, got inf"),
    (dict(out=torch.zeros(3, 2, 16)), r"out: expected shape \[T=3, H=2, D=32\], got \[3, 2, 16\]"),
])
@pytest.mark.parametrize("backend", BACKENDS)
def test_refuses(backend, change, message):
    args = dict(q=torch.zeros(3, 2, 32), kv_pages=torch.zeros(4, 4, 32), block_table=torch.zeros(2, 3, dtype=torch.int32),
                query_start_loc=torch.tensor([0, 1, 3]), seq_lens=torch.tensor([1, 2])) | dict(window=8, scale=1.0) | change
    tensors = [args.pop(k) for k in ("q", "kv_pages", "block_table", "query_start_loc", "seq_lens")]
    with use_backend(backend), pytest.raises(ValueError, match="^swa_paged_attention: " + message):
        ops.swa_paged_attention(*tensors, **args)


def test_refuses_output_in_the_query():
    q = torch.zeros(3, 2, 32)
    with pytest.raises(ValueError, match="swa_paged_attention: out: expected memory apart from the other arguments"):
        ops.swa_paged_attention(q, torch.zeros(4, 4, 32), torch.zeros(1, 3, dtype=torch.int32), torch.tensor([0, 3]),
                                torch.tensor([3]), window=8, scale=1.0, out=q)
