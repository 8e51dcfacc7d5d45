# SPDX-License-Identifier: Apache-2.0
"""Decoding without drafts: prefill, then one Target forward a token. The speculative worker builds on its prefill."""
from __future__ import annotations

from dataclasses import dataclass
from typing import Sequence

import torch

from dsv4spec import _C
from dsv4spec.cache.batch import ForwardBatch, ForwardMode

from .accept import Block, Keep, keep_all
from .captured import Capture, DecodeGraph
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

    window = 1  # rows of KV that a step may write
    captured_steps = 0     # draft steps of a captured step
    why_not_captured = ""  # why graphs cannot hold a step

    def __init__(self, target, cache, metrics: Metrics, *, vocab_size: int, max_requests: int, device="cpu"):
        self.target, self.cache, self.metrics = target, cache, metrics
        self.vocab_size, self.device = vocab_size, torch.device(device)
        self.max_requests, self.graphs = max_requests, None  # spec/graphs.py
        self.capturing = False  # a part of a step is being captured: nothing may happen on the host
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
            chosen = iter(self._likeliest(self.target.logits(hidden[self._ids(ends)])).tolist())
            tails = [next(chosen) if tail is None else tail for tail in tails]
        return hidden, tails

    def _commit_prefill(self, chunks: Sequence[Chunk]) -> None:
        self.cache.commit([chunk.row for chunk in chunks], [len(chunk.tokens) for chunk in chunks])

    # ------------------------------------------------------------------------------------------------- decode
    def decode(self, rows: Sequence[int], keep: Keep = keep_all) -> list[Block]:
        """One token for each row. Raises CacheFull (nothing taken)."""
        with self.metrics.phase("decode"):
            chosen = self._begin(rows, 0).decode()
            blocks = []
            for i, token in enumerate(chosen):
                keep(i, [token])
                blocks.append(Block([token], 0))
            self.cache.commit(rows, [1] * len(rows))
        return blocks

    def _begin(self, rows: Sequence[int], steps: int):
        """The step to run: a captured one where there are graphs and one fits, else op by op."""
        return self.eager(rows, steps) if self.graphs is None else self.graphs.begin(rows, steps)

    def eager(self, rows: Sequence[int], steps: int) -> EagerDecode:
        return EagerDecode(self, rows)

    def captured(self, capture: Capture, size: int) -> DecodeGraph:
        return DecodeGraph(self, capture, size)

    # The device's part of a step, which can be captured.
    def _next(self, batch: ForwardBatch, out: torch.Tensor | None = None) -> torch.Tensor:
        """The Target's choice after each row, int64."""
        return self._likeliest(self.target.logits(self._target(batch)), out)

    # ------------------------------------------------------------------------------------------------- helpers
    def _target(self, batch: ForwardBatch) -> torch.Tensor:
        self.metrics.forwards[batch.mode.value] += 1
        return self.target.forward(batch, self.cache)

    def _likeliest(self, logits: torch.Tensor, out: torch.Tensor | None = None) -> torch.Tensor:
        """The first of the largest of each row, int64; NaN is the largest. On the CPU by vectors of values, where torch
        compares one by one."""
        if not logits.is_cpu or self.capturing:
            return torch.argmax(logits, -1, out=out)
        found = torch.empty(logits.shape[0], dtype=torch.int64)
        _C.argmax_rows(logits, found)
        return found if out is None else out.copy_(found)

    def _ids(self, values: Sequence[int]) -> torch.Tensor:
        return torch.tensor(values, dtype=torch.int64, device=self.device)

    def _blank(self, count: int) -> torch.Tensor:
        """Room for ids not known yet."""
        return torch.empty(count, dtype=torch.int64, device=self.device)


class EagerDecode:
    """A step of plain decoding whose tensors are made for it. CacheFull before anything was taken."""

    def __init__(self, worker: PlainWorker, rows: Sequence[int]):
        self.worker, self.rows = worker, rows
        self.batch = worker.cache.batch(ForwardMode.TARGET_DECODE, rows, worker._blank(len(rows)), 1)

    def decode(self) -> list[int]:
        worker = self.worker
        self.batch.input_ids = worker.carry.get(self.rows)["bonus"]
        chosen = worker._next(self.batch)
        worker.carry.put(self.rows, bonus=chosen)
        return chosen.tolist()
