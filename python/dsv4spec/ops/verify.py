# SPDX-License-Identifier: Apache-2.0
"""Metadata of the verify window."""
from ._dispatch import kernel, new, op


def _padded_size(rows: int, batch: int, ratio: int) -> int:
    return max(1, min(rows, (rows // ratio if ratio > 0 else 0) + batch))


@op("(Tensor positions, Tensor live_seq_lens, *, int num_draft_tokens, int ratio) -> Tensor")
def verify_positions_padding(positions, live_seq_lens, *, num_draft_tokens, ratio, out=None):
    """RoPE positions of the compressed entries that a verify step emits, packed in request-major order.

    Row (b, j) of the window emits an entry iff ``live[b] > 0`` and ``(live[b] + j + 1) % ratio == 0``; its
    value is ``positions[b*n + j] + 1 - ratio``, the position of its group's first token. The choice goes by
    lengths, the value by positions (they differ for trees). 0 is a legal value, and also the padding behind
    the last entry.

    Args:
        positions: ``[T]`` int64, T = B*n, request-major. Rows of padding requests are not read.
        live_seq_lens: ``[B]`` int32 or int64, committed KV length before the window; <= 0 is padding.
        num_draft_tokens: n, rows of each request.
        ratio: compress ratio; 0 and 1 mean "no compressed part" (nothing is emitted).
        out: int64 ``[max(1, min(T, T//ratio + B))]`` (T//0 = 0), or None to allocate. Written whole.

    Returns:
        ``out``.

    Raises:
        ValueError: an argument outside this contract.
    """
    if out is None:
        size = _padded_size(positions.shape[0], live_seq_lens.shape[0], ratio)
        out = new(positions, (size,), "int64")
    kernel("verify_positions_padding", positions, live_seq_lens, out, num_draft_tokens, ratio)
    return out


@op("(Tensor positions, Tensor live_seq_lens, Tensor c4_table, Tensor c128_table, int num_draft_tokens, *, "
    "int c4_page, int c128_page) -> (Tensor, Tensor, Tensor, Tensor, Tensor, Tensor)")
def verify_metadata(positions, live_seq_lens, c4_table, c128_table, num_draft_tokens, *, c4_page, c128_page, out=None):
    """All that the compressors need in a verify step, in one launch.

    ``cR_positions`` is :func:`verify_positions_padding` with ratio R. ``cR_loc`` lies parallel to it: where
    the entry is stored, -1 where nothing is emitted. Row (b, j) completes group ``w = (live[b] + j) // R``,
    stored at ``cR_table[b, w // cR_page] * cR_page + w % cR_page``. ``start_pos`` = live lengths; ``seqused``
    = n, 0 for padding.

    Args:
        positions: ``[T]`` int64, T = B*n. live_seq_lens: ``[B]`` int32 or int64; <= 0 is padding.
        c4_table, c128_table: ``[B, *]`` int32 or int64, page of each request's entries; -1 = none.
        num_draft_tokens: n. c4_page, c128_page: compressed entries per page; 0: the Target has no such pool
            (its table is not read, nothing of that ratio is emitted).
        out: tuple of the six outputs, or None to allocate. All are written whole.

    Returns:
        (c4_positions, c128_positions int64, start_pos, seqused int32 ``[B]``, c4_loc, c128_loc int64).

    Raises:
        ValueError: an argument outside this contract; on the CPU also a needed table entry that is -1 or
            beyond the table (other backends and the reference write -1 there).
    """
    if out is None:
        T, B = positions.shape[0], live_seq_lens.shape[0]
        n4, n128 = _padded_size(T, B, 4), _padded_size(T, B, 128)
        out = (new(positions, (n4,), "int64"), new(positions, (n128,), "int64"), new(positions, (B,), "int32"),
               new(positions, (B,), "int32"), new(positions, (n4,), "int64"), new(positions, (n128,), "int64"))
    kernel("verify_metadata", positions, live_seq_lens, c4_table, c128_table, *out, num_draft_tokens, c4_page, c128_page)
    return out
