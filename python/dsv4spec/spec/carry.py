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
        self._at: torch.Tensor | None = None

    def put(self, rows: Sequence[int], at: torch.Tensor, **values: torch.Tensor) -> None:
        """Keep ``values`` ([B, ...] each, the same names in every call) of ``rows``; ``at``: rows as an int64 tensor."""
        if self._rows != list(rows):
            self._flush()
        self._rows, self._at, self._last = list(rows), at, values

    def get(self, rows: Sequence[int], at: torch.Tensor) -> dict[str, torch.Tensor]:
        """The values of ``rows``, each put before."""
        if self._rows == list(rows):
            return self._last
        self._flush()
        return {name: table[at] for name, table in self._table.items()}

    def _flush(self) -> None:
        for name, value in self._last.items():
            if name not in self._table:
                self._table[name] = value.new_zeros(self.max_requests, *value.shape[1:])
            self._table[name][self._at] = value
        self._last, self._rows = {}, []
