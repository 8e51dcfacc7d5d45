# SPDX-License-Identifier: Apache-2.0
import pytest
import torch

from dsv4spec import _C, ops
from dsv4spec.models.rope import rope_table
from test_lightning_index import lengths
from util import BACKENDS, Guarded, check_close, rng, strided


def with_kernel(backend):
    if backend != "reference" and "sparse_paged_attention" not in ops._dispatch.backend_ops(backend):
        pytest.skip(f"{backend} has no sparse_paged_attention kernel")
    return ops.use_backend(backend)


def pool(rows, page, D, dtype, g, first=0):
    """Per request a tensor of rows in scattered pages, the table, and NaN everywhere else. Rows below ``first`` of a
    request are recycled: their pages are -1 where they are whole."""
    wide = max(1, max(-(-len(r) // page) for r in rows))
    table = torch.full((len(rows), wide), -1, dtype=torch.int32)
    free = torch.randperm(len(rows) * wide + 2, generator=g).int()
    pages = torch.full((len(free), page, D), torch.nan, dtype=dtype)
    for b, r in enumerate(rows):
        for c in range(max(0, min(first[b], len(r))) // page if first else 0, -(-len(r) // page)):
            table[b, c], free = free[0], free[1:]
            part = r[c * page:(c + 1) * page]
            pages[table[b, c], :len(part)] = part
    return pages, table


def make_inputs(pairs, *, H=3, D=32, page=8, c_page=4, window=12, ratio=4, dtype=torch.float32, topk=None):
    g = rng("sparse", *pairs, H, D, page, ratio, topk)
    qsl, seq_lens = lengths(pairs)
    T = int(qsl[-1])
    kv = [torch.randn(0 if s is None else s + n, D, generator=g).to(dtype) for s, n in pairs]
    c = [torch.randn(0 if s is None or ratio < 2 else (s + n) // ratio, D, generator=g).to(dtype) for s, n in pairs]
    kv_pages, block_table = pool(kv, page, D, dtype, g, [(s or 0) - window + 1 for s, _ in pairs])
    c_pages, c_table = pool(c, c_page, D, dtype, g) if ratio > 1 else (None, None)
    args = dict(q=torch.randn(T, H, D, generator=g).to(dtype), kv_pages=kv_pages, block_table=block_table,
                c_pages=c_pages, c_table=c_table, query_start_loc=qsl, seq_lens=seq_lens)
    keys = dict(window=window, scale=D ** -0.5, ratio=ratio, sink=torch.randn(H, generator=g),
                cos_sin=rope_table(300, 8, 10000.0))
    if topk:
        most = max(len(x) for x in c) + 2
        keys["indices"] = torch.stack([torch.randperm(most + topk, generator=g)[:topk].sort().values for _ in range(T)])
        keys["indices"] = torch.where(keys["indices"] >= most, -1, keys["indices"]).int()
    return args, keys, kv, c


def expected(args, keys, pairs, kv, c, dtype=torch.float64):
    out, t = torch.zeros(args["q"].shape, dtype=dtype), 0
    for (s, n), k, e in zip(pairs, kv, c):
        for j in range(n):
            if s is not None:
                p = s + j
                count = (p + 1) // keys["ratio"] if keys["ratio"] > 1 else 0
                chosen = range(count) if keys.get("indices") is None else [
                    w for w in keys["indices"][t].tolist() if 0 <= w < count]
                rows = torch.cat((k[max(0, p - keys["window"] + 1):p + 1], e[list(chosen)])).to(dtype)
                logits = args["q"][t].to(dtype) @ rows.T * keys["scale"]
                if keys["sink"] is not None:
                    logits = torch.cat((logits, keys["sink"].to(dtype)[:, None]), 1)
                o = logits.softmax(-1)[:, :len(rows)] @ rows
                if keys["cos_sin"] is not None:
                    cos, sin = keys["cos_sin"][p].to(dtype).chunk(2)
                    a, b = o[:, -8::2].clone(), o[:, -7::2].clone()
                    o[:, -8::2], o[:, -7::2] = a * cos + b * sin, b * cos - a * sin
                out[t] = o
            t += 1
    return out


PAIRS = [[(0, 40)], [(100, 1)], [(37, 4), (8, 4), (0, 4), (127, 4)], [(None, 3), (62, 5), (None, 1), (3, 1), (0, 2)]]


@pytest.mark.parametrize("backend", BACKENDS)
@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
@pytest.mark.parametrize("pairs", PAIRS)
@pytest.mark.parametrize("ratio,topk", [(4, None), (4, 6), (128, None), (0, None), (1, None)])
def test_matches_formula(backend, dtype, pairs, ratio, topk):
    args, keys, kv, c = make_inputs(pairs, ratio=ratio, dtype=dtype, topk=topk)
    out = Guarded(args["q"].shape, dtype)
    given = {n: strided(t) if n in ("q", "kv_pages", "c_pages", "c_table") and t is not None else t
             for n, t in args.items()}
    with with_kernel(backend):
        ops.sparse_paged_attention(*given.values(), **keys, out=out.tensor)
        again = ops.sparse_paged_attention(*args.values(), **keys)
    exact = expected(args, keys, pairs, kv, c)
    real = torch.cat([torch.full((n,), s is not None) for s, n in pairs])
    check_close(again, exact, expected(args, keys, pairs, kv, c, torch.float32), op="sparse_paged_attention", factor=4,
                floor=2e-6 if dtype == torch.float32 else 0.02)
    assert (again[~real] == 0).all()
    if backend == "reference":  # torch's products depend on strides
        check_close(out.tensor[real], exact[real], op="sparse_paged_attention",
                    floor=2e-6 if dtype == torch.float32 else 0.02)
    else:
        assert torch.equal(out.tensor[real], again[real])
    assert out.tensor[~real].isnan().all()
    out.check()


@pytest.mark.parametrize("backend", BACKENDS)
@pytest.mark.parametrize("D,H,window,page", [(48, 5, 1, 4), (512, 2, 128, 64), (64, 4, 64, 16)])
def test_sizes(backend, D, H, window, page):
    pairs = [(130, 3), (7, 2)]
    args, keys, kv, c = make_inputs(pairs, H=H, D=D, window=window, page=page, ratio=4, topk=9)
    with with_kernel(backend):
        got = ops.sparse_paged_attention(*args.values(), **keys)
    check_close(got, expected(args, keys, pairs, kv, c), op="sparse_paged_attention", floor=3e-6)


@pytest.mark.parametrize("backend", BACKENDS)
def test_a6_lengths_in_entries_and_ratio_0(backend):
    """A6: rows at 126..129 see 31, 32, 32, 32 entries of ratio 4 and 0, 1, 1, 1 of ratio 128; ratio 0 and 1 need no
    pool and give the window-only result."""
    pairs = [(126, 4)]
    for ratio, counts in ((4, [31, 32, 32, 32]), (128, [0, 1, 1, 1])):
        args, keys, _, _ = make_inputs(pairs, ratio=ratio, window=1)
        keys.update(sink=None, cos_sin=None)
        args["q"] = torch.zeros_like(args["q"])  # equal weights: the mean of what is seen
        args["kv_pages"], args["c_pages"] = torch.zeros_like(args["kv_pages"]), torch.ones_like(args["c_pages"])
        with with_kernel(backend):
            got = ops.sparse_paged_attention(*args.values(), **keys)[:, 0, 0]
        assert got.tolist() == pytest.approx([n / (n + 1) for n in counts])
    results = []
    for ratio in (0, 1):
        args, keys, _, _ = make_inputs(pairs, ratio=0)
        keys["ratio"] = ratio
        with with_kernel(backend):
            results.append(ops.sparse_paged_attention(*args.values(), **keys))
    with ops.use_backend("reference"):
        window_only = ops.swa_paged_attention(
            *[args[n] for n in ("q", "kv_pages", "block_table", "query_start_loc", "seq_lens")],
                                              **{n: keys[n] for n in ("window", "scale", "sink", "cos_sin")})
    assert torch.equal(results[0], results[1])
    check_close(results[0], window_only.double(), op="sparse_paged_attention", floor=2e-6)


@pytest.mark.parametrize("backend", BACKENDS)
def test_sinks_and_rows_without_keys(backend):
    args, keys, _, _ = make_inputs([(20, 2)], ratio=128)
    with with_kernel(backend):
        base = ops.sparse_paged_attention(*args.values(), **{**keys, "sink": None})
        off = ops.sparse_paged_attention(*args.values(), **{**keys, "sink": torch.full((3,), -torch.inf)})
        on = ops.sparse_paged_attention(*args.values(), **{**keys, "sink": torch.full((3,), torch.inf)})
        assert torch.equal(base, off) and (on == 0).all()
        args["block_table"] = torch.full_like(args["block_table"], -1)
        assert (ops.sparse_paged_attention(*args.values(), **keys) == 0).all()
        assert (ops.sparse_paged_attention(*args.values(), **{**keys, "sink": None}) == 0).all()


@pytest.mark.parametrize("backend", [b for b in BACKENDS if b != "reference"])  # torch's products depend on the shape
@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
@pytest.mark.parametrize("ratio,topk", [(4, None), (4, 6), (128, None), (0, None)])
def test_a24_bits_of_a_row_in_any_batch(backend, dtype, ratio, topk):
    """In a batch of 8 requests, alone with the rows of its window, and alone: the same bits, on one thread too."""
    pairs = [(200, 4), (0, 9), (127, 1), (31, 2), (None, 2), (64, 7), (255, 4), (12, 1)]
    args, keys, _, _ = make_inputs(pairs, H=5, ratio=ratio, dtype=dtype, topk=topk)
    starts = args["query_start_loc"].tolist()

    def part(b, first, count):
        """``count`` rows of request b from its row ``first`` on."""
        s, rows = pairs[b][0], slice(starts[b] + first, starts[b] + first + count)
        one = {**args, "q": args["q"][rows], "block_table": args["block_table"][b:b + 1],
               "query_start_loc": torch.tensor([0, count]), "seq_lens": torch.tensor([s + first + count])}
        one["c_table"] = args["c_table"] if args["c_table"] is None else args["c_table"][b:b + 1]
        chosen = {"indices": keys["indices"][rows]} if topk else {}
        return ops.sparse_paged_attention(*one.values(), **{**keys, **chosen})

    with with_kernel(backend):
        whole = ops.sparse_paged_attention(*args.values(), **keys)
        for b, (s, n) in enumerate(pairs):
            if s is not None:
                assert torch.equal(part(b, 0, n), whole[starts[b]:starts[b] + n]), b
                for j in range(n):
                    assert torch.equal(part(b, j, 1), whole[starts[b] + j:starts[b] + j + 1]), (b, j)
        threads = _C.get_num_threads()
        for count in (1, 3):
            _C.set_num_threads(count)
            try:
                assert torch.equal(ops.sparse_paged_attention(*args.values(), **keys), whole)
            finally:
                _C.set_num_threads(threads)


@pytest.mark.parametrize("backend", BACKENDS)
def test_empty(backend):
    args, keys, _, _ = make_inputs([(0, 0)])
    with with_kernel(backend):
        assert ops.sparse_paged_attention(*args.values(), **keys).shape == (0, 3, 32)


ZERO = torch.zeros(1, dtype=torch.int32)


@pytest.mark.parametrize("change,message", [
    (dict(q=torch.zeros(4, 3, 16)), r"kv_pages: expected shape \[P=\d+, page=8, D=16\]"),
    (dict(kv_pages=torch.zeros(2, 8, 32).bfloat16()), "kv_pages: expected dtype float32, got bfloat16"),
    (dict(block_table=torch.zeros(1, 2)), "block_table: expected dtype int32 or int64, got float32"),
    (dict(c_pages=None), "c_pages: expected a tensor, as ratio is 4, got None"),
    (dict(c_table=None), "c_table: expected a tensor, as ratio is 4, got None"),
    (dict(ratio=0), "c_pages: expected None, as ratio 0 has no compressed part, got a tensor"),
    (dict(ratio=1, c_pages=None, c_table=None, indices=torch.zeros(4, 1, dtype=torch.int32)),
     "indices: expected None, as ratio 1 has no compressed part"),
    (dict(c_table=torch.zeros(2, 3, dtype=torch.int32)), r"c_table: expected shape \[B=1"),
    (dict(seq_lens=torch.zeros(2, dtype=torch.int32)), "seq_lens: expected shape"),
    (dict(indices=torch.zeros(4, 2)), "indices: expected dtype int32, got float32"),
    (dict(sink=torch.zeros(4)), r"sink: expected shape \[H=3\], got \[4\]"),
    (dict(cos_sin=torch.zeros(300, 34)), "cos_sin: expected an even number of columns, at most D=32, got 34"),
    (dict(window=0), "window: expected at least 1, got 0"),
    (dict(ratio=-4), "ratio: expected at least 0, got -4"),
    (dict(out=torch.zeros(4, 3, 31)), "out: expected shape"),
])
def test_refuses(change, message):
    args, keys, _, _ = make_inputs([(36, 4)])
    args = {**args, **keys, **change}
    positional = [args.pop(n) for n in ("q", "kv_pages", "block_table", "c_pages", "c_table",
                                           "query_start_loc", "seq_lens")]
    with ops.use_backend("reference"), pytest.raises(ValueError, match="sparse_paged_attention: " + message):
        ops.sparse_paged_attention(*positional, **args)


@pytest.mark.parametrize("change,message", [
    (dict(query_start_loc=torch.tensor([0, 5], dtype=torch.int32)),
     "query_start_loc: expected values rising to at most T=4, got 5"),
    (dict(seq_lens=torch.tensor([-1], dtype=torch.int32)),
     "seq_lens: expected 0 or at least the 4 rows of request 0, got -1"),
    (dict(block_table=torch.full((1, 5), 70, dtype=torch.int32)),
     "block_table: expected -1 or a page below 7 at column 3 of request 0, got 70"),
    (dict(c_table=torch.full((1, 3), -2, dtype=torch.int32)),
     "c_table: expected -1 or a page below 5 at column 0 of request 0, got -2"),
    (dict(cos_sin=torch.zeros(39, 8)), "cos_sin: expected at least 40 rows for request 0, got 39"),
])
def test_cpu_refuses_integers_that_lead_nowhere(change, message):
    args, keys, _, _ = make_inputs([(36, 4)])
    keys.update({n: change[n] for n in change if n in keys})
    args.update({n: change[n] for n in change if n in args})
    with ops.use_backend("cpu"), pytest.raises(ValueError, match="sparse_paged_attention: " + message):
        ops.sparse_paged_attention(*args.values(), **keys)
