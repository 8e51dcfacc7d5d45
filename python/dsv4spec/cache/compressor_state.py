# SPDX-License-Identifier: Apache-2.0
"""The compressor's memory of a request: the projected rows that a group of tokens not yet complete will need."""
from __future__ import annotations

import torch

# Rows an entry is made of: C4 overlaps (4 rows of the group before, 4 of its own), C128 does not.
LOOKBACK = {4: 8, 128: 128}
_DEFAULT_RING = {4: 16, 128: 256}


def widest_window(ratio: int, ring_rows: int) -> int:
    """The widest verify window that a ring is right for (see CompressorState): ring_rows - lookback + 2."""
    return ring_rows - LOOKBACK[ratio] + 2


def ring_rows_for(ratio: int, num_draft_tokens: int) -> int:
    """Ring size for a verify window of ``num_draft_tokens`` rows: 16 (C4), 256 (C128), or what the window needs."""
    return max(_DEFAULT_RING[ratio], num_draft_tokens + LOOKBACK[ratio] - 2)


class CompressorState:
    """Rings of compressor rows, addressed by position: row of position p = ``data[request, p mod ring_rows]``.

    ``data`` is float32 ``[max_requests, ring_rows, 2 * coff * head_dim]`` (coff 2 for C4, 1 for C128): ``kv``, then
    ``score`` columns. A cleared row is kv 0, score -inf, which a softmax reads as "no such token".

    Why there is no backup_state / restore_state, and no cleaning of C128 rows after a rejection. A forward of rows
    a .. b does two things, in this order (``compress_kv``): it makes the entries that rows a .. b complete, reading
    positions below a from the ring and the others from its own rows; then it writes its rows to the ring. Say a
    verify window of n rows starts at s and k >= 1 rows are kept. The rejected rows s + k .. s + n - 1 are in the
    ring, at the places of their positions, but the next forward starts at s + k: it takes every position from there
    on from its own rows, and overwrites those places before any later forward reads them. So a rejected row is never
    read *at its own position*. It could only do harm at the position one ring earlier, whose place it took. The
    oldest position the next forward reads is s + k + 1 - lookback >= s + 2 - lookback (an entry completed by its
    first row), the newest one in the ring is s + n - 1, and they share a place unless

        (s + n - 1) - (s + 2 - lookback) < ring_rows,  that is  n <= ring_rows - lookback + 2.

    That is the rule checked here (C4: lookback 8; C128: 128). Entries made from rejected rows need no undoing
    either: entry w is visible from position ratio * (w + 1) - 1 on, whose own forward makes it again first.
    Widths n may differ from round to round as long as each keeps the rule. What is backed up elsewhere for the
    same purpose are free lists of state pages; rings are not paged, there is nothing to allocate per round.
    """

    def __init__(self, ratio: int, ring_rows: int, *, head_dim: int, max_requests: int, num_draft_tokens: int = 1,
                 device="cpu"):
        if ratio not in LOOKBACK:
            raise ValueError(f"CompressorState: ratio: expected 4 or 128, got {ratio}")
        widest = widest_window(ratio, ring_rows)
        if not 1 <= num_draft_tokens <= widest:
            raise ValueError(f"CompressorState: num_draft_tokens: expected 1 <= n <= ring_rows - lookback + 2 = "
                             f"{widest} (ratio {ratio}, ring_rows {ring_rows}, lookback {LOOKBACK[ratio]}), got "
                             f"{num_draft_tokens}")
        self.ratio, self.ring_rows, self.head_dim = ratio, ring_rows, head_dim
        self.columns = (2 if ratio == 4 else 1) * head_dim  # of kv; as many of score follow
        self.data = torch.empty(max_requests, ring_rows, 2 * self.columns, dtype=torch.float32, device=device)
        self.clear(slice(None))

    @property
    def kv(self) -> torch.Tensor:
        """``[max_requests, ring_rows, coff * head_dim]``, a view."""
        return self.data[..., :self.columns]

    @property
    def score(self) -> torch.Tensor:
        """``[max_requests, ring_rows, coff * head_dim]``, a view."""
        return self.data[..., self.columns:]

    def clear(self, row) -> None:
        """Forget a request: a row that is used again must not show its old tokens as the past of group 0."""
        self.kv[row] = 0
        self.score[row] = float("-inf")
