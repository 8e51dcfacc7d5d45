# SPDX-License-Identifier: Apache-2.0
"""Slots of paged KV pools: ``slot = page * page_size + offset``; -1 is the only skip marker."""
from ._dispatch import full, kernel, new, op, zeros


@op("(Tensor prefix_lens, Tensor seq_lens, Tensor last_slots, Tensor free_pages, *, int extend_num_tokens, "
    "int page_size, Tensor(a!)? status=None) -> (Tensor, Tensor)", mutates=("status",))
def alloc_extend(prefix_lens, seq_lens, last_slots, free_pages, *, extend_num_tokens, page_size, status=None, out=None):
    """Slots of positions ``prefix[b] .. seq[b]-1`` of every request, packed in request order.

    A request fills its old partial page first (``last_slot + 1``, ...), then takes whole new pages from the
    front of ``free_pages``, in request order; it needs ``ceil(seq / page_size) - ceil(prefix / page_size)``
    of them.

    Args:
        prefix_lens, seq_lens: ``[B]`` int32 or int64; seq <= 0 is padding (not read, no slots).
        last_slots: ``[B]`` int64, slot of position prefix-1; -1 for an empty prefix. Read only where prefix
            is no multiple of page_size; then ``(last_slot + 1) % page_size == prefix % page_size``.
        free_pages: ``[F]`` int32 or int64 page ids.
        extend_num_tokens: at least the sum of seq - prefix; slots behind the last request's are -1.
        status: int32 ``[1]`` or None. 1: too few pages (or extend_num_tokens too small), nothing else was
            written.
        out: (slots, num_new_pages), or None to allocate (then -1 and 0 stand where nothing is written).

    Returns:
        (slots int64 ``[extend_num_tokens]``, num_new_pages int32 ``[1]``: the caller drops that many from the
        front of ``free_pages``).

    Raises:
        ValueError: an argument outside this contract; on the CPU also seq < prefix, a last slot that breaks
            its rule, a used free page < 0, and, without ``status``, too few pages ("alloc_extend: free_pages:
            expected at least N pages, got F"). Devices never raise on data.
    """
    if out is None:
        out = full(seq_lens, (extend_num_tokens,), -1, "int64"), zeros(seq_lens, (1,), "int32")
    kernel("alloc_extend", prefix_lens, seq_lens, last_slots, free_pages, *out, status, extend_num_tokens, page_size)
    return out


@op("(Tensor block_table, Tensor live_seq_lens, *, int topk, int num_steps, int page_size) -> Tensor")
def assign_draft_slots(block_table, live_seq_lens, *, topk, num_steps, page_size, out=None):
    """Slots that the draft steps of each request write, steps fastest.

    topk 1: ``slots[b, i]`` is the slot of position ``s + i``. topk k: with ``q = ceil((s % P + num_steps) /
    P)`` pages a branch, step i of branch c has the slot of position ``(s//P + c*q) * P + s % P + i``: branch
    0 continues the request's own partial page, every later branch starts on a page of its own, whose first
    ``s % P`` places are left for a copy of that partial page.

    Args:
        block_table: ``[B, *]`` int32 or int64 pages; -1 = none. live_seq_lens: ``[B]`` int32 or int64,
            committed length s; <= 0 is padding.
        topk, num_steps, page_size: k, steps, P.
        out: int64 ``[B, topk*num_steps]``, or None to allocate. Written whole.

    Returns:
        ``out``; -1 for padding and where the table has no page (never dereferenced).

    Raises:
        ValueError: an argument outside this contract.
    """
    if out is None:
        out = new(block_table, (block_table.shape[0], topk * num_steps), "int64")
    kernel("assign_draft_slots", block_table, live_seq_lens, out, topk, num_steps, page_size)
    return out


@op("(Tensor(a!) kv_pages, Tensor src_slots, Tensor dst_slots) -> ()", mutates=("kv_pages",))
def move_accepted_kv(kv_pages, src_slots, dst_slots):
    """``kv[dst_slots[m]] = kv[src_slots[m]]`` for all m at once: every source is read before any write.

    Args:
        kv_pages: ``[P, page, D]`` float32, bfloat16 or float16, changed in place.
        src_slots, dst_slots: ``[M]`` int64; a pair with -1 on either side is skipped. Destinations must be
            distinct.

    Raises:
        ValueError: an argument outside this contract; on the CPU also a slot outside -1 .. P*page-1 (other
            backends skip it).
    """
    kernel("move_accepted_kv", kv_pages, src_slots, dst_slots)
