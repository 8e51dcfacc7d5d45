# SPDX-License-Identifier: Apache-2.0
"""Dense products of a layer for few rows, with what stands before or behind them."""
from ._dispatch import kernel, new, op


@op("(Tensor x, Tensor w, *, int groups=1, Tensor? norm_weight=None, float eps=0.0) -> Tensor")
def linear(x, w, *, groups=1, norm_weight=None, eps=0.0, out=None):
    """``y = x W``, block-diagonal in ``groups`` equal blocks: ``out[t, g*N + n] = sum_k x'[t, g*K + k] w[g*K + k, n]``.

    x' is x, or with ``norm_weight`` its RMSNorm ``x * norm_weight / sqrt(mean(x^2) + eps)`` over the whole row, rounded
    to x's dtype. fp32 products and sums, one rounding. A row's bits do not depend on the other rows. Formula: a linear
    layer; DeepSeek-V4's q_norm before wq_b, and its grouped wo_a.

    Args:
        x: ``[T, G*K]`` float32 or bfloat16. w: ``[G*K, N]`` (in, out) float32 or bfloat16.
        groups: G, at least 1. norm_weight: ``[G*K]`` float32 or bfloat16, or None. eps: of the norm.
        out: ``[T, G*N]``, float32 if x or w is, else bfloat16; or None to allocate.

    Returns:
        out.

    Raises:
        ValueError: an argument outside this contract.
    """
    if out is None:
        out = new(w if w.dtype.itemsize > x.dtype.itemsize else x, (x.shape[0], groups * w.shape[1]))
    kernel("linear", x, w, norm_weight, out, groups, eps)
    return out


@op("(Tensor x, Tensor gate, *, int topk, float scaling, Tensor? bias=None, Tensor? table=None, Tensor? ids=None) -> "
    "(Tensor, Tensor)")
def route_experts(x, gate, *, topk, scaling, bias=None, table=None, ids=None, out=None):
    """The router of a MoE layer: ``score = sqrt(softplus(x gate))`` (fp32), and of each row the ``topk`` experts of
    highest ``score + bias``, or with a hash table those that row ``ids[t]`` of it names. Formula: DeepSeek-V4.

    Args:
        x: ``[T, d]`` float32 or bfloat16. gate: ``[d, E]`` (in, out) float32 or bfloat16.
        topk: k, experts of each row, at most E. scaling: positive; the weights of a row sum up to it.
        bias: ``[E]`` float32; None exactly if there is a table.
        table: ``[V, k]`` int32 or int64 with experts 0 .. E-1. ids: ``[T]`` int32 or int64, its rows; both or none.
        out: the tuple that is returned, or None to allocate.

    Returns:
        ``(topk_ids, topk_weights)``, ``[T, k]`` int32 and float32: the choice in falling order of score + bias (equal:
        the lower number first; NaN counts as the largest) or as the table has it, and ``score * scaling / (sum of the
        chosen scores + 1e-20)``.

    Raises:
        ValueError: an argument outside this contract; on the CPU also ids and experts that do not exist.
    """
    if topk < 0:
        raise ValueError(f"route_experts: topk: expected at least 0, got {topk}")
    if out is None:
        out = new(x, (x.shape[0], topk), "int32"), new(x, (x.shape[0], topk), "float32")
    kernel("route_experts", x, gate, bias, table, ids, *out, scaling)
    return out
