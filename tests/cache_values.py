# SPDX-License-Identifier: Apache-2.0
"""What the stand-in models of cache_driver store: functions of (token, position), and what a cache must hold if only
the tokens of one text were ever run."""
from __future__ import annotations

import functools

import numpy as np
import torch

from dsv4spec.models.rope import rope_table

D, R = 16, 8
COFF = {4: 2, 128: 1}
DRAFT = 99  # salt of the draft's rows


def phase(tokens, positions) -> torch.Tensor:
    """What of :func:`value` does not depend on the layer, float64 [T, 1]."""
    t, p = (torch.as_tensor(x, dtype=torch.float64).reshape(-1, 1) for x in (tokens, positions))
    return t * 12.9898 + p * 78.233


@functools.cache
def _offsets(salt, width) -> torch.Tensor:
    return salt * 37.719 + torch.arange(width, dtype=torch.float64) * 4.1414


def value_at(phases, salt, width=D) -> torch.Tensor:
    return torch.sin(phases + _offsets(salt, width)).float()


def value(tokens, positions, salt, width=D) -> torch.Tensor:
    """The row that layer ``salt`` stores for a token at a position, float32 [T, width]."""
    return value_at(phase(tokens, positions), salt, width)


def draft_value(first, second, positions) -> torch.Tensor:
    """The draft's row for a token and the one after it."""
    return value(torch.as_tensor(first) * 3 + torch.as_tensor(second) * 7, positions, DRAFT)


@functools.cache
def parameters(ratio, salt):
    """(ape, norm weight) of a compressor."""
    width = COFF[ratio] * D
    return value(torch.arange(ratio), torch.zeros(ratio), salt + 0.5, width), value([1], [1], salt + 0.25)[0] + 2


class Truth:
    """Every row and entry of one text, each computed when first asked for."""

    def __init__(self, text: np.ndarray):
        self.text, self.positions = text, np.arange(len(text))
        self._phases = phase(text, self.positions)
        self._made = {}

    def _once(self, key, make):
        if key not in self._made:
            self._made[key] = make()
        return self._made[key]

    def rows(self, salt) -> torch.Tensor:
        return self._once(salt, lambda: value_at(self._phases, salt))

    def draft_rows(self) -> torch.Tensor:
        """One less than the text's tokens: the last one has no next."""
        return self._once(DRAFT, lambda: draft_value(self.text[:-1], self.text[1:], self.positions[:-1]))

    def compressed(self, ratio, salt):
        """(kv, score with ape, complete entries float64) of a compressor."""
        return self._once((ratio, salt), lambda: self._compress(ratio, salt))

    def _compress(self, ratio, salt):
        ape, norm = parameters(ratio, salt)
        kv, score = (value_at(self._phases, salt + x, COFF[ratio] * D) for x in (100, 200))
        score = score + ape[torch.as_tensor(self.positions) % ratio]
        return kv, score, entries(kv.double(), score.double(), ratio, norm.double())


@functools.lru_cache(maxsize=64)
def _truth(text: bytes) -> Truth:
    return Truth(np.frombuffer(bytearray(text), np.int64))


def truth(text: np.ndarray) -> Truth:
    """The Truth of a text; texts used again and again cost once."""
    return _truth(np.ascontiguousarray(text, np.int64).tobytes())


def entries(kv, score, ratio, norm) -> torch.Tensor:
    """All complete entries by the formula."""
    groups = kv.shape[0] // ratio
    k, g = (x[:groups * ratio].view(groups, ratio, x.shape[1]) for x in (kv, score))
    if ratio == 4:
        k, g = (torch.cat((torch.cat((torch.full_like(x[:1, :, :D], none), x[:-1, :, :D])), x[..., D:]), 1)
                for x, none in ((k, 0), (g, -torch.inf)))
    e = (k * g.softmax(1)).sum(1)
    e = e * torch.rsqrt(e.square().mean(-1, keepdim=True) + 1e-6) * norm
    cos_sin = rope_table(max(1, groups * ratio), R, 10000.0)
    cos, sin = cos_sin[torch.arange(groups) * ratio].double().chunk(2, 1)
    even, odd = e[:, -R::2], e[:, D - R + 1::2]
    turned = torch.stack((even * cos - odd * sin, odd * cos + even * sin), -1).flatten(1)
    return torch.cat((e[:, :-R], turned), 1)
