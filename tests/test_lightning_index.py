# SPDX-License-Identifier: Apache-2.0
import pytest
import torch

from dsv4spec import ops
from dsv4spec.models.rope import rope_table
from util import BACKENDS, Guarded, rng, strided


def with_kernel(backend):
    if backend != "reference" and "lightning_index" not in ops._dispatch.backend_ops(backend):
        pytest.skip(f"{backend} has no lightning_index kernel")
    return ops.use_backend(backend)


def lengths(pairs):
    """query_start_loc and seq_lens of (committed length, rows) pairs; (None, rows) is padding."""
    rows = [n for _, n in pairs]
    qsl = torch.tensor([0, *torch.tensor(rows, dtype=torch.int64).cumsum(0).tolist()], dtype=torch.int32)
    return qsl, torch.tensor([0 if s is None else s + n for s, n in pairs], dtype=torch.int32)


def make_inputs(pairs, H=3, D=24, page=4, ratio=4, dtype=torch.float32):
    """Keys in scattered pages; pages that no request owns, and entries not yet visible, hold NaN."""
    g = rng("index", *pairs, H, D, page)
    qsl, seq_lens = lengths(pairs)
    T, counts = int(qsl[-1]), [(0 if s is None else (s + n) // ratio) for s, n in pairs]
    wide = max(1, -(-max(counts) // page))
    table = torch.full((len(pairs), wide), -1, dtype=torch.int32)
    free = torch.randperm(len(pairs) * wide + 2, generator=g).int()
    pages = torch.full((len(free), page, D), torch.nan, dtype=dtype)
    keys = []
    for b, count in enumerate(counts):
        need = -(-count // page)
        table[b, :need], free = free[:need], free[need:]
        k = torch.randn(count, D, generator=g).to(dtype)
        keys.append(k)
        for w in range(count):
            pages[table[b, w // page], w % page] = k[w]
    q, weights = torch.randn(T, H, D, generator=g).to(dtype), torch.randn(T, H, generator=g)
    return dict(q=q, weights=weights, index_pages=pages, table=table, query_start_loc=qsl, seq_lens=seq_lens), keys


def expected(args, keys, pairs, topk, ratio=4):
    """Row by row, by the formula in float64; stable: equal scores keep their order."""
    out, t = torch.full((len(args["q"]), topk), -1, dtype=torch.int32), 0
    for (s, n), k in zip(pairs, keys):
        for j in range(n):
            if s is not None:
                k64 = k[:(s + j + 1) // ratio].double()
                score = (args["weights"][t].double()[:, None] * (args["q"][t].double() @ k64.T).relu()).sum(0)
                best = sorted(range(len(score)), key=lambda w: -score[w].item())[:topk]
                out[t, :len(best)] = torch.tensor(sorted(best), dtype=torch.int32)
            t += 1
    return out


PAIRS = [[(0, 40)], [(100, 1)], [(37, 4), (8, 4), (0, 4)], [(None, 3), (62, 5), (None, 1), (3, 1), (0, 2)]]


@pytest.mark.parametrize("backend", BACKENDS)
@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
@pytest.mark.parametrize("pairs", PAIRS)
@pytest.mark.parametrize("topk", [1, 5, 8, 512])
def test_matches_formula(backend, dtype, pairs, topk):
    args, keys = make_inputs(pairs, dtype=dtype)
    out = Guarded((len(args["q"]), topk), torch.int32)
    given = {n: strided(t) if n in ("q", "index_pages", "table", "weights") else t for n, t in args.items()}
    with with_kernel(backend):
        ops.lightning_index(*given.values(), ratio=4, topk=topk, out=out.tensor)
        wide = ops.lightning_index(*args.values(), ratio=4, topk=topk)
    assert torch.equal(out.tensor, expected(args, keys, pairs, topk))
    assert torch.equal(out.tensor, wide)
    out.check()


@pytest.mark.parametrize("backend", BACKENDS)
def test_rotates_the_query(backend):
    pairs = [(37, 4), (8, 4)]
    args, keys = make_inputs(pairs)
    cos_sin = rope_table(64, 16, 10000.0)
    position = torch.tensor([37, 38, 39, 40, 8, 9, 10, 11])
    cos, sin = cos_sin[position][:, None].chunk(2, -1)
    turned = args["q"].clone()
    a, b = args["q"][..., 8::2], args["q"][..., 9::2]
    turned[..., 8::2], turned[..., 9::2] = a * cos - b * sin, b * cos + a * sin
    with with_kernel(backend):
        got = ops.lightning_index(*args.values(), ratio=4, topk=4, cos_sin=cos_sin)
    assert torch.equal(got, expected({**args, "q": turned}, keys, pairs, 4))


@pytest.mark.parametrize("backend", BACKENDS)
def test_ties_go_to_the_lower_entry(backend):
    args, _ = make_inputs([(79, 1)])
    args["index_pages"] = torch.ones_like(args["index_pages"])
    args["q"], args["weights"] = torch.ones_like(args["q"]), torch.ones_like(args["weights"])
    page = args["table"][0, 2]
    args["index_pages"][page, 1] = 2  # entry 9 is better than the others, which are equal
    with with_kernel(backend):
        got = ops.lightning_index(*args.values(), ratio=4, topk=4)
    assert got.tolist() == [[0, 1, 2, 9]]


@pytest.mark.parametrize("backend", BACKENDS)
def test_nan_is_above_infinity_and_minus_infinity_above_what_is_not_visible(backend):
    """One head, weight 1 or -1, a query that picks a key's first value: a NaN counts as the largest, and an entry of score
    -inf is chosen before one without a page, or of a later position."""
    inf, nan = torch.inf, torch.nan
    keys = torch.zeros(3, 4, 8)
    keys[:, :, 0] = torch.tensor([[inf, 2, nan, 3], [0, -nan, inf, 1], [inf, inf, inf, inf]])
    q = torch.zeros(2, 1, 8)
    q[:, :, 0] = 1
    table, starts = torch.tensor([[-1, 0, 1, 2]], dtype=torch.int32), torch.tensor([0, 2])
    with with_kernel(backend):
        def chosen(topk, sign):
            return ops.lightning_index(q, torch.full((2, 1), sign), keys, table, starts, torch.tensor([52]), ratio=4,
                                       topk=topk).tolist()[1]  # the row at position 51 sees 13 entries, the first 4 without a page
        assert [chosen(k, 1.0) for k in (1, 2, 3, 4)] == [[6], [6, 9], [4, 6, 9], [4, 6, 9, 10]]
        assert chosen(8, -1.0) == [4, 5, 6, 7, 8, 9, 10, 11]
        assert chosen(9, -1.0) == [4, 5, 6, 7, 8, 9, 10, 11, 12]  # all that are visible


@pytest.mark.parametrize("backend", BACKENDS)
def test_a_row_is_the_same_in_every_batch(backend):
    args, _ = make_inputs([(60, 4)])
    with with_kernel(backend):
        four = ops.lightning_index(*args.values(), ratio=4, topk=6)
        for j in range(4):
            one = {**args, "q": args["q"][j:j + 1], "weights": args["weights"][j:j + 1]}
            one["query_start_loc"], one["seq_lens"] = lengths([(60 + j, 1)])
            assert torch.equal(ops.lightning_index(*one.values(), ratio=4, topk=6), four[j:j + 1])


@pytest.mark.parametrize("backend", BACKENDS)
def test_empty(backend):
    args, _ = make_inputs([(0, 0)])
    with with_kernel(backend):
        assert ops.lightning_index(*args.values(), ratio=4, topk=3).shape == (0, 3)
        args, _ = make_inputs([(9, 2)])
        assert ops.lightning_index(*args.values(), ratio=4, topk=0).shape == (2, 0)
        args["table"] = torch.zeros(1, 0, dtype=torch.int32)
        assert (ops.lightning_index(*args.values(), ratio=4, topk=3) == -1).all()


@pytest.mark.parametrize("change,message", [
    (dict(weights=torch.zeros(4, 2)), r"weights: expected shape \[T=4, H=3\], got \[4, 2\]"),
    (dict(weights=torch.zeros(4, 3).bfloat16()), "weights: expected dtype float32, got bfloat16"),
    (dict(index_pages=torch.zeros(2, 4, 16)), r"index_pages: expected shape \[P=2, page=4, D=24\]"),
    (dict(index_pages=torch.zeros(2, 4, 24).bfloat16()), "index_pages: expected dtype float32, got bfloat16"),
    (dict(table=torch.zeros(1, 2)), "table: expected dtype int32 or int64, got float32"),
    (dict(seq_lens=torch.zeros(2, dtype=torch.int32)), "seq_lens: expected shape"),
    (dict(query_start_loc=torch.zeros(3, dtype=torch.int32)), "query_start_loc: expected shape"),
    (dict(cos_sin=torch.zeros(50, 26)), "cos_sin: expected an even number of columns, at most D=24, got 26"),
    (dict(ratio=1), "ratio: expected at least 2, got 1"),
    (dict(topk=-1), "topk: expected at least 0, got -1"),
    (dict(out=torch.zeros(4, 3, dtype=torch.int64)), "out: expected dtype int32, got int64"),
])
def test_refuses(change, message):
    args = {**make_inputs([(36, 4)])[0], "ratio": 4, "topk": 3, **change}
    positional = [args.pop(n) for n in ("q", "weights", "index_pages", "table", "query_start_loc", "seq_lens")]
    with ops.use_backend("reference"), pytest.raises(ValueError, match="lightning_index: " + message):
        ops.lightning_index(*positional, **args)


@pytest.mark.parametrize("change,message", [
    (dict(query_start_loc=torch.tensor([1, 4], dtype=torch.int32)),
     "query_start_loc: expected 0 as its first value, got 1"),
    (dict(query_start_loc=torch.tensor([0, 5], dtype=torch.int32)),
     "query_start_loc: expected values rising to at most T=4, got 5"),
    (dict(seq_lens=torch.tensor([3], dtype=torch.int32)),
     "seq_lens: expected 0 or at least the 4 rows of request 0, got 3"),
    (dict(table=torch.full((1, 3), 99, dtype=torch.int32)),
     "table: expected -1 or a page below 5 at column 0 of request 0, got 99"),
    (dict(cos_sin=torch.zeros(39, 8)), "cos_sin: expected at least 40 rows for request 0, got 39"),
])
def test_cpu_refuses_integers_that_lead_nowhere(change, message):
    args = {**make_inputs([(36, 4)])[0], **change}
    with ops.use_backend("cpu"), pytest.raises(ValueError, match="lightning_index: " + message):
        ops.lightning_index(*[args.pop(n) for n in list(args) if n != "cos_sin"], ratio=4, topk=3, **args)
