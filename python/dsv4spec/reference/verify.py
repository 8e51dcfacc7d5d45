# SPDX-License-Identifier: Apache-2.0
"""References of the verify-window metadata."""
import torch


def _pack(emits, value, size: int, fill: int):
    """``value`` of the emitting rows, in row order, in the front of ``[size]``; the rest is ``fill``."""
    place = torch.where(emits, emits.cumsum(0) - 1, size)  # rows that emit nothing share a sink behind the end
    out = torch.full((size + 1,), fill, dtype=torch.int64, device=value.device)
    return out.scatter_(0, place, torch.where(emits, value, fill))[:size]


def _emitting(live, n: int, ratio: int):
    """(emits, position by length) of all rows, flat ``[B*n]``."""
    s = live.long()[:, None]
    by_length = s + torch.arange(n, device=live.device)
    emits = (s > 0) & ((by_length + 1) % ratio == 0) if ratio > 1 else torch.zeros_like(by_length, dtype=torch.bool)
    return emits.reshape(-1), by_length.reshape(-1)


def _padded_size(rows: int, batch: int, ratio: int) -> int:
    return max(1, min(rows, (rows // ratio if ratio > 0 else 0) + batch))


def verify_positions_padding(positions, live_seq_lens, *, num_draft_tokens, ratio):
    emits, _ = _emitting(live_seq_lens, num_draft_tokens, ratio)
    size = _padded_size(positions.shape[0], live_seq_lens.shape[0], ratio)
    return _pack(emits, positions + 1 - ratio, size, 0)


def _entries(positions, live, table, n: int, page: int, ratio: int):
    emits, by_length = _emitting(live, n, ratio if page else 0)
    group = by_length // ratio
    index = group // max(page, 1)
    loc = torch.full_like(group, -1)
    if page and table.shape[1]:
        safe = index.clamp(0, table.shape[1] - 1).view(-1, n)
        entry = table.long().gather(1, safe).reshape(-1)
        there = (index < table.shape[1]) & (entry >= 0) & (entry < 2 ** 31)
        loc = torch.where(there, entry * page + group % page, -1)
    size = _padded_size(positions.shape[0], live.shape[0], ratio)
    return _pack(emits, positions + 1 - ratio, size, 0), _pack(emits, loc, size, -1)


def verify_metadata(positions, live_seq_lens, c4_table, c128_table, num_draft_tokens, *, c4_page, c128_page):
    n = num_draft_tokens
    c4_positions, c4_loc = _entries(positions, live_seq_lens, c4_table, n, c4_page, 4)
    c128_positions, c128_loc = _entries(positions, live_seq_lens, c128_table, n, c128_page, 128)
    start_pos = live_seq_lens.clamp(min=0).int()
    seqused = torch.where(live_seq_lens > 0, n, 0).int()
    return c4_positions, c128_positions, start_pos, seqused, c4_loc, c128_loc
