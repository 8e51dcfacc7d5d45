# SPDX-License-Identifier: Apache-2.0
"""What the layers of a model share in a forward: RoPE tables and the memory of intermediate results."""
from __future__ import annotations

import torch

from .config import DeepseekV4Config
from .rope import rope_table


class RopeTables:
    """The two tables of a model, as long as the longest cache that was asked for."""

    def __init__(self, config: DeepseekV4Config, device):
        self._config, self._device, self._rows = config, device, 0

    def of(self, cache) -> RopeTables:
        """Tables that cover every position of ``cache`` (``plain``: window-only layers, ``compressed``: the others)."""
        rows = cache.max_len + cache.num_draft_tokens
        if rows > self._rows:
            c = self._config
            self.plain = rope_table(rows, c.qk_rope_head_dim, c.rope_theta, device=self._device)
            self.compressed = rope_table(rows, c.qk_rope_head_dim, c.compress_rope_theta, c.yarn, device=self._device)
            self._rows = rows
        return self


class Buffers:
    """Memory of the results that only the next op reads: a small forward is bound by calls, and an allocation is one.
    All numbers of rows up to 256 share the same memory; one forward at a time may use it."""

    _MOST_ROWS = 256  # beyond, memory is worth more than a call

    def __init__(self, config: DeepseekV4Config, dtype: torch.dtype, device):
        self._config, self._options = config, dict(dtype=dtype, device=device)
        self._all: Rows | None = None
        self._views: dict[int, Rows] = {}

    def of(self, rows: int) -> Rows:
        if rows > self._MOST_ROWS:
            return Rows(self._config, rows, self._options)
        known = self._views.get(rows)
        if known is None:
            if self._all is None:
                self._all = Rows(self._config, self._MOST_ROWS, self._options)
            known = self._views[rows] = self._all.first(rows)
        return known


class Rows:
    """Results of one forward of T rows."""

    def __init__(self, c: DeepseekV4Config, T: int, options: dict):
        f32 = {**options, "dtype": torch.float32}
        self.streams = torch.zeros(T, c.hc_mult, c.hidden_size, **options)
        self.fused = torch.zeros_like(self.streams)
        y = torch.zeros(T, c.hidden_size, **options)
        # Two sets in turn: an op reads post and comb of one and writes the other.
        self.sites = [(y, torch.zeros(T, c.hc_mult, **f32), torch.zeros(T, c.hc_mult, c.hc_mult, **f32)) for _ in "ab"]
        self.heads = torch.zeros(T, c.num_attention_heads, c.head_dim, **options)
        self.experts = torch.zeros(T, c.hidden_size, **options)
        self._options, self._whole, self._products, self._routes = options, None, {}, {}
        self.counting = torch.arange(T + 1, dtype=torch.int32, device=options["device"])  # one row each

    def product(self, name: str, *widths: int) -> tuple[torch.Tensor, ...]:
        """Room ``[T, sum of widths]`` for a product that is read before the next one of this name is made, and its parts
        of each width."""
        known = self._products.get((name, widths))
        if known is None:
            whole = self._cut(lambda rows: rows.product(name, *widths)[0], sum(widths), self._options["dtype"])
            known = self._products[name, widths] = (whole, *whole.split_with_sizes(widths, 1))
        return known

    def route(self, k: int) -> tuple[torch.Tensor, torch.Tensor]:
        """Room for the experts int32 ``[T, k]`` of a router and their weights float32."""
        known = self._routes.get(k)
        if known is None:
            known = self._routes[k] = tuple(self._cut(lambda rows: rows.route(k)[i], k, dtype)
                                            for i, dtype in enumerate((torch.int32, torch.float32)))
        return known

    def _cut(self, of, width: int, dtype: torch.dtype) -> torch.Tensor:
        """``[T, width]``: the first rows of ``of(whole)``, or memory of its own."""
        T = len(self.counting) - 1
        if self._whole is not None:
            return of(self._whole)[:T]
        with torch.inference_mode(False):  # plain tensors, that any later mode may write
            return torch.zeros(T, width, dtype=dtype, device=self._options["device"])

    def first(self, rows: int) -> Rows:
        """The first ``rows`` rows, in the same memory."""
        view = object.__new__(Rows)
        view.streams, view.fused, view.heads, view.experts = (
            x[:rows] for x in (self.streams, self.fused, self.heads, self.experts))
        view.counting = self.counting[:rows + 1]
        view._options, view._whole, view._products, view._routes = self._options, self, {}, {}
        view.sites = [tuple(x[:rows] for x in site) for site in self.sites]
        return view
