# SPDX-License-Identifier: Apache-2.0
"""Tensors of a batch's rows, made once and kept from one forward of a round to the next."""
from __future__ import annotations

from dataclasses import dataclass, field

import numpy as np
import torch

from .allocation import Allocation
from .pages import PageTable


@dataclass(slots=True)
class Group:
    """What depends on the rows of a batch alone."""

    key: tuple
    rows: np.ndarray      # int64 [B]
    tensor: torch.Tensor  # the same
    padded: bool          # has a row -1
    gathered: dict = field(default_factory=dict)  # pool -> (version, columns, table rows)


class Groups:
    """Remembers the last group; the tensors it gives out are shared and not to be written."""

    def __init__(self, pages: Allocation, device: torch.device):
        self._pages, self.device, self._on_host = pages, device, device.type == "cpu"
        self._starts: dict[tuple[int, int], torch.Tensor] = {}  # (B, n) -> query_start_loc
        self._steps: dict[int, torch.Tensor] = {}
        self._aranges: dict[int, np.ndarray] = {}
        self.forget()

    def forget(self) -> None:
        self._last = Group((), np.zeros(0, np.int64), torch.zeros(0, dtype=torch.int64, device=self.device), False)

    def of(self, rows, what: str) -> Group:
        """ValueError unless ``rows`` are open rows, each once, and -1s."""
        key = tuple(rows)
        if key != self._last.key or not key:
            array = np.asarray(key, np.int64)
            real = array[array >= 0]
            self._pages.check_open(real, what)
            if len(set(key) - {-1}) != len(real):
                raise ValueError(f"{what}: rows: expected each row once, got {list(key)}")
            self._last = Group(key, array, self.tensor(array), len(real) < len(array))
        return self._last

    def gather(self, table: PageTable, group: Group, units: int) -> torch.Tensor:
        """The table rows of a group, as wide as ``units`` units need (at least one column)."""
        columns = max(int(table.columns(units)), 1)
        known = group.gathered.get(table.name)
        if known is None or known[:2] != (table.version, columns):
            pages, inside = table.table[group.rows, :columns], int(table.columns(self._pages.max_len))
            if table is self._pages.swa and columns > inside:
                # No page belongs to positions from max_len on, and what their queries give is never used; but an op
                # that reads there must find a page.
                pages[:, inside:] = pages[:, inside - 1:inside]
            known = (table.version, columns, self.tensor(pages))
            group.gathered[table.name] = known
        return known[2]

    def query_start(self, counts, requests: int) -> torch.Tensor:
        """int32 ``[B + 1]``: the first row of each request, for one count or one each."""
        if not isinstance(counts, int):
            return self.tensor(np.concatenate(([0], np.cumsum(counts))).astype(np.int32))
        key = (requests, counts)
        if key not in self._starts:
            self._starts[key] = self.tensor(np.arange(requests + 1, dtype=np.int32) * np.int32(counts))
        return self._starts[key]

    def arange(self, n: int) -> np.ndarray:
        """0 .. n - 1. Kept, read only."""
        if n not in self._aranges:
            self._aranges[n] = np.arange(n)
        return self._aranges[n]

    def steps(self, n: int) -> torch.Tensor:
        if n not in self._steps:
            self._steps[n] = self.tensor(np.arange(1, n + 1, dtype=np.int32)[:, None])
        return self._steps[n]

    def tensor(self, array: np.ndarray) -> torch.Tensor:
        tensor = torch.from_numpy(array)
        return tensor if self._on_host else tensor.to(self.device)
