# SPDX-License-Identifier: Apache-2.0
"""Dense products and the router of a layer: by this package's ops where the backend has a kernel for them and rows are
few (calls and the reading of weights are all that counts then), else by torch, whose products of many rows, and on
devices of any number, are the right ones. This is the one place of that choice.
"""
from __future__ import annotations

import contextlib

import torch
import torch.nn.functional as F

from .. import ops
from .buffers import Rows
from .config import DeepseekV4Config
from .weights import Weights

_few_rows = 64  # rows of a call up to which the ops are asked


@contextlib.contextmanager
def few_rows(most: int):
    """Ask the ops for calls of up to ``most`` rows inside a ``with`` block; 0: torch everywhere."""
    global _few_rows
    before, _few_rows = _few_rows, most
    try:
        yield
    finally:
        _few_rows = before


def _by_op(name: str, x: torch.Tensor) -> bool:
    return x.shape[0] <= _few_rows and ops.has_kernel(name, x.device.type)


class Linear:
    """``y = x W^T``, optionally of the RMSNorm of x, or block-diagonal in ``groups`` blocks.

    Args:
        w: ``[G*N, K]`` (out, in) in the dtype of x, or bfloat16 under float32 (half the bytes of values that bfloat16 holds).
        norm_weight: float32 ``[K]`` of a norm before the product (G = 1), or None. eps: of it.
    """

    def __init__(self, w: torch.Tensor, *, groups: int = 1, norm_weight: torch.Tensor | None = None, eps: float = 0.0):
        K = w.shape[1]
        self.w = w.view(groups, -1, K).transpose(1, 2).reshape(groups * K, -1).contiguous()  # [G*K, N], as the op reads it
        self.groups, self.norm_weight, self.eps = groups, norm_weight, eps
        if norm_weight is not None:
            # x * weight / sqrt(mean(x^2) + eps) = x * (weight * sqrt(n)) / hypot(|x|, sqrt(n * eps)), in four operators
            self._weight = norm_weight * K ** 0.5
            self._eps = torch.tensor([[(K * eps) ** 0.5]], device=w.device)

    def __call__(self, x: torch.Tensor, room: Rows | None = None, name: str = "") -> torch.Tensor:
        """``x`` ``[T, G*K]``, contiguous rows at any pitch -> ``[T, G*N]`` in the dtype of x; in the room of ``name``, if
        there is one and the op makes it."""
        if _by_op("linear", x):
            return self._op(x, None if room is None else room.product(name, self.groups * self.w.shape[1])[0])
        return self._torch(x)

    def split(self, x: torch.Tensor, widths: tuple[int, ...], room: Rows, name: str) -> tuple[torch.Tensor, ...]:
        """The same in parts of some ``widths``."""
        if _by_op("linear", x):
            whole, *parts = room.product(name, *widths)
            self._op(x, whole)
            return parts
        return self._torch(x).split_with_sizes(widths, 1)

    def _op(self, x: torch.Tensor, out: torch.Tensor | None) -> torch.Tensor:
        return ops.linear(x, self.w, groups=self.groups, norm_weight=self.norm_weight, eps=self.eps, out=out)

    def _torch(self, x: torch.Tensor) -> torch.Tensor:
        if self.norm_weight is not None:
            x = self._norm(x)
        w, T, G = self.w if self.w.dtype == x.dtype else self.w.to(x.dtype), x.shape[0], self.groups
        if G == 1:
            return torch.mm(x, w)
        y = torch.bmm(x.view(T, G, -1).transpose(0, 1), w.view(G, -1, w.shape[1]))
        return y.transpose(0, 1).reshape(T, G * w.shape[1])

    def _norm(self, x: torch.Tensor) -> torch.Tensor:
        size = torch.linalg.vector_norm(x, dim=1, keepdim=True, dtype=torch.float32)
        out = None if x.dtype == torch.float32 else torch.empty_like(x)  # the quotient is rounded as it is written
        return torch.div(x * self._weight, torch.hypot(size, self._eps), out=out)


class Router:
    """The experts of each row and their weights: chosen by the gate, or (hash layers) by the token."""

    def __init__(self, c: DeepseekV4Config, w: Weights, prefix: str, hashed: bool):
        self.topk, self.scaling = c.num_experts_per_tok, c.routed_scaling_factor
        # chosen / (sum(chosen) + 1e-20) * scaling = chosen / (tiny + sum(chosen) * inverse), in three operators
        self._inverse = 1 / c.routed_scaling_factor
        self._tiny = torch.tensor([[1e-20 * self._inverse]], device=w.device)
        self.gate = w(f"{prefix}weight", torch.float32).t().contiguous()  # [d, E], as the op reads it
        self.table = w(f"{prefix}tid2eid") if hashed else None
        self.bias = None if hashed else w(f"{prefix}bias", torch.float32)
        if hashed and not ((self.table >= 0) & (self.table < c.n_routed_experts)).all():
            raise ValueError(f"{prefix}tid2eid: expected expert numbers below {c.n_routed_experts}")

    def __call__(self, x: torch.Tensor, ids: torch.Tensor, room: Rows) -> tuple[torch.Tensor, torch.Tensor]:
        """x ``[T, d]``, token ids int64 ``[T]`` -> experts ``[T, k]`` (integers) and weights float32 ``[T, k]``."""
        if _by_op("route_experts", x):
            return ops.route_experts(x, self.gate, topk=self.topk, scaling=self.scaling, bias=self.bias, table=self.table,
                                     ids=None if self.table is None else ids, out=room.route(self.topk))
        scores = F.softplus(torch.mm(x.float(), self.gate)).sqrt()
        if self.table is None:
            chosen = torch.topk(scores + self.bias, self.topk, dim=1, sorted=False).indices
        else:
            chosen = self.table[ids]
        weights = scores.gather(1, chosen)
        return chosen, weights / torch.add(self._tiny, weights.sum(1, keepdim=True), alpha=self._inverse)
