# SPDX-License-Identifier: Apache-2.0
"""One round of a batch, run op by op: the parts of the worker in turn, between them what the host gives and takes."""
from __future__ import annotations

from dataclasses import dataclass
from typing import Sequence

import numpy as np
import torch

from dsv4spec.cache import Window


@dataclass(slots=True)
class Verified:
    """What the verify part leaves on the device.

    Attributes:
        hidden, predict: of the window's rows, [B*n, hc*d] and int64 [B*n].
        index: int32 [B, steps + 1], rows of the accepted path; None of a chain verified on the host.
        host: int64 [B, path + 1]: the Target's tokens along the path, then the count of accepted drafts; all that the
            host reads of a round, in one transfer. Of a chain verified on the host: lists already.
    """

    hidden: torch.Tensor
    predict: torch.Tensor
    index: torch.Tensor | None
    host: torch.Tensor | list[list[int]]


class EagerRound:
    """A round of ``rows`` whose tensors are made for it. CacheFull before anything was taken.

    Attributes: ``offered``, once verified: draft positions of each request, fewer near max_len."""

    def __init__(self, worker, rows: Sequence[int], steps: int):
        self.worker, self.rows = worker, rows
        self._open(steps)
        self.carried = worker.carry.get(rows)

    def _open(self, steps: int) -> None:
        self.steps, (n, width) = steps, self.worker.window_of(steps)
        self.window = Window(self.worker.cache, self.rows, n, width)

    def draft(self) -> None:
        self.drafted = self.worker._draft(self.window, self.carried, self.steps)
        if self.drafted.steps < self.steps:  # by draft_p_min: the rest of the round is narrower
            self._open(self.drafted.steps)

    def verify(self) -> list[list[int]]:
        worker = self.worker
        if self.window.last <= worker.max_len:
            room, self.offered = None, [self.steps] * len(self.rows)
        else:
            room = worker.max_len - worker.cache.lengths(self.rows)
            self.offered = np.minimum(room - 1, self.steps).clip(0).tolist()
        self.verified = worker._verify(self.window, self.carried["bonus"], self.drafted, room)
        host = self.verified.host
        return host if type(host) is list else host.tolist()

    def extend(self, kept: list[int]) -> None:
        worker = self.worker
        if self.verified.index is None:  # of a chain verified on the host
            picked = self.window.room.picked
            self.window.room.native.pick(kept)
        else:
            picked = worker._ids(picked_rows(self.window.n, self.steps, kept))
        worker.carry.put(self.rows, **worker._draft_extend_for_decode(self.window, self.verified, picked))


def picked_rows(n: int, steps: int, kept: Sequence[int]) -> list[int]:
    """Of each request, the row of the draft extend that counts: that of the last token kept."""
    width = min(n, steps + 1)
    return [b * width + count - 1 for b, count in enumerate(kept)]
