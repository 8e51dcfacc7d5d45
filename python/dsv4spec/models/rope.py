# SPDX-License-Identifier: Apache-2.0
"""RoPE tables: the ``cos_sin`` argument of the attention ops."""
from __future__ import annotations

import math
from dataclasses import dataclass

import torch


@dataclass(frozen=True)
class Yarn:
    """YaRN scaling as DeepSeek-V4 uses it on compressed layers. Keys of ``rope_scaling`` in config.json:
    factor, beta_fast, beta_slow, original_max_position_embeddings. There is no magnitude factor."""

    factor: float
    original_max_position: int
    beta_fast: float = 32.0
    beta_slow: float = 1.0

    def __post_init__(self):
        if not self.factor >= 1:
            raise ValueError(f"Yarn: factor: expected a number >= 1, got {self.factor}")
        if self.original_max_position < 1:
            raise ValueError(f"Yarn: original_max_position: expected >= 1, got {self.original_max_position}")
        if not self.beta_fast > self.beta_slow > 0:
            raise ValueError("Yarn: beta_fast: expected beta_fast > beta_slow > 0, got "
                             f"{self.beta_fast} and {self.beta_slow}")

    def ramp(self, dim: int, theta: float) -> tuple[int, int]:
        """(low, high): pairs below ``low`` keep their frequency, pairs from ``high`` on have it divided by the
        factor; in [0, dim - 1]."""
        def pair_with(turns: float) -> float:  # the pair that turns this often over the original context
            return dim * math.log(self.original_max_position / (2 * math.pi * turns)) / (2 * math.log(theta))

        low, high = math.floor(pair_with(self.beta_fast)), math.ceil(pair_with(self.beta_slow))
        return min(max(low, 0), dim - 1), min(max(high, 0), dim - 1)


def rope_frequencies(dim: int, theta: float, yarn: Yarn | None = None) -> torch.Tensor:
    """``[dim / 2]`` float32, radians per position: ``theta^(-2i/dim)``, blended with its quotient by the factor.

    YaRN: with g = 1 - clamp((i - low) / (high - low), 0, 1) the frequency is ``f / factor * (1 - g) + f * g``.
    """
    if dim < 2 or dim % 2:
        raise ValueError(f"rope_frequencies: dim: expected an even number >= 2, got {dim}")
    if not theta > 1:
        raise ValueError(f"rope_frequencies: theta: expected a number > 1, got {theta}")
    freq = 1.0 / theta ** (torch.arange(0, dim, 2, dtype=torch.float32) / dim)
    if yarn is None:
        return freq
    low, high = yarn.ramp(dim, theta)
    # low = high would divide by zero; the step is then as good as sharp.
    g = 1 - ((torch.arange(dim // 2, dtype=torch.float32) - low) / (high - low or 0.001)).clamp(0, 1)
    return freq / yarn.factor * (1 - g) + freq * g


def rope_table(max_pos: int, dim: int, theta: float, yarn: Yarn | None = None, *,
               device: torch.device | str | None = None) -> torch.Tensor:
    """Cosines and sines of every position.

    Args:
        max_pos: positions 0 .. max_pos - 1 get a row.
        dim: rotated dimensions R (even), the trailing ones of a head.
        theta: base.
        yarn: for compressed layers.

    Returns:
        ``[max_pos, dim]`` float32: columns i < dim/2 hold cos, columns dim/2 + i sin of pair i. Angles are float32
        products of position and frequency, as in the model the weights were trained with.
    """
    if max_pos < 0:
        raise ValueError(f"rope_table: max_pos: expected >= 0, got {max_pos}")
    freq = rope_frequencies(dim, theta, yarn).to(device)
    angle = torch.arange(max_pos, dtype=torch.float32, device=device)[:, None] * freq
    return torch.cat((angle.cos(), angle.sin()), dim=1)
