# SPDX-License-Identifier: Apache-2.0
"""The Target's own ops: compressor, indexer, joint window + compressed attention, experts.

Rows of a call are packed request-major: request b owns rows ``query_start_loc[b] .. query_start_loc[b+1] - 1``;
``s = seq_lens[b] - rows of b`` is its committed length and its j-th row stands at position ``s + j``. A request with
``seq_lens`` 0 is padding: nothing of it is read or written; so are rows from ``query_start_loc[B]`` on. Entry w of ratio
r covers positions ``r*w .. r*w + r-1`` and is visible to position p while ``w < (p + 1) // r``. Lengths and tables are
int32 (int64 accepted).
"""
from ._dispatch import kernel, new, op


@op("(Tensor kv, Tensor gate, Tensor ape, Tensor norm_weight, Tensor cos_sin, Tensor(a!) state, Tensor rows, "
    "Tensor query_start_loc, Tensor seq_lens, Tensor positions, Tensor locs, Tensor(b!) pages, *, int ratio, "
    "float eps) -> ()", mutates=("state", "pages"))
def compress_kv(kv, gate, ape, norm_weight, cos_sin, state, rows, query_start_loc, seq_lens, positions, locs, pages,
                *, ratio, eps):
    """Make the compressed entries that this call completes, then keep its rows for later calls.

    Entry w: per-channel softmax of ``gate + ape[p % ratio]`` over its candidates, weighted sum of ``kv``, RMSNorm,
    RoPE at the group start. coff 1: the ratio positions of group w. coff 2 (overlap): columns [0, D) of group w-1,
    then columns [D, 2D) of group w; kv 0 and score -inf before position 0. Rows of this call come from kv and gate,
    older ones from ``state``, which is read before it is written: a rejected window needs no rollback while
    ``ring >= n + coff*ratio - 2``. Formula: DeepSeek-V4's compressors (C4: ratio 4, coff 2; C128: ratio 128, coff 1).

    Args:
        kv, gate: ``[T, coff*D]`` float32 projections, coff 1 or 2.
        ape: ``[ratio, coff*D]`` float32, added to the gate of position p in row ``p % ratio``.
        norm_weight: ``[D]`` float32 or bfloat16; D is a multiple of 8 up to 512.
        cos_sin: ``[max_pos, R]`` float32, R/2 cosines then R/2 sines; interleaved pairs of the last R dims.
        state: ``[S, ring, 2*coff*D]`` float32, mutated: position p of a request lies in ``state[row, p % ring]``, kv
            columns then score columns (ape added). Cleared: kv 0, score -inf. ``ring >= coff*ratio``.
        rows: ``[B]`` int64, the requests' rows of ``state``.
        query_start_loc, seq_lens: ``[B+1]`` and ``[B]``, see the module.
        positions: ``[M]`` int64, RoPE positions (group starts) of the entries in request order.
        locs: ``[M]`` int64, their slots ``page * page_size + offset`` in ``pages``; -1: not written.
        pages: ``[P, page, D]`` float32 or bfloat16, mutated.
        ratio: at least 2. eps: of the RMSNorm.

    Raises:
        ValueError: an argument outside this contract.
    """
    kernel("compress_kv", kv, gate, ape, norm_weight, cos_sin, state, rows, query_start_loc, seq_lens, positions, locs,
           pages, ratio, eps)


@op("(Tensor q, Tensor weights, Tensor index_pages, Tensor table, Tensor query_start_loc, Tensor seq_lens, *, "
    "int ratio, int topk, Tensor? cos_sin=None) -> Tensor")
def lightning_index(q, weights, index_pages, table, query_start_loc, seq_lens, *, ratio, topk, cos_sin=None, out=None):
    """The ``topk`` visible entries of highest ``sum_h weights[t,h] * relu(RoPE(q[t,h]) . k_w)`` (fp32), per row.

    Formula: DeepSeek-V4's lightning indexer, without Hadamard and quantisation.

    Args:
        q: ``[T, H, D]`` float32 or bfloat16; D is a multiple of 8 up to 512.
        weights: ``[T, H]`` float32. A positive factor common to a row changes nothing and may be left out.
        index_pages: ``[P, page, D]`` of q's dtype.
        table: ``[B, pages]``: entry w of a request lies in page ``table[b, w // page]``; -1: not allocated.
        query_start_loc, seq_lens: ``[B+1]`` and ``[B]``, see the module.
        ratio: at least 2. topk: at least 0, entries per row.
        cos_sin: ``[max_pos, R]`` float32: rotate the last R dims of q at p; None: q is rotated already.
        out: ``[T, topk]`` int32, or None to allocate.

    Returns:
        ``out``: ascending entry numbers, then -1 where fewer are visible. Equal scores: lower entry first; a NaN
        score counts as the largest. Rows of padding requests are -1.

    Raises:
        ValueError: an argument outside this contract.
    """
    if topk < 0:
        raise ValueError(f"lightning_index: topk: expected at least 0, got {topk}")
    if out is None:
        out = new(q, (q.shape[0], topk), "int32")
    kernel("lightning_index", q, weights, index_pages, table, query_start_loc, seq_lens, cos_sin, out, ratio)
    return out


@op("(Tensor q, Tensor kv_pages, Tensor block_table, Tensor? c_pages, Tensor? c_table, Tensor query_start_loc, "
    "Tensor seq_lens, *, int window, float scale, int ratio, Tensor? indices=None, Tensor? sink=None, "
    "Tensor? cos_sin=None) -> Tensor")
def sparse_paged_attention(q, kv_pages, block_table, c_pages, c_table, query_start_loc, seq_lens, *, window, scale,
                           ratio, indices=None, sink=None, cos_sin=None, out=None):
    """Attention over the sliding window and compressed entries: one softmax, keys are the values too.

    Row at position p sees window keys ``max(0, p-window+1) .. p`` and, of the entries ``w < (p+1) // ratio``, all or
    those named by ``indices``. The sink adds ``exp(sink)`` to the denominator only. Formula: DeepSeek-V4.

    Args:
        q: ``[T, H, D]`` float32 or bfloat16, rotated; D is a multiple of 16 from 32 to 512.
        kv_pages: ``[P, page, D]`` of q's dtype; block_table: ``[B, pages]``, -1: not seen.
        c_pages: ``[Pc, c_page, D]`` of q's dtype; c_table: ``[B, c_pages]``. Both None exactly if ratio is 0 or 1,
            which mean "no compressed part".
        query_start_loc, seq_lens: ``[B+1]`` and ``[B]``, see the module.
        window: at least 1. scale: multiplies q.k (not the sink).
        indices: ``[T, k]`` int32, entries of each row, negative or not visible ones skipped; None: all visible.
        sink: ``[H]`` float32. cos_sin: ``[max_pos, R]`` float32: rotate the output's last R dims back at p.
        out: ``[T, H, D]`` of q's dtype, or None to allocate.

    Returns:
        ``out``; a row that sees no key is 0. Rows of padding requests are 0, or untouched in a given ``out``.

    Raises:
        ValueError: an argument outside this contract.
    """
    zero_padding = int(out is None)
    if out is None:
        out = new(q, q.shape)
    kernel("sparse_paged_attention", q, kv_pages, block_table, c_pages, c_table, query_start_loc, seq_lens, indices,
           sink, cos_sin, out, window, scale, ratio, zero_padding)
    return out


@op("(Tensor x, Tensor topk_ids, Tensor topk_weights, Tensor w13, Tensor w2, *, float limit, "
    "Tensor? shared_w13=None, Tensor? shared_w2=None) -> Tensor")
def moe_experts(x, topk_ids, topk_weights, w13, w2, *, limit, shared_w13=None, shared_w2=None, out=None):
    """Routed plus shared experts: ``sum_i topk_weights[t,i] * f_e(x[t]) + f_shared(x[t])``, e = topk_ids[t,i], with
    ``f(x) = w2 @ (silu(min(g, limit)) * clamp(u, -limit, limit))`` and ``[g; u] = w13 @ x``. Formula: DeepSeek-V4.

    Args:
        x: ``[T, d]`` float32 or bfloat16.
        topk_ids: ``[T, k]`` int32 or int64; -1 skips. topk_weights: ``[T, k]`` float32.
        w13: ``[E, 2*inter, d]`` of x's dtype or bfloat16, gate rows first. w2: ``[E, d, inter]`` of w13's dtype.
        limit: positive; infinity: no clamp.
        shared_w13, shared_w2: ``[2*shared_inter, d]``, ``[d, shared_inter]`` of w13's dtype, or both None.
        out: ``[T, d]`` of x's dtype, or None to allocate.

    Returns:
        ``out``: fp32 accumulation, one rounding.

    Raises:
        ValueError: an argument outside this contract.
    """
    if out is None:
        out = new(x, x.shape)
    kernel("moe_experts", x, topk_ids, topk_weights, w13, w2, shared_w13, shared_w2, out, limit)
    return out
