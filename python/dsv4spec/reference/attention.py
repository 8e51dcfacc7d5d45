# SPDX-License-Identifier: Apache-2.0
"""References of the window-attention ops. ``out`` only tells what padding rows keep."""
import torch

_CHUNK_BYTES = 256 << 20  # gathered keys at a time


def _wide(*tensors: torch.Tensor):
    """fp32 arithmetic, or fp64 if any input is fp64."""
    dtype = torch.float64 if any(t.dtype == torch.float64 for t in tensors) else torch.float32
    return tuple(t.to(dtype) for t in tensors)


def rope(x: torch.Tensor, cos_sin: torch.Tensor, positions: torch.Tensor, *, inverse: bool = False) -> torch.Tensor:
    """Rotate the pairs (2i, 2i+1) of the trailing R dims of ``x [T, ..., D]`` by the angles of ``positions [T]``.

    Positions outside the table take its nearest row; callers mask such rows.
    """
    if cos_sin.shape[0] == 0:
        return x
    r = cos_sin.shape[1]
    angles = cos_sin[positions.clamp(0, cos_sin.shape[0] - 1)].to(x.dtype)
    angles = angles.view(x.shape[0], *[1] * (x.dim() - 2), r)
    cos, sin = angles.chunk(2, dim=-1)
    if inverse:
        sin = -sin
    a, b = x[..., -r:].unflatten(-1, (-1, 2)).unbind(-1)
    turned = torch.stack((a * cos - b * sin, a * sin + b * cos), dim=-1).flatten(-2)
    return torch.cat((x[..., :-r], turned), dim=-1)


def _rms(x: torch.Tensor, eps: float) -> torch.Tensor:
    return x * torch.rsqrt(x.square().mean(dim=-1, keepdim=True) + eps)


def q_norm_rope(q, cos_sin, positions, *, eps, out=None):
    (x,) = _wide(q)
    real = ((positions >= 0) & (positions < cos_sin.shape[0]))[:, None, None]
    kept = torch.zeros_like(q) if out is None else out
    return torch.where(real, rope(_rms(x, eps), cos_sin, positions).to(q.dtype), kept)


def swa_store_kv(kv, kv_norm_weight, cos_sin, positions, slots, kv_pages, *, eps):
    pages, page, _ = kv_pages.shape
    if kv.shape[0] == 0 or pages == 0:
        return
    (x,) = _wide(kv)
    rows = rope(_rms(x, eps) * kv_norm_weight.to(x.dtype), cos_sin, positions).to(kv_pages.dtype)
    stored = (slots >= 0) & (slots < pages * page) & (positions >= 0) & (positions < cos_sin.shape[0])
    # No boolean indexing (a host read on devices): the other rows repeat the write of the first stored row, or
    # write back what slot 0 holds if there is none.
    first = stored.int().argmax()
    slot = torch.where(stored, slots, torch.where(stored[first], slots[first], 0))
    row = torch.where(stored[:, None], rows, torch.where(stored[first], rows[first], kv_pages[0, 0]))
    kv_pages[slot.div(page, rounding_mode="floor"), slot.remainder(page)] = row


def swa_paged_attention(q, kv_pages, block_table, query_start_loc, seq_lens, *, window, scale, sink=None,
                        tree_mask=None, cos_sin=None, out=None):
    T, B = q.shape[0], seq_lens.shape[0]
    result = torch.zeros_like(q) if out is None else out.clone()
    span = min(window, block_table.shape[1] * kv_pages.shape[1])
    if T == 0 or B == 0 or kv_pages.shape[0] == 0 or span == 0 or (tree_mask is not None and tree_mask.numel() == 0):
        return result

    # Request and place of every row.
    starts, lens, table = query_start_loc.long(), seq_lens.long(), block_table.long()
    t = torch.arange(T, device=q.device)
    request = torch.searchsorted(starts[1:].contiguous(), t, right=True)
    real = request < B
    request = request.clamp(max=B - 1)
    j = t - starts[request]
    s = lens[request] - (starts[1:] - starts[:-1])[request]
    real &= (lens[request] > 0) & (s >= 0)

    # Logical positions of the keys that a row may see, and whether it does.
    if tree_mask is None:
        p = s + j
        last = p
        node_keys = node_seen = None
    else:
        n = tree_mask.shape[1]
        depth = tree_mask.sum(dim=-1)  # [B, n]; p_j = s + depth - 1
        j = j.clamp(0, n - 1)
        p = s + depth[request, j] - 1
        last = s - 1
        node_keys = s[:, None] + torch.arange(n, device=q.device)
        node_seen = tree_mask[request, j] & (p[:, None] - (s[:, None] + depth[request] - 1) < window)
    keys = last[:, None] - torch.arange(span - 1, -1, -1, device=q.device)
    seen = (keys >= 0) & (keys > p[:, None] - window)
    if node_keys is not None:
        keys, seen = torch.cat((keys, node_keys), dim=1), torch.cat((seen, node_seen), dim=1)

    step = max(1, _CHUNK_BYTES // (8 * keys.shape[1] * q.shape[2]))
    for at in range(0, T, step):
        rows = slice(at, at + step)
        o = _attend(q[rows], kv_pages, table[request[rows]], keys[rows], seen[rows], scale, sink)
        if cos_sin is not None:
            o = rope(o, cos_sin, p[rows], inverse=True)
        result[rows] = torch.where(real[rows, None, None], o.to(q.dtype), result[rows])
    return result


def _attend(q, kv_pages, table, keys, seen, scale, sink):
    """Rows ``q [M, H, D]`` over their own key lists ``keys``, ``seen [M, K]`` through ``table [M, maxp]``."""
    pages, page, _ = kv_pages.shape
    column = keys.div(page, rounding_mode="floor")
    seen = seen & (column >= 0) & (column < table.shape[1])
    number = table.gather(1, column.clamp(0, table.shape[1] - 1))
    seen = seen & (number >= 0) & (number < pages)
    q, kv = _wide(q, kv_pages[number.clamp(0, pages - 1), keys.remainder(page)])  # kv [M, K, D]
    kv = torch.where(seen[..., None], kv, 0.0)
    x = torch.einsum("mhd,mkd->mhk", q, kv) * scale
    x = torch.where(seen[:, None, :], x, float("-inf"))
    logits = x if sink is None else torch.cat((x, sink.to(x.dtype)[None, :, None].expand(x.shape[0], -1, 1)), dim=2)
    top = logits.amax(dim=-1, keepdim=True)
    top = torch.where(torch.isinf(top) & (top < 0), 0.0, top)
    e = torch.exp(x - top)
    rest = torch.zeros_like(top) if sink is None else torch.exp(sink.to(x.dtype)[None, :, None] - top)
    rest = torch.where(torch.isnan(rest) & torch.isinf(top), 1.0, rest)  # sink = +inf: all weight is the sink's
    o = torch.einsum("mhk,mkd->mhd", e, kv) / (e.sum(dim=-1, keepdim=True) + rest)
    return torch.where(seen.any(dim=1)[:, None, None], o, 0.0)
