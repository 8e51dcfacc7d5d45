# SPDX-License-Identifier: Apache-2.0
"""What a round gives out: which window rows may be accepted at all, and the block of tokens a request keeps."""
from __future__ import annotations

from dataclasses import dataclass
from typing import Callable, Sequence

import torch

# keep(i, tokens) -> how many of `tokens` request i takes: all, or fewer when a stop lies inside the block.
Keep = Callable[[int, list[int]], int]


@dataclass(slots=True)
class Block:
    """Tokens a request got from one Target forward.

    Attributes:
        tokens: token ids given out, in order.
        drafts: how many of them, counted from the first, are accepted drafts; the rest (at most one) is the Target's
            own. A stop may cut the Target's token off.
    """

    tokens: list[int]
    drafts: int


def keep_all(_: int, tokens: list[int]) -> int:
    return len(tokens)


def window_candidates(bonus: torch.Tensor, drafts: torch.Tensor, vocab_size: int,
                      room: Sequence[int] | None) -> torch.Tensor:
    """The verify window's tokens, with -1 where a draft must not be accepted.

    Args:
        bonus: int64 [B], roots. drafts: int64 [B, n-1].
        vocab_size: ids outside 0..vocab_size-1 become -1.
        room: per request, rows below max_len from the root on (None: all rows of all requests fit). Later rows have
            no KV slot, so they become -1; the other requests of the batch keep theirs.

    Returns:
        int64 [B, n]. -1 equals no argmax of the Target, so that such a row and all rows after it are never accepted.
    """
    window = torch.cat([bonus[:, None], drafts], 1)
    outside = window.clamp(0, vocab_size - 1) != window
    if room is not None:
        columns = torch.arange(window.shape[1], device=window.device)
        outside |= columns >= torch.as_tensor(room, device=window.device)[:, None]
    return window.masked_fill_(outside, -1)


def embeddable(window: torch.Tensor) -> torch.Tensor:
    """Ids for the embedding: 0 in place of -1 (the row's result is not read)."""
    return window.clamp_min(0)


def take_blocks(predicted: list[list[int]], accepted: list[int], keep: Keep) -> list[Block]:
    """Offer each request its accepted drafts plus the Target's token; the request cuts at its first stop.

    Args:
        predicted: per request, the Target's tokens along the accepted path (at least accepted + 1 of them); the lists are
            cut and become the blocks'.
        accepted: accepted drafts per request.
        keep: the stop rule, asked once per request.
    """
    blocks = []
    for i, (tokens, count) in enumerate(zip(predicted, accepted)):
        if not 0 <= count < len(tokens):
            raise RuntimeError(f"take_blocks: accepted: expected 0..{len(tokens) - 1}, got {count} for request {i}")
        del tokens[count + 1:]
        kept = keep(i, tokens)
        if not 1 <= kept <= count + 1:
            raise RuntimeError(f"take_blocks: keep: expected 1..{count + 1}, got {kept} for request {i}")
        if kept <= count:
            del tokens[kept:]
            count = kept
        blocks.append(Block(tokens, count))
    return blocks
