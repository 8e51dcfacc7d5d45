# SPDX-License-Identifier: Apache-2.0
"""References of the Target's own ops. Every step is a tensor operation: shapes decide, never values on the host."""
import torch
import torch.nn.functional as F

from .mhc import _wide

_CHUNK = 1 << 25  # elements of the largest gathered tensor; longer calls are cut by rows, which are independent


def _row_requests(query_start_loc, seq_lens, T):
    """Per row: its request, its position, and whether it is a row of a real request (not of padding, nor behind the
    last request)."""
    row = torch.arange(T, device=seq_lens.device)
    request = torch.searchsorted(query_start_loc[1:], row, right=True).clamp_max(seq_lens.shape[0] - 1)
    length = seq_lens[request].long()
    return request, length - query_start_loc[1:][request] + row, (length > 0) & (row < query_start_loc[-1])


def _put(target, page, offset, values, keep):
    """``target[page[i], offset[i]] = values[i]`` where ``keep[i]``. The others repeat a kept one; if there is none,
    the old value is put back."""
    if target.shape[0] == 0:
        return
    i = torch.where(keep, torch.arange(keep.shape[0], device=keep.device), keep.int().argmax())
    page, offset = page[i].clamp_min(0), offset[i].clamp_min(0)
    target[page, offset] = torch.where(keep[i][:, None], values.to(target.dtype)[i], target[page, offset])


def _rope(x, cos_sin, positions, sign=1.0):
    """Rotate the interleaved pairs of the last R dims of ``x`` [N, ..., D]."""
    R = cos_sin.shape[1]
    cos, sin = cos_sin[positions].to(x.dtype).view(-1, *[1] * (x.dim() - 2), R).chunk(2, dim=-1)
    even, odd = x[..., -R::2], x[..., x.shape[-1] - R + 1::2]
    sin = sin * sign
    turned = torch.stack((even * cos - odd * sin, odd * cos + even * sin), dim=-1).flatten(-2)
    return torch.cat((x[..., :-R], turned), dim=-1) if R < x.shape[-1] else turned


def compress_kv(kv, gate, ape, norm_weight, cos_sin, state, rows, query_start_loc, seq_lens, positions, locs, pages, *,
                ratio, eps):
    T, M, ring = kv.shape[0], positions.shape[0], state.shape[1]
    if T == 0 or rows.shape[0] == 0:
        return
    request, position, live = _row_requests(query_start_loc, seq_lens, T)
    fresh = torch.cat((kv, gate + ape[position.remainder(ratio)]), dim=1)
    if M:
        _compress(fresh, norm_weight, cos_sin, state, rows, query_start_loc, seq_lens, positions, locs, pages, ratio,
                  eps)
    keep = live & (position >= seq_lens[request] - ring)
    _put(state, rows[request], position.remainder(ring), fresh, keep)


def _compress(fresh, norm_weight, cos_sin, state, rows, query_start_loc, seq_lens, positions, locs, pages, ratio, eps):
    T, M, ring, D = fresh.shape[0], positions.shape[0], state.shape[1], pages.shape[2]
    coff = fresh.shape[1] // (2 * D)
    starts, lengths = query_start_loc[:-1].long(), seq_lens.long()
    committed = lengths - query_start_loc[1:].long() + starts
    made = torch.where(lengths > 0, lengths // ratio - committed // ratio, 0)
    ends = made.cumsum(0)
    m = torch.arange(M, device=ends.device)
    request = torch.searchsorted(ends, m, right=True).clamp_max(ends.shape[0] - 1)
    group = committed[request] // ratio + m - (ends - made)[request]
    keep = (m < ends[-1]) & (locs >= 0)
    p = group[:, None] * ratio + torch.arange(-(coff - 1) * ratio, ratio, device=m.device)  # [M, coff*ratio]
    old = p < committed[request][:, None]
    source = (starts[request] - committed[request])[:, None] + p
    ring_row = rows[request].clamp_min(0)[:, None]
    row = torch.where(old[..., None], state[ring_row, p.remainder(ring)], fresh[source.clamp(0, T - 1)])
    if coff == 2:  # columns: Ca kv, Cb kv, Ca score, Cb score
        first = row[:, :ratio].masked_fill((p[:, :ratio] < 0)[..., None], 0)
        k = torch.cat((first[..., :D], row[:, ratio:, D:2 * D]), dim=1)
        score = torch.cat((row[:, :ratio, 2 * D:3 * D].masked_fill((p[:, :ratio] < 0)[..., None], -torch.inf),
                           row[:, ratio:, 3 * D:]), dim=1)
    else:
        k, score = row[..., :D], row[..., D:]
    entry = (k * score.softmax(dim=1)).sum(dim=1)
    entry = entry * torch.rsqrt(entry.square().mean(-1, keepdim=True) + eps) * norm_weight.to(entry.dtype)
    entry = _rope(entry, cos_sin, torch.where(keep, positions, 0))
    _put(pages, locs // pages.shape[1], locs.remainder(pages.shape[1]), entry, keep)


def _entries(pages, table):
    """Every entry a table reaches, [B, N, D], and which have a page, [B, N]."""
    B, page = table.shape[0], pages.shape[1]
    return pages[table.clamp_min(0)].view(B, -1, pages.shape[2]), (table >= 0).repeat_interleave(page, dim=1)


def lightning_index(q, weights, index_pages, table, query_start_loc, seq_lens, *, ratio, topk, cos_sin=None):
    T, N = q.shape[0], table.shape[1] * index_pages.shape[1]
    if T == 0 or N == 0 or topk == 0 or table.shape[0] == 0:
        return q.new_full((T, topk), -1, dtype=torch.int32)
    request, position, live = _row_requests(query_start_loc, seq_lens, T)
    count = torch.where(live, (position + 1) // ratio, 0)
    number = torch.arange(N, device=q.device)
    keys, paged = _entries(index_pages, table)
    visible = (number < count[:, None]) & paged[request]
    if N > topk:
        q, keys = _wide(q, keys)
        if cos_sin is not None:
            q = _rope(q, cos_sin, torch.where(live, position, 0))
        score = torch.einsum("thd,tnd->thn", q, keys[request] if keys.shape[0] > 1 else keys.expand(T, -1, -1))
        score = (score.relu() * weights[..., None]).sum(dim=1).masked_fill(~visible, -torch.inf)
        number = score.sort(dim=-1, descending=True, stable=True).indices
        # A visible score may be -inf too: those not visible go behind it.
        number = number.gather(1, (~visible).gather(1, number).int().sort(dim=-1, stable=True).indices)[:, :topk]
        visible = visible.gather(1, number)
    chosen = torch.where(visible, number, N).sort(dim=-1).values
    return F.pad(chosen.masked_fill(chosen == N, -1), (0, topk - chosen.shape[1]), value=-1).int()


def sparse_paged_attention(q, kv_pages, block_table, c_pages, c_table, query_start_loc, seq_lens, *, window, scale,
                           ratio, indices=None, sink=None, cos_sin=None, out=None):
    T, H, D = q.shape
    if T == 0 or block_table.shape[0] == 0:
        return torch.zeros_like(q) if out is None else out
    request, position, live = _row_requests(query_start_loc, seq_lens, T)
    step = max(1, _CHUNK // (D * (window + (0 if c_table is None else c_table.shape[1] * c_pages.shape[1]))))
    outs = []
    for i in range(0, T, step):
        part = slice(i, i + step)
        keys, seen = _window(kv_pages, block_table, request[part], position[part], live[part], window)
        if ratio > 1:
            chosen = None if indices is None else indices[part].long()
            c_keys, c_seen = _compressed(c_pages, c_table, request[part], position[part], live[part], ratio, chosen)
            keys, seen = torch.cat((keys, c_keys), dim=1), torch.cat((seen, c_seen), dim=1)
        outs.append(_attend(q[part], keys, seen, scale, sink))
    result = torch.cat(outs) if len(outs) > 1 else outs[0]
    if cos_sin is not None:
        result = _rope(result, cos_sin, torch.where(live, position, 0), -1.0)
    result = result.to(q.dtype)
    return result if out is None else torch.where(live[:, None, None], result, out)


def _window(pages, table, request, position, live, window):
    page = pages.shape[1]
    p = position[:, None] + torch.arange(1 - window, 1, device=position.device)
    index = (p // page).clamp(0, table.shape[1] - 1)
    number = table[request[:, None], index]
    seen = (p >= 0) & (p < table.shape[1] * page) & (number >= 0) & live[:, None]
    return pages[number.clamp_min(0), p.remainder(page)], seen


def _compressed(pages, table, request, position, live, ratio, chosen):
    page, N = pages.shape[1], table.shape[1] * pages.shape[1]
    count = torch.where(live, (position + 1) // ratio, 0)
    if chosen is None:
        keys, paged = _entries(pages, table)
        return keys[request], (torch.arange(N, device=count.device) < count[:, None]) & paged[request]
    number = table[request[:, None], (chosen // page).clamp(0, table.shape[1] - 1)]
    seen = (chosen >= 0) & (chosen < count[:, None]) & (chosen < N) & (number >= 0)
    return pages[number.clamp_min(0), chosen.remainder(page)], seen


def _attend(q, keys, seen, scale, sink):
    q, keys = _wide(q, keys)
    keys = keys.masked_fill(~seen[..., None], 0)  # unread memory may hold NaN
    logits = (torch.matmul(q, keys.transpose(1, 2)) * scale).masked_fill(~seen[:, None], -torch.inf)
    if sink is None:
        weights = logits.softmax(dim=-1)
    else:
        lse = logits.logsumexp(dim=-1, keepdim=True)
        weights = logits.softmax(dim=-1) * torch.sigmoid(lse - sink.to(lse.dtype)[:, None])
    # a row without keys has softmax NaN; a NaN of the data stays
    return torch.matmul(weights, keys).masked_fill(~seen.any(dim=-1)[:, None, None], 0)


def moe_experts(x, topk_ids, topk_weights, w13, w2, *, limit, shared_w13=None, shared_w2=None):
    T, k = topk_ids.shape
    E, d, inter = w2.shape
    out_dtype = x.dtype
    x, topk_weights = _wide(x, topk_weights)

    def gated(gu):
        g, u = gu.chunk(2, dim=-1)
        return F.silu(g.clamp_max(limit)) * u.clamp(-limit, limit)

    weights = topk_weights.masked_fill(topk_ids < 0, 0)
    ids = topk_ids.clamp_min(0).long()
    if T * k <= E or T * k * inter * d <= _CHUNK // 4:  # read the chosen experts only
        h = gated(torch.matmul(w13[ids].to(x.dtype), x[:, None, :, None]).squeeze(-1))  # [T, k, inter]
        y = torch.matmul(w2[ids].to(x.dtype), h[..., None]).squeeze(-1)
        out = (y * weights[..., None]).masked_fill((topk_ids < 0)[..., None], 0).sum(dim=1)
    else:  # all rows through all experts, one expert's weights at a time
        share = x.new_zeros(T, E).scatter_add_(1, ids, weights)
        chosen = torch.zeros(T, E, dtype=torch.bool, device=x.device)
        chosen = chosen.scatter_reduce_(1, ids, topk_ids >= 0, "amax") if k else chosen
        out = torch.zeros_like(x)
        for e in range(E):
            y = F.linear(gated(F.linear(x, w13[e].to(x.dtype))), w2[e].to(x.dtype)) * share[:, e, None]
            out += y.masked_fill(~chosen[:, e, None], 0)
    if shared_w13 is not None:
        out = out + F.linear(gated(F.linear(x, shared_w13.to(x.dtype))), shared_w2.to(x.dtype))
    return out.to(out_dtype)
