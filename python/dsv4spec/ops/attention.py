# SPDX-License-Identifier: Apache-2.0
"""Window attention: query norm + RoPE, KV store, paged sliding-window attention.

``cos_sin`` is fp32 ``[max_pos, R]``, first R/2 columns cos, last R/2 sin (``dsv4spec.models.rope.rope_table``); R is
even and at most D. RoPE turns the pairs (2i, 2i+1) of the trailing R dims of a head. Head size D: a multiple of 16
from 32 to 512. fp32 arithmetic, one rounding. A row's result does not depend on the other rows of a call.
"""
from ._dispatch import kernel, new, op


@op("(Tensor q, Tensor cos_sin, Tensor positions, *, float eps) -> Tensor")
def q_norm_rope(q, cos_sin, positions, *, eps, out=None):
    """Unweighted RMS norm of every query head, then RoPE on its trailing dims.

    Formula: DeepSeek-V4's query path after ``wq_b``.

    Args:
        q: ``[T, H, D]`` float32, bfloat16 or float16; may be a strided slice of a fused projection.
        cos_sin: ``[max_pos, R]`` float32.
        positions: ``[T]`` int64. -1 marks padding: the row is not read, and its output is zero when the op
            allocates, untouched when ``out`` is given.
        eps: added to the mean of squares.
        out: like q, or None to allocate; may be ``q`` itself.

    Returns:
        ``out``, ``[T, H, D]`` of q's dtype.

    Raises:
        ValueError: an argument outside this contract; on the CPU also a position outside [-1, max_pos).
    """
    zero_padding = int(out is None)
    if out is None:
        out = new(q, q.shape)
    kernel("q_norm_rope", q, cos_sin, positions, out, eps, zero_padding)
    return out


@op("(Tensor kv, Tensor kv_norm_weight, Tensor cos_sin, Tensor positions, Tensor slots, Tensor(a!) kv_pages, *, "
    "float eps) -> ()", mutates=("kv_pages",))
def swa_store_kv(kv, kv_norm_weight, cos_sin, positions, slots, kv_pages, *, eps):
    """Weighted RMS norm of the shared K = V vector, RoPE on its trailing dims, store into the paged cache.

    Formula: DeepSeek-V4's kv path after ``wkv``; slot = page * page_size + offset.

    Args:
        kv: ``[T, D]`` float32, bfloat16 or float16; may be a strided slice of a fused projection.
        kv_norm_weight: ``[D]`` float32 or bfloat16.
        cos_sin: ``[max_pos, R]`` float32.
        positions: ``[T]`` int64, in [0, max_pos) where the slot is not -1.
        slots: ``[T]`` int64, distinct. -1: the row is not read and nothing is written.
        kv_pages: ``[P, page, D]`` of kv's dtype (there is no conversion), written; page is a multiple of 4.
        eps: added to the mean of squares.

    Raises:
        ValueError: an argument outside this contract; on the CPU also a slot or position out of range (then
            nothing has been written).
    """
    kernel("swa_store_kv", kv, kv_norm_weight, cos_sin, positions, slots, kv_pages, eps)


@op("(Tensor q, Tensor kv_pages, Tensor block_table, Tensor query_start_loc, Tensor seq_lens, *, int window, "
    "float scale, Tensor? sink=None, Tensor? tree_mask=None, Tensor? cos_sin=None) -> Tensor")
def swa_paged_attention(q, kv_pages, block_table, query_start_loc, seq_lens, *, window, scale, sink=None,
                        tree_mask=None, cos_sin=None, out=None):
    """Sliding-window attention over a paged cache whose vectors are key and value at once (one kv head).

    Decode, verify, extend and prefill are one op: request b owns the query rows
    ``query_start_loc[b] : query_start_loc[b + 1]``, whose own keys are in the cache already. With
    s = seq_lens[b] - rows, row j stands at p_j = s + j and sees the keys max(0, p_j - window + 1) .. p_j.
    ``softmax(scale * q . K) K``, the sink logit in the denominator only; no visible key gives 0. Formula:
    DeepSeek-V4's window attention; C contract: include/dsv4spec/attention.h.

    Args:
        q: ``[T, H, D]`` float32, bfloat16 or float16.
        kv_pages: ``[P, page, D]`` of q's dtype; page is a multiple of 4.
        block_table: ``[B, maxp]`` int32 or int64, page of every ``page`` logical positions. Only entries of visible
            keys are used; others may be -1.
        query_start_loc: ``[B + 1]`` int32 or int64, rising from 0 to at most T.
        seq_lens: ``[B]`` int32 or int64: keys of the request, query rows included. 0 marks padding, whatever its
            rows; so are the rows from ``query_start_loc[B]`` on. Output of padding is zero when the op allocates,
            untouched when ``out`` is given.
        window: keys a row sees at most, its own included; >= 1.
        scale: factor of the logits.
        sink: ``[H]`` float32, one logit per head (not scaled); -inf switches it off, +inf gives 0.
        tree_mask: ``[B, n, n]`` bool: every request that is not padding has n rows, row j stands at
            p_j = s + popcount(row j) - 1, node i's key lies at logical position s + i, and row j sees committed
            keys max(0, p_j - window + 1) .. s - 1 and nodes i with mask[j, i] and p_j - p_i < window.
        cos_sin: ``[max_pos, R]`` float32: apply the inverse RoPE at p_j to the output (V carries rotation).
        out: like q, or None to allocate.

    Returns:
        ``out``, ``[T, H, D]`` of q's dtype.

    Raises:
        ValueError: an argument outside this contract; on the CPU also integers that lead nowhere: a needed page
            that is -1 or out of range (named with its request), seq_lens below the rows, a position beyond cos_sin.
    """
    zero_padding = int(out is None)
    if out is None:
        out = new(q, q.shape)
    kernel("swa_paged_attention", q, kv_pages, block_table, query_start_loc, seq_lens, sink, tree_mask, cos_sin, out,
           window, scale, zero_padding)
    return out
