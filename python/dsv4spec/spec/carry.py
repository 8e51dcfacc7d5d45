# SPDX-License-Identifier: Apache-2.0
"""What each request carries from one round to the next."""
from __future__ import annotations

from typing import Sequence

import torch


class Carry:
    """Named tensors with one entry for each request, found again by cache row.

    As long as the same requests run round after round, what the last round put is what the next one gets: no gather
    and no scatter. Only when the batch changes do the entries go through a table by cache row. Entries are put in the
    order of time, so that a row given to a new request holds the new request's.
    """

    def __init__(self, max_requests: int):
        self.max_requests = max_requests
        self._table: dict[str, torch.Tensor] = {}  # [max_requests, ...]
        self._last: dict[str, torch.Tensor] = {}   # of the rows below
        self._rows: list[int] = []

    def put(self, rows: Sequence[int], **values: torch.Tensor) -> None:
        """Keep ``values`` ([B, ...] each, the same names in every call) of ``rows``."""
        if self._rows != list(rows):
            self._flush()
        self._rows, self._last = list(rows), values

    def get(self, rows: Sequence[int]) -> dict[str, torch.Tensor]:
        """The values of ``rows``, each put before."""
        if self._rows == list(rows):
            return self._last
        self._flush()
        return {name: table[_at(rows, table)] for name, table in self._table.items()}

    def _flush(self) -> None:
        for name, value in self._last.items():
            if name not in self._table:
                self._table[name] = value.new_zeros(self.max_requests, *value.shape[1:])
            self._table[name][_at(self._rows, value)] = value
        self._last, self._rows = {}, []


def _at(rows: Sequence[int], like: torch.Tensor) -> torch.Tensor:
    return torch.tensor(rows, dtype=torch.int64, device=like.device)
