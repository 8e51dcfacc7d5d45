# SPDX-License-Identifier: Apache-2.0
"""What a model's forward gets: token rows, their places in the paged caches, and nothing it has to ask back for."""
from __future__ import annotations

import enum
from dataclasses import dataclass

import torch
from torch import Tensor


class ForwardMode(enum.Enum):
    """Kind of a forward; the values are the keys of the ``forwards`` metric."""

    TARGET_PREFILL = "target_prefill"
    TARGET_DECODE = "target_decode"
    TARGET_VERIFY = "target_verify"
    NEXTN_EXTEND = "nextn_extend"
    NEXTN_DECODE = "nextn_decode"

    @property
    def is_target(self) -> bool:
        return self in _TARGET


_TARGET = frozenset((ForwardMode.TARGET_PREFILL, ForwardMode.TARGET_DECODE, ForwardMode.TARGET_VERIFY))


@dataclass(slots=True)
class CompressedView:
    """One compress ratio's part of a Target forward.

    ``positions`` and ``locs`` list the entries whose last token is a row of this forward, packed in request order; in
    a verify or decode window they have the fixed size that ops.verify_metadata gives them, with 0 and -1 behind the
    last entry. A position 0 can be a real group start or padding; ``locs`` tells them apart (-1 = nothing here).
    """

    ratio: int         # 4 or 128
    page: int          # entries per page
    table: Tensor      # int32 [B, pages]: entry pages of each request, -1 = not allocated
    positions: Tensor  # int64 [M]: group starts (= RoPE positions) of the completed entries; M may be 0
    locs: Tensor       # int64 [M]: entry slot = page_id * page + offset, -1 = nothing is stored
    emits: bool        # any loc is not -1: known from the lengths on the host, without a look at ``locs``

    def entries(self) -> tuple[Tensor, Tensor]:
        """``positions`` and ``locs``, cut to nothing if the forward completes nothing (C128: nearly every round)."""
        return (self.positions, self.locs) if self.emits else (self.positions[:0], self.locs[:0])


@dataclass(slots=True)
class ForwardBatch:
    """T token rows of B requests, request-major. A padding request has row -1, lengths 0, slots and pages -1.

    Tensors may be shared with other batches of the same round: read only.
    """

    mode: ForwardMode
    input_ids: Tensor        # int64 [T]
    positions: Tensor        # int64 [T]
    query_start_loc: Tensor  # int32 [B + 1]
    seq_lens: Tensor         # int32 [B]: position of the first row + rows of this forward (0: padding)
    live_seq_lens: Tensor    # int32 [B]: position of the first row = KV length before this forward (0 for padding)
    rows: Tensor             # int64 [B]: cache row, the address of the compressor state; -1: padding
    slots: Tensor            # int64 [T]: SWA slot = page_id * page_size + offset, -1 = not written
    table: Tensor            # int32 [B, pages]: SWA pages, -1 = recycled or not allocated
    c4: CompressedView | None
    c128: CompressedView | None
    tree_mask: Tensor | None = None  # bool [B, n, n] (window-only Targets, draft trees)

    def for_draft(self, mode: ForwardMode, ids: Tensor) -> ForwardBatch:
        """The same rows with other tokens, for the NextN layer, which has no compressed entries."""
        return ForwardBatch(mode, ids, self.positions, self.query_start_loc, self.seq_lens, self.live_seq_lens, self.rows,
                            self.slots, self.table, None, None, self.tree_mask)

    def one_row_each(self, picked: Tensor, counting: Tensor) -> ForwardBatch:
        """Of a causal forward whose KV is stored: the rows ``picked`` (int64 [B], one of each request, in order) as
        queries of their own, each with the keys up to itself. ``counting``: int32 0 .. B. Ids and slots stay those of
        all rows: queries have no use for them."""
        positions = self.positions.index_select(0, picked)
        seq_lens = torch.minimum(self.seq_lens, positions + 1)  # 0 stays: padding
        return ForwardBatch(self.mode, self.input_ids, positions, counting, seq_lens, self.live_seq_lens, self.rows,
                            self.slots, self.table, self.c4, self.c128, self.tree_mask)
