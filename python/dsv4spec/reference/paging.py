# SPDX-License-Identifier: Apache-2.0
"""References of the slot arithmetic."""
import torch


def _pages(tokens, page_size: int):
    return (tokens + page_size - 1) // page_size


def alloc_extend(prefix_lens, seq_lens, last_slots, free_pages, *, extend_num_tokens, page_size, status=None, out=None):
    batch, device = seq_lens.shape[0], seq_lens.device
    slots = torch.full((extend_num_tokens,), -1, dtype=torch.int64, device=device)
    pages = torch.zeros(1, dtype=torch.int64, device=device)
    ok = torch.ones(1, dtype=torch.bool, device=device)
    if batch:
        live = (seq_lens > 0) & (prefix_lens >= 0) & (prefix_lens <= seq_lens)
        a, b = torch.where(live, prefix_lens, 0).long(), torch.where(live, seq_lens, 0).long()
        new = _pages(b, page_size) - _pages(a, page_size)
        end, pages = (b - a).cumsum(0), new.sum(0, keepdim=True)
        ok = (pages <= free_pages.shape[0]) & (end[-1:] <= extend_num_tokens)
        place = torch.arange(extend_num_tokens, device=device)
        r = torch.searchsorted(end, place, right=True)
        inside, r = r < batch, r.clamp(max=batch - 1)
        position = place - (end - (b - a))[r] + a[r]
        fits = (last_slots >= -1) & (last_slots < 2 ** 63 - 1) & ((last_slots + 1) % page_size == a % page_size)
        slot = torch.where(fits[r], last_slots[r] + 1 + position - a[r], -1)
        if free_pages.shape[0]:
            taken = (new.cumsum(0) - new)[r] + position // page_size - _pages(a, page_size)[r]
            page = free_pages.long()[taken.clamp(0, free_pages.shape[0] - 1)]
            fresh = torch.where((page >= 0) & (page < 2 ** 31), page * page_size + position % page_size, -1)
            slot = torch.where(position >= _pages(a, page_size)[r] * page_size, fresh, slot)
        slots = torch.where(inside, slot, -1)
    if status is not None:
        status.copy_((~ok).int())
    before = out if out is not None else (torch.full_like(slots, -1), torch.zeros(1, dtype=torch.int32, device=device))
    return torch.where(ok, slots, before[0]), torch.where(ok, pages.int(), before[1])


def assign_draft_slots(block_table, live_seq_lens, *, topk, num_steps, page_size):
    batch, width = block_table.shape
    device = block_table.device
    s = live_seq_lens.long().clamp(max=(width + 1) * page_size)[:, None, None]  # beyond the table all are alike
    branch = torch.arange(topk, device=device)[:, None]
    step = torch.arange(num_steps, device=device)
    pages_a_branch = _pages(s % page_size + num_steps, page_size)
    position = (s + branch * pages_a_branch * page_size + step).reshape(batch, topk * num_steps)
    if width == 0:
        return torch.full_like(position, -1)
    index = position // page_size
    page = block_table.long().gather(1, index.clamp(0, width - 1))
    there = (live_seq_lens[:, None] > 0) & (index < width) & (page >= 0) & (page < 2 ** 31)
    return torch.where(there, page * page_size + position % page_size, -1)


def move_accepted_kv(kv_pages, src_slots, dst_slots):
    pages, page, _ = kv_pages.shape
    if src_slots.shape[0] == 0 or pages * page == 0:
        return
    last = pages * page - 1
    moves = (src_slots >= 0) & (dst_slots >= 0) & (src_slots <= last) & (dst_slots <= last)
    # A skipped pair repeats the first real one (or moves slot 0 onto itself), so that nothing else is written.
    one = moves.int().argmax().view(1)
    pair = torch.stack([src_slots, dst_slots])
    spare = torch.where(moves[one], pair[:, one], 0)
    src, dst = torch.where(moves, pair, spare)
    kv_pages[dst // page, dst % page] = kv_pages[src // page, src % page]
