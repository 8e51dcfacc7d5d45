# SPDX-License-Identifier: Apache-2.0
"""Batches for the tests of swa_paged_attention, and the op written as loops over rows and keys (float64)."""
from __future__ import annotations

import math

import torch
from util import bits, rng

from dsv4spec.models.rope import rope_table


def same_rows(backend: str, got: torch.Tensor, want: torch.Tensor) -> bool:
    """Kernels give a row the same bits in every call; torch's products in the reference depend on shapes."""
    if backend != "reference":
        return bits(got).equal(bits(want))
    return torch.allclose(got, want, atol=8 * torch.finfo(got.dtype).eps, equal_nan=True)


class Batch:
    """Random requests in a paged pool in which only visible keys are numbers: all else is NaN, and the table holds
    -1 for pages without a visible key. ``lens`` counts query rows; 0 makes a request padding."""

    def __init__(self, lens, rows, *, H=3, D=32, window=8, page=4, dtype=torch.float32, masks=None, sink=True,
                 rope=True, key="swa"):
        self.lens, self.rows, self.window, self.page, self.masks = lens, rows, window, page, masks
        g = rng(key, lens, rows, H, D, window, page, dtype, masks is not None)
        B, T = len(lens), sum(rows)
        maxp = max([-(-n // page) for n in lens] + [1]) + 1
        order = torch.randperm(B * maxp + 3, generator=g)
        self.keys = [torch.randn(n, D, generator=g).to(dtype) for n in lens]
        self.q = torch.randn(T, H, D, generator=g).to(dtype)
        self.pages = torch.full((B * maxp + 3, page, D), float("nan"), dtype=dtype)
        self.table = torch.full((B, maxp), -1, dtype=torch.int32)
        self.starts = torch.tensor([0] + rows, dtype=torch.int32).cumsum(0).int()
        self.sink = torch.randn(H, generator=g) if sink else None
        self.cos_sin = rope_table(max(lens + [1]) + 8, min(D, 64) // 2, 10000.0) if rope else None
        self.scale = D ** -0.5
        for b in range(B):
            used = sorted({x for j in range(rows[b] if lens[b] else 0) for x in self.visible(b, j)})
            if masks is not None and lens[b]:
                used = sorted({*used, *range(lens[b] - rows[b], lens[b])})
            for x in used:
                page_id = int(order[b * maxp + x // page])
                self.table[b, x // page] = page_id
                self.pages[page_id, x % page] = self.keys[b][x]
        for b in range(B):
            if not lens[b]:
                self.q[self.starts[b]:self.starts[b + 1]] = float("nan")

    def position(self, b, j):
        s = self.lens[b] - self.rows[b]
        return s + j if self.masks is None else s + int(self.masks[b][j].sum()) - 1

    def visible(self, b, j):
        s, p = self.lens[b] - self.rows[b], self.position(b, j)
        if self.masks is None:
            return list(range(max(0, p - self.window + 1), p + 1))
        committed = list(range(max(0, p - self.window + 1), s))
        nodes = [s + i for i in range(self.rows[b]) if self.masks[b][j, i] and p - self.position(b, i) < self.window]
        return committed + nodes

    def args(self):
        mask = None if self.masks is None else torch.stack(self.masks)
        return ((self.q, self.pages, self.table, self.starts, torch.tensor(self.lens, dtype=torch.int32)),
                dict(window=self.window, scale=self.scale, sink=self.sink, tree_mask=mask, cos_sin=self.cos_sin))

    def brute_force(self) -> torch.Tensor:
        out = torch.zeros(self.q.shape, dtype=torch.float64)
        for b, start in enumerate(self.starts[:-1].tolist()):
            for j in range(self.rows[b] if self.lens[b] else 0):
                for h in range(self.q.shape[1]):
                    keys = [self.keys[b][x].double() for x in self.visible(b, j)]
                    out[start + j, h] = self._head(self.q[start + j, h].double(), keys, h, self.position(b, j))
        return out

    def _head(self, q, keys, h, position):
        weights = [math.exp(self.scale * float(q @ k)) for k in keys]
        o = sum((w * k for w, k in zip(weights, keys)), torch.zeros_like(q))
        total = sum(weights) + (math.exp(self.sink[h]) if self.sink is not None else 0.0)
        o = o / total if keys else o
        if self.cos_sin is not None and keys:
            r = self.cos_sin.shape[1]
            turned = o.clone()
            for i in range(r // 2):
                c, s = self.cos_sin[position, i].item(), self.cos_sin[position, r // 2 + i].item()
                at = len(o) - r + 2 * i
                a, b = o[at].item(), o[at + 1].item()
                turned[at], turned[at + 1] = a * c + b * s, b * c - a * s
            o = turned
        return o
