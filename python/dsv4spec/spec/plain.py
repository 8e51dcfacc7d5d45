# SPDX-License-Identifier: Apache-2.0
"""Decoding without drafts: prefill, then one Target forward a token. The speculative worker builds on its prefill."""
from __future__ import annotations

from dataclasses import dataclass
from typing import Sequence

import torch

from dsv4spec.cache.batch import ForwardBatch, ForwardMode

from .accept import Block, Keep, keep_all
from .carry import Carry
from .metrics import Metrics


@dataclass(slots=True)
class Chunk:
    """A piece of one request's prompt.

    Attributes:
        row: cache row of the request.
        tokens: the piece, one token or more.
        next_token: the token known to follow it (the next prompt token of a chunked prefill; after a preemption the
            token that was already given out). None: the prompt ends here and the Target chooses.
    """

    row: int
    tokens: list[int]
    next_token: int | None = None


class PlainWorker:
    """One Target forward a token.

    Args:
        target: ``forward(batch, cache) -> hidden [T, hc*d]`` and ``logits(hidden [R, hc*d]) -> float32 [R, vocab]``.
        cache: the pools; its committed length of a row is s, and the last token given out ("bonus") has no KV yet.
        metrics: counters to increment.
    """

    window = 1  # rows of KV that a round may write

    def __init__(self, target, cache, metrics: Metrics, *, vocab_size: int, max_requests: int, device="cpu"):
        self.target, self.cache, self.metrics = target, cache, metrics
        self.vocab_size, self.device = vocab_size, torch.device(device)
        self.carry = Carry(max_requests)  # bonus: int64 [B], the last token given out

    # ------------------------------------------------------------------------------------------------ prefill
    def prefill(self, chunks: Sequence[Chunk]) -> list[int]:
        """Run prompt pieces through the Target. Returns the token after each piece: known, or chosen greedily.

        Raises CacheFull (nothing taken)."""
        with self.metrics.phase("prefill"):
            _, tails = self._target_prefill(chunks)
            rows = [chunk.row for chunk in chunks]
            self.carry.put(rows, bonus=self._ids(tails))
            self._commit_prefill(chunks)
        return tails

    def _target_prefill(self, chunks: Sequence[Chunk]) -> tuple[torch.Tensor, list[int]]:
        """Hidden rows of all pieces [T, hc*d], and the token after each piece."""
        counts = [len(chunk.tokens) for chunk in chunks]
        ids = self._ids([token for chunk in chunks for token in chunk.tokens])
        hidden = self._target(self.cache.batch(ForwardMode.TARGET_PREFILL, [c.row for c in chunks], ids, counts))
        self.metrics.prompt_tokens += len(ids)
        tails = [chunk.next_token for chunk in chunks]
        ends, last = [], -1
        for chunk, count in zip(chunks, counts):
            last += count
            if chunk.next_token is None:
                ends.append(last)
        if ends:
            chosen = iter(self.target.logits(hidden[self._ids(ends)]).argmax(-1).tolist())
            tails = [next(chosen) if tail is None else tail for tail in tails]
        return hidden, tails

    def _commit_prefill(self, chunks: Sequence[Chunk]) -> None:
        self.cache.commit([chunk.row for chunk in chunks], [len(chunk.tokens) for chunk in chunks])

    # ------------------------------------------------------------------------------------------------- decode
    def decode(self, rows: Sequence[int], keep: Keep = keep_all) -> list[Block]:
        """One token for each row. Raises CacheFull (nothing taken)."""
        with self.metrics.phase("decode"):
            batch = self.cache.batch(ForwardMode.TARGET_DECODE, rows, self._blank(len(rows)), 1)
            batch.input_ids = self.carry.get(rows)["bonus"]
            chosen = self.target.logits(self._target(batch)).argmax(-1)
            self.carry.put(rows, bonus=chosen)
            blocks = []
            for i, token in enumerate(chosen.tolist()):
                keep(i, [token])
                blocks.append(Block([token], 0))
            self.cache.commit(rows, [1] * len(rows))
        return blocks

    # ------------------------------------------------------------------------------------------------- helpers
    def _target(self, batch: ForwardBatch) -> torch.Tensor:
        self.metrics.forwards[batch.mode.value] += 1
        return self.target.forward(batch, self.cache)

    def _ids(self, values: Sequence[int]) -> torch.Tensor:
        return torch.tensor(values, dtype=torch.int64, device=self.device)

    def _blank(self, count: int) -> torch.Tensor:
        """Room for ids not known yet."""
        return torch.empty(count, dtype=torch.int64, device=self.device)
